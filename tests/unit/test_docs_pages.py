"""Configs, TF_CONFIG and messages on the documentation's pages are those of the program."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain import config
from cloudtrain.cluster.plan import make_plan
from cloudtrain.commands.plan import plan_report
from cloudtrain.training.strategies import STRATEGIES

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = "import.md"
"""Its blocks are what other tools read, and parts of what is written for them."""


def configs() -> Iterator[tuple[str, str]]:
    """Page and number, and text, of each block that is a whole config."""
    for page in PAGES:
        for number, (kind, text) in enumerate(BLOCK.findall(page.read_text("utf-8"))):
            whole = re.search(r"^provider:", text, re.M) and re.search(r"^train:", text, re.M)
            if kind == "yaml" and whole and page.name != ELSEWHERE:
                yield f"{page.name} {number}", text


WHOLE = dict(configs())


@pytest.mark.parametrize("place", WHOLE)
def test_every_whole_config_on_a_page_can_be_planned(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = WHOLE[place]
    for variable in re.findall(r"\$\{(\w+)", text):
        monkeypatch.setenv(variable, str(tmp_path))
    (tmp_path / "src").mkdir()
    (tmp_path / "requirements.txt").touch()
    file = tmp_path / "config.yaml"
    file.write_text(text)
    report = plan_report(make_plan(config.load(file)))
    assert report.tasks


def test_every_strategy_has_a_page_with_a_config() -> None:
    listed = (ROOT / "docs" / "strategies.md").read_text("utf-8")
    for name in STRATEGIES:
        page = re.search(rf"`{name}`[^|]*\]\((strategy-[\w-]+\.md)", listed)
        assert page, name
        assert any(place.startswith(f"{page[1]} ") for place in WHOLE), page[1]


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs").glob("strategy-*.md")), ids=lambda p: p.stem
)
def test_a_tf_config_on_a_strategys_page_is_what_its_config_plans(
    page: Path, tmp_path: Path
) -> None:
    shown = [text for kind, text in BLOCK.findall(page.read_text("utf-8")) if kind == "json"]
    (text,) = [text for place, text in WHOLE.items() if place.startswith(f"{page.name} ")]
    file = tmp_path / "config.yaml"
    file.write_text(text)
    planned = [task.tf_config for task in plan_report(make_plan(config.load(file))).tasks]
    for one in shown:
        assert json.loads(one) in [json.loads(each) for each in planned if each], one
    assert bool(shown) == any(planned)


def test_every_message_of_the_troubleshooting_page_is_in_the_code() -> None:
    sources = "\n".join(
        path.read_text("utf-8")
        for folder in ("cloudtrain", "providers")
        for path in (ROOT / folder).rglob("*.py")
    )
    rows = re.findall(r"^\| (.+?) \|", (ROOT / "docs/troubleshooting.md").read_text(), re.M)
    said = [word for row in rows for word in re.findall(r"`([^`]+)`", row)]
    ours = [word for word in said if " " in word]
    assert len(ours) > 8
    for words in ours:
        pattern = re.sub(r"8900|apache\\-libcloud", ".{1,30}", re.escape(words))
        pattern = pattern.replace("\\ ", r'(?: |"\s*f?")+')
        assert re.search(pattern, sources), words
