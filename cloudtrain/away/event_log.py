"""The log of a desk: what its console shows, as the JSON lines of `--events`."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from cloudtrain.core.codec import UNIX_TIME, decode

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def log_stream(append: Callable[[bytes], None]) -> TextIO:
    """The stream of an `EventStream`, of which every line is given to `append`.

    `EventStream(console, log_stream(publisher.log))` is the desk's console.
    """
    raw = io.BufferedWriter(_Appended(append))
    return io.TextIOWrapper(raw, encoding="utf-8", newline="\n")


class _Appended(io.RawIOBase):
    def __init__(self, append: Callable[[bytes], None]) -> None:
        self._append = append

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        written = bytes(data)
        self._append(written)
        return len(written)


@dataclass(frozen=True, kw_only=True)
class LoggedEvent:
    """One line; docs/events.schema.json has the keys of each kind of event."""

    time: float = field(metadata=UNIX_TIME)
    event: str
    text: str = ""
    stage: str = ""
    seconds: float = 0.0
    task: str = ""
    line: str = ""


class EventReader:
    """Splits the log, in pieces as they are read, into its events. A line that is none is
    skipped.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> tuple[LoggedEvent, ...]:
        """Events that are complete now."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return tuple(event for line in lines if (event := _event(line)) is not None)


def _event(line: bytes) -> LoggedEvent | None:
    try:
        return decode(LoggedEvent, json.loads(line))
    except (ValueError, RecursionError):
        return None
