"""Reads the answers of a program of ours on a node: JSON lines, among other words."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from cloudtrain.artifacts.inventory import Stop
from cloudtrain.core.paths import shown

KEPT = 4096
"""Bytes kept, from the end, of a program's output besides its answers."""

LONGEST = 16 << 20
"""Limit of one answer in bytes: an upload of ten thousand parts has 2 MB."""


class AnswerLines:
    """Passes each answer to `take`, which raises ValueError, LookupError or TypeError for a line
    that is none, such as a shell's greeting.

    `hear` takes the program's stdout, `overhear` its stderr; both raise what `stop` raises.
    """

    def __init__(self, take: Callable[[dict[str, Any]], None], stop: Stop) -> None:
        self._take, self._stop = take, stop
        self._rest = b""
        self._words = b""

    def hear(self, data: bytes) -> None:
        self._stop.check()
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST:
            lines, self._rest = [*lines, self._rest[-KEPT:]], b""
        for line in lines:
            try:
                self._take(json.loads(line))
            except (ValueError, LookupError, TypeError):
                self.overhear(line + b"\n")

    def overhear(self, data: bytes) -> None:
        self._stop.check()
        self._words = (self._words + data.replace(b"\0", b""))[-KEPT:]

    def last_words(self, exit_code: int) -> str:
        """Return why the program ended without an answer: its last line, or its exit code."""
        words = os.fsdecode(self._words).strip().splitlines()
        return shown(words[-1]) if words else f"exit code {exit_code}"
