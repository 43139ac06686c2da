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
    return tuple(map(_read, paths().values()))


def page(name: str) -> Page:
    """The page `config`, also as `config.md` or `docs/config.md`. Raises UsageError.

    A page of a folder below is found by its own name, too: `states` is `internals/states`.
    """
    wanted = name.removeprefix("docs/").removesuffix(".md").lower()
    known = paths()
    known |= {path.stem: path for name, path in known.items() if "/" in name}
    if wanted not in known:
        near = difflib.get_close_matches(wanted, known, n=1)
        hint = f"did you mean `cloudtrain docs {near[0]}`?" if near else "`--list` lists the pages"
        raise UsageError(f"there is no page {name!r}", hint=hint)
    return _read(known[wanted])


def paths() -> dict[str, Path]:
    """The file of each page, by name; those of folders below come last."""
    files = sorted(PAGES.glob("*.md")) + sorted(PAGES.glob("*/*.md"))
    return {_name(path): path for path in files}


def _name(path: Path) -> str:
    return path.relative_to(PAGES).with_suffix("").as_posix()


def _read(path: Path) -> Page:
    text = path.read_text("utf-8")
    head = next((line for line in text.splitlines() if line.startswith("# ")), path.stem)
    return Page(name=_name(path), title=head.removeprefix("# ").replace("`", ""), text=text)
