"""`cloudtrain docs`: the documentation's pages, which the package contains."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from cloudtrain.core.errors import UsageError
from cloudtrain.core.paths import PACKAGE

PAGES = PACKAGE / "docs"

INDEX = "index"
"""The page that lists the others."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page; `text` is Markdown."""

    name: str
    title: str
    text: str


def pages() -> tuple[Page, ...]:
    """All pages, by name."""
    return tuple(map(_read, sorted(PAGES.glob("*.md"))))


def page(name: str) -> Page:
    """The page `config`, also as `config.md` or `docs/config.md`. Raises UsageError."""
    wanted = name.removeprefix("docs/").removesuffix(".md").lower()
    names = [path.stem for path in PAGES.glob("*.md")]
    if wanted not in names:
        near = difflib.get_close_matches(wanted, names, n=1)
        hint = f"did you mean `cloudtrain docs {near[0]}`?" if near else "`--list` lists the pages"
        raise UsageError(f"there is no page {name!r}", hint=hint)
    return _read(PAGES / f"{wanted}.md")


def _read(path: Path) -> Page:
    text = path.read_text("utf-8")
    head = next((line for line in text.splitlines() if line.startswith("# ")), path.stem)
    return Page(name=path.stem, title=head.removeprefix("# ").replace("`", ""), text=text)
