"""Turns foreign log bytes into readable lines that cannot control the terminal, and breaks long
ones between words."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import TextIO

LONGEST = 1 << 16
"""Characters after which an unterminated line is shown as it is, to bound memory."""

# Patterns of what few lines have are texts, which `re` compiles at their first use, and keeps.
_SEQUENCES = (
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movements
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x80-\x9f]*(?:\x07|\x1b\\|\x9c)"  # titles, …
    r"|\x1b[ -/]*[0-~]"
)
_CONTROLS = "[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
"""All but the tab; also the marks that change the direction of writing."""


def printable(text: str) -> str:
    """Remove control characters from each line of a text."""
    return "\n".join(clean(line) for line in text.split("\n"))


def quoted(text: str) -> str:
    """Mark the lines of a message, after its first, that would look like lines of ours. Messages
    quote what clouds, stores and nodes say. A line break there, of whatever kind, must not make a
    `hint:` that this program never gave."""
    first, *rest = re.sub(_BREAKS, "\n", text).split("\n")
    return "\n".join(
        [first, *(f"| {line.lstrip()}" if re.match(_OURS, line) else line for line in rest)]
    )


_BREAKS = "\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]"
_OURS = r"\W*(error|hint|warning|note|cost)\s*:"


def clean(line: str) -> str:
    """Reduce one line to what a terminal would finally show. Keeps the last state of a progress bar
    that overwrites itself; removes control characters, escape sequences and colours."""
    if line.isprintable():
        return line
    line = re.sub(_SEQUENCES, "", line).rstrip("\r").rpartition("\r")[2]
    if "\b" in line:
        line = _overwritten(line)
    return re.sub(_CONTROLS, "", line)


class LogLines:
    """Splits the bytes of one log, in chunks as they come off the network, into clean whole
    lines."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that are complete now; an incomplete one is kept back."""
        *whole, rest = (self._rest + self._decoder.decode(data)).split("\n")
        if len(rest) > LONGEST:
            whole.append(rest)
            rest = ""
        if "\r" in rest:  # the last state of a progress bar, which may write for minutes
            shown = rest.rstrip("\r")
            rest = shown.rpartition("\r")[2] + rest[len(shown) :][:1]
        self._rest = rest
        return [clean(line) for line in whole]

    def skip(self, data: bytes) -> int:
        """Leave out the lines that are complete now; returns how many."""
        count = data.count(b"\n")
        if count:
            self._rest = ""
            self._decoder.reset()
        self.feed(data[data.rfind(b"\n") + 1 :])
        return count

    def flush(self) -> list[str]:
        """Return the last line if it was not terminated."""
        rest, self._rest = self._rest + self._decoder.decode(b"", final=True), ""
        self._decoder.reset()
        return [clean(rest)] if rest else []


def _overwritten(line: str) -> str:
    """Apply backspaces, with which Keras overwrites its progress bar."""
    shown: list[str] = []
    at = 0
    for character in line:
        if character == "\b":
            at = max(0, at - 1)
        else:
            shown[at : at + 1] = [character]
            at += 1
    return "".join(shown)


# ── lines that are longer than a terminal is wide ──────────────────────────────


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
    if not stream.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def wrapped(text: str, width: int | None) -> str:
    """Break lines that are longer than `width` at spaces; None: at no width. What follows is
    indented as far as the text of the line. A command in backticks, a short cell and each word stay
    whole: the terminal folds a word that is longer than a line."""
    if width is None:
        return text
    return "\n".join(part for line in text.split("\n") for part in _parts(line, width))


def _parts(line: str, width: int) -> Iterator[str]:
    if len(line) <= width:
        yield line
        return
    import textwrap

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
