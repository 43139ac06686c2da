"""Parses ignore files as git does (https://git-scm.com/docs/gitignore)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from cloudtrain.core.dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class IgnoreRule:
    """One line of an ignore file. `matcher` takes paths relative to the file's folder."""

    matcher: re.Pattern[str]
    folder: str
    """The absolute path of the folder that the file is in."""
    folders_only: bool
    ignores: bool
    """False for a `!` line, which re-includes what an earlier one ignored."""
    file: str
    line: int
    text: str
    """The line as written."""


def rules(folder: Path, names: Iterable[str]) -> tuple[IgnoreRule, ...]:
    """Rules of the ignore files in a folder, in order: a later one wins."""
    found: list[IgnoreRule] = []
    for name in names:
        file = folder / name
        if file.is_file():
            lines = os.fsdecode(file.read_bytes()).split("\n")
            read = (_rule(line.removesuffix("\r"), file, at) for at, line in enumerate(lines, 1))
            found += filter(None, read)
    return tuple(found)


def deciding(path: str, is_folder: bool, rules: Sequence[IgnoreRule]) -> IgnoreRule | None:
    """The rule that decides on a path whose parent folders are not ignored (git never looks into
    ignored folders); None if none speaks of it."""
    for rule in reversed(rules):
        if rule.folders_only and not is_folder:
            continue
        if rule.matcher.fullmatch(os.path.relpath(path, rule.folder)):
            return rule
    return None


def _rule(written: str, file: Path, number: int) -> IgnoreRule | None:
    line = written
    if not line.endswith("\\ "):
        line = line.rstrip(" ")
    if not line or line.startswith("#"):
        return None
    pattern = line.removeprefix("!")
    bare = pattern.removesuffix("/")
    anywhere = "(?:.*/)?" if "/" not in bare else ""
    try:
        matcher = re.compile(anywhere + _regex(bare.removeprefix("/")), re.DOTALL)
    except (re.error, ValueError):
        return None  # as git does with a line that it cannot read
    return IgnoreRule(
        matcher=matcher,
        folder=str(file.parent),
        folders_only=pattern.endswith("/"),
        ignores=pattern == line,
        file=str(file),
        line=number,
        text=written,
    )


_TOKEN = re.compile(
    r"(?P<start>\A\*\*+/)|(?P<middle>/\*\*+/)|(?P<end>/\*\*+\Z)|(?P<star>\*+)|(?P<one>\?)"
    r"|(?P<set>\[[!^]?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\])|(?P<escaped>\\.)|(?P<plain>.)",
    re.DOTALL,
)
_PARTS = {"start": "(?:.*/)?", "middle": "/(?:.*/)?", "end": "/.+", "star": "[^/]*", "one": "[^/]"}
_CLASSES = {
    "[:alpha:]": "a-zA-Z",
    "[:digit:]": "0-9",
    "[:alnum:]": "a-zA-Z0-9",
    "[:upper:]": "A-Z",
    "[:lower:]": "a-z",
    "[:space:]": r"\s",
    "[:xdigit:]": "0-9a-fA-F",
}


def _regex(pattern: str) -> str:
    """Pattern as a regular expression. Raises ValueError for what git rejects."""
    if not pattern:
        raise ValueError("an empty pattern")
    parts = []
    for token in _TOKEN.finditer(pattern):
        kind, text = token.lastgroup or "", token[0]
        if kind in _PARTS:
            parts.append(_PARTS[kind])
        elif kind == "set":
            parts.append(_set(text))
        elif kind == "escaped":
            parts.append(re.escape(text[1:]))
        elif text in "[\\":
            raise ValueError(pattern)
        else:
            parts.append(re.escape(text))
    return "".join(parts)


def _set(text: str) -> str:
    inner = text[1:-1]
    negated = inner[:1] in ("!", "^")
    inner = inner[1:] if negated else inner
    for name, characters in _CLASSES.items():
        inner = inner.replace(name, characters)
    if inner.startswith("]"):
        inner = "\\" + inner
    inner = re.sub(r"([\[&~|^])", r"\\\1", inner)
    return f"(?!/)[{'^' if negated else ''}{inner}]"
