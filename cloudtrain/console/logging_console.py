"""A console for programs: prints nothing and sends messages to `logging`."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext

from cloudtrain.console.forwarding import ForwardingConsole
from cloudtrain.core.protocols import Console, Stage

log = logging.getLogger("cloudtrain")
log.addHandler(logging.NullHandler())  # else Python prints warnings of programs without handlers


class LoggingConsole:
    """Logs a command's messages, warnings and stages. Drops the output of tasks."""

    def say(self, text: str) -> None:
        log.info("%s", text)

    def warn(self, text: str) -> None:
        log.warning("%s", text)

    def stage(self, title: str, total: int) -> AbstractContextManager[Stage]:
        log.info("%s: %d", title, total)
        return nullcontext(_LoggedStage(title))

    def task_output(self, task: str, data: bytes) -> None:
        """Dropped: `logs` returns it."""


class _LoggedStage:
    def __init__(self, title: str) -> None:
        self._title = title

    def node(self, name: str, text: str) -> None:
        log.debug("%s: %s: %s", self._title, name, text)

    def done(self, name: str, text: str = "") -> None:
        log.info("%s: %s: %s", self._title, name, text or "done")


class CollectingConsole(ForwardingConsole):
    """Passes everything on to another console, and keeps the output of tasks as text."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._output: dict[str, bytearray] = {}

    def task_output(self, task: str, data: bytes) -> None:
        self._output.setdefault(task, bytearray()).extend(data)
        super().task_output(task, data)

    @property
    def texts(self) -> dict[str, str]:
        return {task: data.decode("utf-8", "replace") for task, data in self._output.items()}
