"""Plain timed lines: `06:41:07 + 12.3s  nodes: 3 of 3 ready  12.1s`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TextIO

from cloudtrain.console import Style
from cloudtrain.console.lines import printable, quoted
from cloudtrain.console.screen import Progress, TaskOutput, counted
from cloudtrain.core import moments
from cloudtrain.core.protocols import Stage

BEAT = 1.0
"""Seconds between two looks at what nodes do."""

SILENCE = 5.0
"""Seconds after which a stage says what its nodes do, if that is new."""

REPEATED = 60.0
"""Seconds of silence after which it says so again."""

LONGEST = 100
"""Letters of what a node does that are shown."""


class PlainConsole:
    def __init__(
        self,
        *,
        err: TextIO,
        out: TextIO,
        style: Style | None = None,
        clock: Callable[[], float] = moments.now,
    ) -> None:
        self.style = style or Style()
        self._err = Progress(err)
        self._out = TaskOutput(out, colours=False)
        self._clock = clock
        self._begun = clock()

    def say(self, text: str) -> None:
        now = self._clock()
        clock = time.strftime("%H:%M:%S", time.localtime(now))
        start = f"{clock} +{now - self._begun:5.1f}s  "
        self._err.write(
            start + printable(quoted(text)).replace("\n", "\n" + " " * len(start)) + "\n"
        )
        self._err.flush()

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}")

    @contextmanager
    def stage(self, title: str, total: int) -> Iterator[Stage]:
        stage = _Lines(self, title, total, self._clock)
        try:
            with stage.repeated():
                yield stage
        except BaseException:
            self.say(f"{title}: failed after {stage.seconds()}")
            raise
        self.say(f"{title}: {stage.summary()}  {stage.seconds()}")

    def task_output(self, task: str, data: bytes) -> None:
        self._out.write(self._out.feed(task, data))

    def below(self, lines: Callable[[], Sequence[str]]) -> AbstractContextManager[None]:
        return nullcontext()

    def flush(self) -> None:
        self._out.write(self._out.rest())


class _Lines:
    """A stage as one line at its end, and a line for each news of a longer one."""

    def __init__(
        self, console: PlainConsole, title: str, total: int, clock: Callable[[], float]
    ) -> None:
        self._console, self._title, self._total, self._clock = console, title, total, clock
        self._begun = self._said = clock()
        self._done: dict[str, str] = {}
        self._doing: dict[str, str] = {}
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def node(self, name: str, text: str) -> None:
        with self._lock:
            self._doing[name] = text
            self._say_news(name, text)

    def done(self, name: str, text: str = "") -> None:
        with self._lock:
            self._doing.pop(name, None)
            self._done[name] = text
            if len(self._done) < self._total:
                self._say_news(name, text)

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Break every longer silence: what takes long may have nothing to report."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(BEAT):
                self.break_silence()

        threading.Thread(target=beat, daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def break_silence(self) -> None:
        """Report what the first busy node does, if that is new, and again after a minute."""
        with self._lock:
            name, text = next(iter(self._doing.items()), ("", "in progress"))
            if self._clock() - self._said >= REPEATED:
                self._say(name, text)
            else:
                self._say_news(name, text)

    def summary(self) -> str:
        return counted(self._done, self._total)

    def seconds(self) -> str:
        return f"{self._clock() - self._begun:.1f}s"

    def _say_news(self, name: str, text: str) -> None:
        if self._clock() - self._said >= SILENCE and text not in self._told:
            self._say(name, text)

    def _say(self, name: str, text: str) -> None:
        self._said = self._clock()
        self._told.add(text)
        shown = text if len(text) <= LONGEST else f"{text[: LONGEST - 2]} …"
        line = f"{self._title}: {len(self._done)} of {self._total}  "
        self._console.say((line + f"{name} {shown}".strip()).rstrip())
