"""Breaks lines between words, where they are longer than a terminal is wide."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator
from typing import TextIO

_COLUMNS = re.compile(r"\s*(?:\S+(?: \S+)? {2,}){0,2}(?:(?:error|hint|note|warning|not taken): )?")
"""What stands before the text of a line: one or two short columns, and what kind of text it is."""
_CELL = re.compile(r"(?<=  )\S+(?: \S+)+(?=  |$)")
"""A cell of a line of several: `port 8900`."""
CELL = 24
"""Letters of a cell that stays whole."""
DEEP = 5
"""Columns from which a line's margin says that it continues another one."""
_CODE = re.compile(r"`[^`]*`")
_GLUE = "\ue000"
"""Stands for a space at which a line is not broken."""


def terminal_width(stream: TextIO) -> int | None:
    """Columns of the terminal that `stream` is; None if it is none."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def wrapped(text: str, width: int | None) -> str:
    """Break lines that are longer than `width` at spaces; None: at no width.

    What follows is indented as far as the text of the line. A command in backticks, a short cell
    and each word stay whole: the terminal folds a word that is longer than a line.
    """
    if width is None:
        return text
    return "\n".join(part for line in text.split("\n") for part in _parts(line, width))


def _parts(line: str, width: int) -> Iterator[str]:
    if len(line) <= width:
        yield line
        return
    margin = len(line) - len(line.lstrip())
    columns = _COLUMNS.match(line)
    start = columns.end() if columns else 0
    longest = max(map(len, line[start:].split()), default=0)
    if longest == len(line) - start > width - margin - 2:
        yield line  # one word, which the terminal folds wherever it begins
        return
    if start == margin or start > width // 2 or start + longest > width:
        start = min(margin if margin > DEEP else margin + 2, width // 2)
    whole = _CODE.sub(lambda code: _glued(code[0], width - start), line)
    if len(re.split(" {2,}", line.strip())) > 3:
        whole = _CELL.sub(lambda cell: _glued(cell[0], CELL), whole)
    parts = textwrap.wrap(
        whole,
        width,
        subsequent_indent=" " * start,
        expand_tabs=False,
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    )
    yield from (part.replace(_GLUE, " ") for part in parts)


def _glued(code: str, room: int) -> str:
    return code.replace(" ", _GLUE) if len(code) <= room else code
