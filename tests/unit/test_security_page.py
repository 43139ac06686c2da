"""The pages that say what nobody can cause lean on tests: each that they name is there."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@cache
def all_tests() -> str:
    return "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("page", ["security.md", "local.md", "away.md"])
def test_every_test_that_a_page_on_trust_names_exists(page: str) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    tests = all_tests()
    named = set(re.findall(r"`(test_\w+)`", text))
    files = set(re.findall(r"`(tests/[\w/]+\.py)`", text))
    assert named or files
    assert sorted(name for name in named if f"def {name}(" not in tests) == []
    assert sorted(file for file in files if not (ROOT / file).is_file()) == []


def test_each_cell_of_the_trust_model_has_a_line_that_names_a_test() -> None:
    text = (ROOT / "docs" / "security.md").read_text("utf-8")
    model = text.partition("## The trust model\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in model.splitlines() if line.startswith("|")]
    cells = {cell.split()[-1] for row in rows[2:] for cell in row[1:]}
    lines = dict(re.findall(r"^- (\w\d): (.*?)(?=^- |\n\n|\Z)", model, re.MULTILINE | re.DOTALL))
    assert len(rows) == 11
    assert {len(row) for row in rows} == {8}
    assert sorted(cells ^ lines.keys()) == []
    for line in lines.values():
        other = re.match(r"as (\w\d)\b", line)
        assert "`test_" in (lines[other[1]] if other else line), line
