"""Task output on its way to a terminal: taken at once, shown five times a second at most."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from cloudtrain.console.screen import HELD, TaskOutput
from cloudtrain.core.retry import CLOCK

PAUSE = 0.2
"""Seconds between two draws."""

MOST = 4 << 20
"""Bytes that wait for a terminal that takes none."""


class PacedOutput:
    """Hands lines of tasks to `show` in a thread of its own, in the order in which they came; again
    after HELD seconds if it returns True. If `skips`, it leaves out the oldest of what waits for a
    terminal that takes none, and hands over how many; else a task's output waits, too."""

    def __init__(
        self,
        output: TaskOutput,
        show: Callable[[list[tuple[str, str]], int], bool],
        *,
        skips: bool,
    ) -> None:
        self._output, self._show, self._skips = output, show, skips
        self._waiting: list[tuple[str, bytes]] = []
        self._bytes = self._skipped = 0
        self._holds = False
        self._changed = threading.Condition()
        self._drawing = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, task: str, data: bytes) -> None:
        with self._changed:
            self._waiting.append((task, data))
            self._bytes += len(data)
            while self._skips and self._bytes > MOST and len(self._waiting) > 1:
                oldest, lines = self._waiting.pop(0)
                self._bytes -= len(lines)
                self._skipped += self._output.skip(oldest, lines)
            if self._thread is None:
                self._thread = threading.Thread(target=self._draw_on, daemon=True, name="draw")
                self._thread.start()
            self._changed.notify()
        if self._bytes > MOST and not self._skips:
            self.draw()

    def draw(self) -> None:
        """Show what waits."""
        with self._drawing:  # shown in order
            with self._changed:
                waiting, self._waiting, self._bytes = self._waiting, [], 0
                skipped, self._skipped = self._skipped, 0
                lines = [line for task, data in waiting for line in self._output.feed(task, data)]
            if lines or self._holds:
                self._holds = self._show(lines, skipped)

    def _draw_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting, HELD if self._holds else None)
            with suppress(OSError, ValueError):  # a lost terminal is met by the next message
                self.draw()
            CLOCK.sleep(PAUSE)


class Room:
    """Room for lines on a terminal: of too many, the oldest are left out, which a line says."""

    def __init__(self) -> None:
        self._room, self._since = float(ROOM), CLOCK.monotonic()

    def fit(self, lines: list[tuple[str, str]], skipped: int) -> list[tuple[str, str]]:
        """The newest of these lines; `skipped` are left out already."""
        now = CLOCK.monotonic()
        self._room = min(float(ROOM), self._room + (now - self._since) * RATE)
        self._since = now
        over = max(0, len(lines) - int(self._room))
        self._room -= len(lines) - over
        if not over + skipped:
            return lines
        note = f"… {over + skipped:,} lines skipped here: the logs have them"
        return [("", note), *lines[over:]]


ROOM, RATE = 2000, 1000
"""Lines that are shown at once, and a second after that: more is no reading, and slow terminals
(over SSH, in tmux) would hold up all the rest."""
