"""The report of a real TensorFlow run on local nodes, as its end lands it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from tests.e2e.test_training import LIMIT, SETUP
from tests.support.project import Project

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.xdist_group("tensorflow"),
    pytest.mark.usefixtures("tensorflow_python"),
]

SCRIPT = """
import sys

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
writer = tf.summary.create_file_writer(sys.argv[1] + "/logs")
with writer.as_default():
    for step in range(1, 4):
        value = strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0 / step)), axis=None)
        tf.summary.scalar("loss", value, step=step)
        print(f"step {step} loss {float(value):.3f} <script>alert(1)</script>")
"""
SECRET = "hunter2-hunter2"


class Page(HTMLParser):
    """Names of the elements, and everything that a browser might load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.loaded: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        sources = [value or "" for name, value in attrs if name in ("src", "href", "data")]
        self.loaded += [each for each in sources if not each.startswith("#")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_run_lands_a_report_that_needs_nothing_else_and_tells_no_secret(
    project: Project,
) -> None:
    pytest.importorskip("matplotlib")
    (project.code / "train.py").write_text(SCRIPT)
    project.environment["MY_TOKEN"] = SECRET
    config = project.config(
        setup=SETUP,
        train={"command": "python train.py {output}", "grace": "5s", "checkpoints": None},
        secrets={"TOKEN": "${MY_TOKEN}"},
    )
    done = project.cloudtrain("run", config, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert "report was not" not in done.stderr
    (path,) = project.store.glob("*/report.html")
    text = path.read_text("utf-8")
    page = Page(text)
    assert page.loaded == []
    assert not {"script", "link", "img", "iframe"} & set(page.names)
    assert not re.search(r"@import|url\((?!#)", text)
    assert "succeeded after" in page.text
    assert "step 3 loss 0.667 <script>alert(1)</script>" in page.text
    assert "From TensorBoard event files." in page.text
    for name in ("report.html", "report.json", "config.json", "run.json"):
        for one in (*project.store.rglob(name), *project.home.rglob(name)):
            assert SECRET not in one.read_text("utf-8"), one

    facts = json.loads((path.with_name("report.json")).read_text())
    (loss,) = facts["charts"]
    assert (loss["metric"], loss["unit"]) == ("loss", "step")
    assert {each["name"] for each in loss["series"]} == {
        "chief0/output/logs",
        "worker0/output/logs",
    }
    assert loss["series"][0]["y"] == pytest.approx([2.0, 1.0, 2 / 3])
    assert {use["task"] for use in facts["use"]} == {"chief0", "worker0"}
    names = [phase["name"] for phase in facts["phases"]]
    assert names[-2:] == ["attempt 1", "landing"]

    # Another machine has the store alone.
    asked = ("report", "--store", project.store.as_uri(), "--json")
    other = {**project.environment, "CLOUDTRAIN_HOME": str(project.folder / "other home")}
    project.environment = other
    done = project.cloudtrain(*asked)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["phases"] == facts["phases"]
