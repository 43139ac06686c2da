"""TensorBoard itself over a run: live, from its nodes, and landed, from its store."""

from __future__ import annotations

import json
import re
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.standins import stores
from tests.support.commands import Command
from tests.support.project import Project, until

SCRIPT = """\
import json, os, sys, time
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

task = json.loads(os.environ["TF_CONFIG"])["task"]
writer = EventFileWriter(os.path.join(sys.argv[1], "logs", "train"))
for step in range(int(sys.argv[2])):
    value = Summary.Value(tag="loss", simple_value=1.0 / (step + 1 + task["index"]))
    writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=[value])))
    writer.flush()
    time.sleep(float(sys.argv[3]))
writer.close()
"""
COMMAND = f"{sys.executable} events.py {{output}}"


@pytest.fixture
def served(project: Project) -> Iterator[list[Command]]:
    started: list[Command] = []
    yield started
    for process in started:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    left = [words for words in project.processes().values() if "tensorboard" in words]
    assert left == [], "a TensorBoard is left"


def config(project: Project, steps: int, pause: float) -> Path:
    (project.code / "events.py").write_text(SCRIPT)
    return project.config(
        strategy="custom",  # the script forms no cluster
        train={"command": f"{COMMAND} {steps} {pause}", "tf_config": True, "success": "all"},
    )


def url(project: Project) -> str:
    def found() -> str | None:
        match = re.search(r"http://127\.0\.0\.1:\d+/[0-9a-f]{32}/", project.stdout)
        return match and match[0]

    return str(until(found, 60, "TensorBoard's address"))


def get(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return json.load(answer)


def curves(address: str) -> dict[str, int]:
    """Folder → number of points of its loss."""
    tags = get(f"{address}data/plugin/scalars/tags")
    return {
        run: len(get(f"{address}data/plugin/scalars/scalars?run={run}&tag=loss")) for run in tags
    }


BOTH = {"chief0/output/logs/train", "worker0/output/logs/train"}


def test_a_landed_run_is_served_from_its_store(project: Project, served: list[Command]) -> None:
    path = config(project, 10, 0.0)
    assert project.cloudtrain("run", path).returncode == 0
    served.append(project.start("tensorboard", path))
    address = url(project)
    found = until(lambda: (seen := curves(address)) and len(seen) == 2 and seen, 60)
    assert found == dict.fromkeys(BOTH, 10)
    assert "as it goes on" not in project.stdout
    prefix = address.split("/")[-2]
    for guessed in ("", "data/plugin/scalars/tags", f"{prefix[:-1]}/data/plugin/scalars/tags"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(address.removesuffix(f"{prefix}/") + guessed)
    assert not any(prefix in words for words in project.processes().values())


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
def test_a_landed_run_is_served_from_each_kind_of_store_and_its_report_read(
    project: Project, served: list[Command], kind: str
) -> None:
    with stores.KINDS[kind]() as place:
        project.environment |= place.environment
        path = config(project, 10, 0.0)
        path.write_text(path.read_text().replace(project.store.as_uri(), place.uri))
        done = project.cloudtrain("run", path)
        assert done.returncode == 0, done.stderr
        project.environment["CLOUDTRAIN_HOME"] = str(project.folder / "another machine")
        served.append(project.start("tensorboard", path))
        address = url(project)
        found = until(lambda: (seen := curves(address)) and len(seen) == 2 and seen, 60)
        assert found == dict.fromkeys(BOTH, 10)
        report = project.cloudtrain("report", path, "--json")
        assert report.returncode == 0, report.stderr
        assert json.loads(report.stdout)["run"]["state"] == "succeeded"


def test_a_report_of_a_run_that_goes_on_says_so(project: Project) -> None:
    path = config(project, 10_000, 0.1)
    assert project.cloudtrain("up", path, "--yes").returncode == 0
    assert project.cloudtrain("train", path, "--detach").returncode == 0
    done = project.cloudtrain("report", path, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["run"]["state"] == "running"
    assert [attempt["ended"] for attempt in report["run"]["attempts"]] == [None]
    page = project.folder / "page.html"
    assert project.cloudtrain("report", path, "--output", page).returncode == 0
    assert "running for" in page.read_text()
    assert project.cloudtrain("down", path, "--yes").returncode == 0


def test_a_live_run_is_followed_on_its_nodes(project: Project, served: list[Command]) -> None:
    path = config(project, 10_000, 0.1)
    assert project.cloudtrain("up", path, "--yes").returncode == 0
    assert project.cloudtrain("train", path, "--detach").returncode == 0
    served.append(project.start("tensorboard", path))
    address = url(project)
    assert "as it goes on" in project.stdout
    first = until(lambda: (seen := curves(address)) and seen.keys() == BOTH and seen, 60)
    until(lambda: all(count > first[run] for run, count in curves(address).items()), 60)
    assert project.cloudtrain("stop-run", path).returncode == 0
    until(lambda: served[0].poll() is None and all(curves(address).values()), 60)


def test_a_run_without_event_files_says_how_to_write_them(project: Project) -> None:
    path = project.config(train={"command": "true", "checkpoints": None})
    project.cloudtrain("run", path)
    done = project.cloudtrain("tensorboard", path)
    assert done.returncode == 2
    assert "landed no event files" in done.stderr
    assert "keras.callbacks.TensorBoard('output/logs')" in done.stderr


def test_a_port_that_is_taken_is_tensorboards_own_error(project: Project) -> None:
    path = config(project, 1, 0.0)
    assert project.cloudtrain("run", path).returncode == 0
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = project.cloudtrain("tensorboard", path, "--port", str(port))
    assert done.returncode == 2
    assert "TensorBoard did not start" in done.stderr
    assert str(port) in done.stderr
