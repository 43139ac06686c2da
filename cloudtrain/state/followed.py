"""Files here of a task that is followed: its log, and the metrics of its node."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

MOST_METRICS = 16 << 20
"""Limit in bytes of a task's metrics here: a month of them on a node with 16 GPUs has less."""


class MetricsFile:
    """A task's samples here. Its size is the offset from which they are continued, as the log's.
    They are worth less than the log: without room for them, the task is followed without them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._closed = False
        self.size = path.stat().st_size if path.exists() else 0

    def add(self, line: str) -> None:
        data = line.encode("utf-8", "replace") + b"\n"
        self._closed = self._closed or self.size + len(data) > MOST_METRICS
        if self._closed:
            return
        try:
            self._path.touch(mode=0o600)
            with self._path.open("ab") as file:
                file.write(data)
        except OSError:
            self._closed = True  # until the next connection, which continues where this one ended
        else:
            self.size += len(data)


def append(file: BinaryIO, data: bytes) -> None:
    """Write to a log; what its node has deleted of it arrives as zeros, and takes no room here."""
    if data.count(0) == len(data):
        file.truncate(file.seek(0, os.SEEK_END) + len(data))
    else:
        file.write(data)
    file.flush()
