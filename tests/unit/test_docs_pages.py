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
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
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
    (tmp_path / "cluster.ini").write_text("[cluster]\nchief=n1:8900\nworker=n2:8900, n3:8900\n")
    file = tmp_path / "config.yaml"
    file.write_text(text)
    report = plan_report(make_plan(config.load(file)))
    assert report.tasks


STRATEGY_PAGE = (DOCS / "strategies.md").read_text("utf-8")
SECTIONS = {
    re.sub(r"[^\w -]", "", title).lower().replace(" ", "-"): text
    for title, text in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", STRATEGY_PAGE, re.M | re.S)
}
"""The sections of docs/strategies.md, by anchor."""


def test_every_strategy_has_a_section_with_a_config() -> None:
    for name in STRATEGIES:
        anchor = re.search(rf"`{name}`[^|]*\]\(#([\w-]+)\)", STRATEGY_PAGE)
        assert anchor, f"add a section on {name} to docs/strategies.md"
        kinds = dict(BLOCK.findall(SECTIONS[anchor[1]]))
        assert kinds["yaml"] in WHOLE.values(), name


@pytest.mark.parametrize("section", [name for name in SECTIONS if "```json" in SECTIONS[name]])
def test_a_tf_config_of_a_strategy_is_what_its_config_plans(section: str, tmp_path: Path) -> None:
    blocks = BLOCK.findall(SECTIONS[section])
    file = tmp_path / "config.yaml"
    file.write_text(dict(blocks)["yaml"])
    planned = [task.tf_config for task in plan_report(make_plan(config.load(file))).tasks]
    for shown in [text for kind, text in blocks if kind == "json"]:
        assert json.loads(shown) in [json.loads(each) for each in planned if each], shown


def test_every_message_of_the_troubleshooting_page_is_in_the_code() -> None:
    sources = "\n".join(
        path.read_text("utf-8")
        for folder in ("cloudtrain", "providers")
        for path in (ROOT / folder).rglob("*.py")
    )
    rows = re.findall(r"^- (.+)", (ROOT / "docs/troubleshooting.md").read_text(), re.M)
    said = [word for row in rows for word in re.findall(r"`([^`]+)`", row)]
    ours = [word for word in said if " " in word and not word.startswith("cloudtrain ")]
    assert len(ours) > 8
    for words in ours:
        pattern = re.sub(r"8900|apache\\-libcloud", ".{1,30}", re.escape(words))
        pattern = pattern.replace("\\ ", r'(?: |"\s*f?")+')
        assert re.search(pattern, sources), words


# ── Size: pages that are read ────────────────────────────────────────────────

BUDGET, PATH_BUDGET = 45_000, 5_000
"""Words of all pages, and of the five that docs/index.md has a user read."""
WIDEST, LONGEST = 140, 35
"""Letters of a line, words of a sentence."""


def words(*pages: Path) -> int:
    return sum(len(page.read_text("utf-8").split()) for page in pages)


def test_the_pages_keep_to_their_budget_of_words() -> None:
    assert words(*PAGES) <= BUDGET, "delete what is said twice"


def test_the_five_pages_for_users_are_short() -> None:
    section = (DOCS / "index.md").read_text("utf-8").partition("## Read these five")[2]
    listed = re.findall(r"^\d\. \[[^\]]+\]\(([\w-]+\.md)\)", section, re.M)
    assert len(listed) == 5
    assert words(*(DOCS / name for name in listed)) <= PATH_BUDGET


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_line_of_a_page_is_wide_and_no_sentence_long(page: Path) -> None:
    text = page.read_text("utf-8")
    assert [line for line in text.splitlines() if len(line) > WIDEST] == []
    assert [each for each in sentences(text) if len(each.split()) > LONGEST] == []


def sentences(text: str) -> Iterator[str]:
    """Sentences of prose, with a word for each piece of code and each link."""
    text = re.sub(r"^```.*?^```|^<.*?>$", "", text, flags=re.M | re.S)
    text = re.sub(r"`[^`]*`|!?\[([^\]]*)\]\([^)]*\)", lambda found: found[1] or "code", text)
    for block in re.split(r"\n\s*\n|\n *(?:[-*#>]|\d+\.) |\n(?=\|)|[|·]|\n {4}", text):
        yield from re.split(r"(?<=[.!?])\**[)\"]?\s", " ".join(block.split()))
