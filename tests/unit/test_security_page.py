"""The pages that say what nobody can cause lean on tests: each that they name is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["security.md", "local.md", "away.md"])
def test_every_test_that_a_page_on_trust_names_exists(page: str) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    tests = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", text))
    files = set(re.findall(r"`(tests/[\w/]+\.py)`", text))
    assert named or files
    assert sorted(name for name in named if f"def {name}(" not in tests) == []
    assert sorted(file for file in files if not (ROOT / file).is_file()) == []
