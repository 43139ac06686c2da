"""docs/security.md leans on tests: each that it names is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_security_page_names_exists() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", page))
    files = set(re.findall(r"`(tests/[\w/]+\.py)`", page))
    assert named
    assert sorted(name for name in named if f"def {name}(" not in tests) == []
    assert sorted(file for file in files if not (ROOT / file).is_file()) == []
