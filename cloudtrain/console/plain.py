"""Plain timed lines: `06:41:07 + 12.3s  nodes: 2 of 3  mnist-worker1 ready`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TextIO

from cloudtrain.console.lines import printable
from cloudtrain.console.screen import Progress, TaskOutput
from cloudtrain.protocols import Stage

MAX_SINGLE = 16
"""Up to this many nodes, each finished node gets its own line."""

INTERVAL = 1.0
"""Seconds between lines on finished nodes in larger clusters."""

SILENCE = 5.0
"""Seconds of silence after which a node's current work is reported, or reported again."""


class PlainConsole:
    def __init__(self, *, err: TextIO, out: TextIO, clock: Callable[[], float] = time.time) -> None:
        self._err = Progress(err)
        self._out = TaskOutput(out, colours=False)
        self._clock = clock
        self._begun = clock()

    def say(self, text: str) -> None:
        now = self._clock()
        clock = time.strftime("%H:%M:%S", time.localtime(now))
        start = f"{clock} +{now - self._begun:5.1f}s  "
        self._err.write(start + printable(text).replace("\n", "\n" + " " * len(start)) + "\n")
        self._err.flush()

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}")

    @contextmanager
    def stage(self, title: str, total: int) -> Iterator[Stage]:
        stage = _Lines(self, title, total, self._clock)
        self.say(f"{title} …")
        try:
            with stage.repeated():
                yield stage
        except BaseException:
            self.say(f"{title}: failed {stage.after()}")
            raise
        self.say(f"{title}: done {stage.after()}")

    def task_output(self, task: str, data: bytes) -> None:
        self._out.write(self._out.feed(task, data))

    def below(self, lines: Callable[[], Sequence[str]]) -> AbstractContextManager[None]:
        return nullcontext()

    def flush(self) -> None:
        self._out.write(self._out.rest())


class _Lines:
    """A stage as plain lines, limited in number."""

    def __init__(
        self, console: PlainConsole, title: str, total: int, clock: Callable[[], float]
    ) -> None:
        self._console, self._title, self._total, self._clock = console, title, total, clock
        self._begun = self._said = clock()
        self._done: set[str] = set()
        self._doing: dict[str, str] = {}
        self._lock = threading.Lock()

    def node(self, name: str, text: str) -> None:
        with self._lock:
            self._doing[name] = text
            if self._clock() - self._said >= SILENCE:
                self._say(name, text)

    def done(self, name: str, text: str = "") -> None:
        with self._lock:
            self._doing.pop(name, None)
            self._done.add(name)
            last = len(self._done) == self._total
            if self._total <= MAX_SINGLE or last or self._clock() - self._said >= INTERVAL:
                self._say(name, text)

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Break every longer silence: what takes long may have nothing to report."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(1.0):
                self.break_silence()

        threading.Thread(target=beat, daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def break_silence(self) -> None:
        """Report again what the first busy node does, if nothing was reported for SILENCE."""
        with self._lock:
            if self._clock() - self._said < SILENCE:
                return
            self._say(*next(iter(self._doing.items()), ("", "in progress")))

    def after(self) -> str:
        return f"after {self._clock() - self._begun:.1f}s"

    def _say(self, name: str, text: str) -> None:
        self._said = self._clock()
        line = f"{self._title}: {len(self._done)} of {self._total}  "
        self._console.say((line + f"{name} {text}".strip()).rstrip())
