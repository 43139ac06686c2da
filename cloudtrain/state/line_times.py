"""Times at which the lines of a task's log arrived here, in an index beside the log."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

STEP = 1.0
"""Seconds that one entry stands for: an hour of a task that never pauses takes 80 KB."""


class Arrival(NamedTuple):
    """Bytes of a log from `offset` on arrived at `time` (Unix), up to the next one's offset."""

    offset: int
    time: float


class ArrivalIndex:
    """Appends to the index of one log. Its loss is no loss of the log: errors are ignored."""

    def __init__(self, log: Path) -> None:
        self._path = index_of(log)
        self._last = 0.0

    def arrived(self, offset: int, now: float) -> None:
        """Note that the bytes from `offset` on arrive now."""
        if now - self._last < STEP:
            return
        self._last = now
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        with suppress(OSError), os.fdopen(os.open(self._path, flags, 0o600), "wb") as file:
            file.write(f"{offset} {now:.0f}\n".encode())


def arrivals(log: Path) -> tuple[Arrival, ...]:
    """The index of a log, by offset; empty if there is none, as of a log that landed elsewhere."""
    try:
        lines = index_of(log).read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return ()
    found = []
    for line in lines:
        offset, _, time = line.partition(" ")
        if offset.isdecimal() and time.isdecimal():
            found.append(Arrival(int(offset), float(time)))
    return tuple(sorted(found))


def time_at(index: Sequence[Arrival], offset: int) -> float | None:
    """Time at which the byte at `offset` arrived; None if it came before the index began."""
    number = bisect_right(index, offset, key=lambda arrival: arrival.offset)
    return index[number - 1].time if number else None


def index_of(log: Path) -> Path:
    return log.with_suffix(".times")
