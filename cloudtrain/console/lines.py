"""Turns foreign log bytes into readable lines that cannot control the terminal."""

from __future__ import annotations

import codecs
import re

LONGEST = 1 << 16
"""Characters after which an unterminated line is shown as it is, to bound memory."""

_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movements
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x80-\x9f]*(?:\x07|\x1b\\|\x9c)"  # titles, …
    r"|\x1b[ -/]*[0-~]"
)
_CONTROLS = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""All but the tab; also the marks that change the direction of writing."""


def printable(text: str) -> str:
    """Remove control characters from each line of a text."""
    return "\n".join(clean(line) for line in text.split("\n"))


def quoted(text: str) -> str:
    """Mark the lines of a message, after its first, that would look like lines of ours.

    Messages quote what clouds, stores and nodes say. A line break there, of whatever kind, must not
    make a `hint:` that this program never gave.
    """
    first, *rest = _BREAKS.sub("\n", text).split("\n")
    return "\n".join(
        [first, *(f"| {line.lstrip()}" if _OURS.match(line) else line for line in rest)]
    )


_BREAKS = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_OURS = re.compile(r"\W*(error|hint|warning|note|cost)\s*:")


def clean(line: str) -> str:
    """Reduce one line to what a terminal would finally show.

    Keeps the last state of a progress bar that overwrites itself; removes control characters,
    escape sequences and colours.
    """
    if line.isprintable():
        return line
    line = _SEQUENCES.sub("", line).rstrip("\r").rpartition("\r")[2]
    if "\b" in line:
        line = _overwritten(line)
    return _CONTROLS.sub("", line)


class LogLines:
    """Splits the bytes of one log, in chunks as they come off the network, into clean whole
    lines.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that are complete now; an incomplete one is kept back."""
        *whole, rest = (self._rest + self._decoder.decode(data)).split("\n")
        if len(rest) > LONGEST:
            whole.append(rest)
            rest = ""
        self._rest = _last_state(rest)
        return [clean(line) for line in whole]

    def flush(self) -> list[str]:
        """Return the last line if it was not terminated."""
        rest, self._rest = self._rest + self._decoder.decode(b"", final=True), ""
        self._decoder.reset()
        return [clean(rest)] if rest else []


def _last_state(rest: str) -> str:
    """Keep only the last state of a progress bar, which may write for minutes without a newline."""
    if "\r" not in rest:
        return rest
    shown = rest.rstrip("\r")
    return shown.rpartition("\r")[2] + rest[len(shown) :][:1]


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
