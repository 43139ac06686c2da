"""docs/internals/architecture.md and docs/internals/development.md name only files that exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "cloudtrain"
ARCHITECTURE = ROOT / "docs" / "internals" / "architecture.md"
PAGES = (ARCHITECTURE, ROOT / "docs" / "internals" / "development.md")

TOPS = (ROOT, PACKAGE, PACKAGE / "providers")
"""Folders in which the paths of the pages begin."""

PATH = r"[\w./]+"
FIRST = {path.name for path in PACKAGE.iterdir()} | {"cloudtrain", "tests", "tools"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_path_that_the_page_names_exists(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    words = {word for span in re.findall(r"`([^`\n]+)`", text) for word in span.split()}
    assert sorted(word for word in words if is_path(word) and not exists(word)) == []


def is_path(word: str) -> bool:
    if "/" not in word:
        return bool(re.fullmatch(r"\w+\.(py|sh)", word))
    placeholder = re.search(r"/[A-Z]+\b", word)
    return word.partition("/")[0] in FIRST and not placeholder and bool(re.fullmatch(PATH, word))


def exists(word: str) -> bool:
    """True for `tests/unit/`, `runs/start`, `retry.py`, and `cluster/plan.make_plan` if the module
    defines that name.
    """
    if "/" not in word:
        return word in names()
    if any(has(top / word.rstrip("/")) for top in TOPS):
        return True
    module, _, name = word.rpartition(".")
    texts = [path.read_text("utf-8") for top in TOPS if (path := top / f"{module}.py").is_file()]
    defined = rf"^ *(async def|def|class) {name}\b|^ *{name}\b(:.*)? =|^ *{name}: "
    return any(re.search(defined, text, re.MULTILINE) for text in texts)


def has(path: Path) -> bool:
    return path.exists() or path.with_name(f"{path.name}.py").is_file()


@cache
def names() -> frozenset[str]:
    tops = ("cloudtrain", "providers", "playbooks", "tests", "tools")
    return frozenset(path.name for top in tops for path in (ROOT / top).rglob("*.[ps][yh]"))
