"""Relative paths with `/`: glob matching, staying inside a folder, printing.

Nodes run it too, as text: any Python from 3.6.
"""

from __future__ import annotations


def is_inside(path: str) -> bool:
    """True if a path names one file below its folder, in only one way."""
    return "\0" not in path and not {"", ".", ".."}.intersection(path.split("/"))


def shown(path: object) -> str:
    """A path with any bytes, in printable form."""
    text = str(path)
    return text if text.isprintable() else ascii(text)
