"""Consoles that pass on to another one what a command shows, all or a part of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from cloudtrain.core.protocols import Console, SilentStage, Stage


class ForwardingConsole:
    """Passes everything on; a subclass changes a part of it."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        self._console.say(text)

    def warn(self, text: str) -> None:
        self._console.warn(text)

    def stage(self, title: str, total: int) -> AbstractContextManager[Stage]:
        return self._console.stage(title, total)

    def task_output(self, task: str, data: bytes) -> None:
        self._console.task_output(task, data)


class BackgroundConsole(ForwardingConsole):
    """Passes on warnings and the output of tasks, no progress: for what is done beside something
    that is shown."""

    def say(self, text: str) -> None:
        pass

    def stage(self, title: str, total: int) -> AbstractContextManager[Stage]:
        return nullcontext(SilentStage())


class WaitingConsole(ForwardingConsole):
    """Passes everything on from the first finished part of a stage on; before, nothing."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._shown = False

    def say(self, text: str) -> None:
        if self._shown:
            super().say(text)

    def warn(self, text: str) -> None:
        if self._shown:
            super().warn(text)

    @contextmanager
    def stage(self, title: str, total: int) -> Iterator[Stage]:
        with ExitStack() as open_stages:

            def begin() -> Stage:
                self._shown = True
                return open_stages.enter_context(self._console.stage(title, total))

            later = _LaterStage(begin)
            if self._shown:
                later.begin()
            yield later


class _LaterStage:
    """A stage that begins with its first finished part."""

    def __init__(self, begin: Callable[[], Stage]) -> None:
        self._begin = begin
        self._stage: Stage | None = None
        self._lock = threading.Lock()

    def begin(self) -> Stage:
        with self._lock:
            self._stage = self._stage or self._begin()
            return self._stage

    def node(self, name: str, text: str) -> None:
        if self._stage is not None:
            self._stage.node(name, text)

    def done(self, name: str, text: str = "") -> None:
        self.begin().done(name, text)
