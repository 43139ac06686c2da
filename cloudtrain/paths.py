"""Relative paths with `/`: which stay inside a folder, how one is printed."""

from __future__ import annotations


def is_inside(path: str) -> bool:
    """Whether a path names one file below the folder it starts in, in only one way."""
    return "\0" not in path and not {"", ".", ".."}.intersection(path.split("/"))


def shown(path: object) -> str:
    """A path that may hold any byte, as it can be printed anywhere."""
    text = str(path)
    return text if text.isprintable() else ascii(text)
