"""Consoles that pass on to another one what a command shows, all or a part of it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from cloudtrain.core.protocols import Console, Stage


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
    that is shown.
    """

    def say(self, text: str) -> None:
        pass

    def stage(self, title: str, total: int) -> AbstractContextManager[Stage]:
        return nullcontext(SilentStage())


class SilentStage:
    """Shows no progress."""

    def node(self, name: str, text: str) -> None:
        pass

    def done(self, name: str, text: str = "") -> None:
        pass
