"""Writes what a console shows as JSON, one object a line, for programs that follow a command."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TextIO

from cloudtrain.console.screen import Progress, Screen, TaskOutput
from cloudtrain.core import moments
from cloudtrain.core.protocols import Stage


class EventStream:
    """A console that passes everything on to another one, and writes it as events.
    docs/events.schema.json has their form. The loss of the stream does not disturb the command."""

    def __init__(
        self, screen: Screen, stream: TextIO, clock: Callable[[], float] = moments.now
    ) -> None:
        self._screen, self._stream, self._clock = screen, Progress(stream), clock
        self._output = TaskOutput(stream, colours=False)
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        self._screen.say(text)
        self.write("message", text=text)

    def warn(self, text: str) -> None:
        self._screen.warn(text)
        self.write("warning", text=text)

    @contextmanager
    def stage(self, title: str, total: int) -> Iterator[Stage]:
        begun = self._clock()
        self.write("stage begun", stage=title, total=total)
        try:
            with self._screen.stage(title, total) as stage:
                yield _StageEvents(self, stage, title)
        except BaseException:
            self.write("stage failed", stage=title, seconds=round(self._clock() - begun, 3))
            raise
        self.write("stage done", stage=title, seconds=round(self._clock() - begun, 3))

    def task_output(self, task: str, data: bytes) -> None:
        self._screen.task_output(task, data)
        for name, line in self._output.feed(task, data):
            self.write("output", task=name, line=line)

    def below(self, lines: Callable[[], Sequence[str]]) -> AbstractContextManager[None]:
        return self._screen.below(lines)

    def flush(self) -> None:
        self._screen.flush()
        for name, line in self._output.rest():
            self.write("output", task=name, line=line)

    def write(self, event: str, **facts: Any) -> None:
        """Write one event, at once."""
        line = json.dumps({"time": round(self._clock(), 3), "event": event, **facts})
        with self._lock:
            self._stream.write(f"{line}\n")
            self._stream.flush()


class _StageEvents:
    def __init__(self, events: EventStream, stage: Stage, title: str) -> None:
        self._events, self._stage, self._title = events, stage, title

    def node(self, name: str, text: str) -> None:
        self._stage.node(name, text)
        self._events.write("node", stage=self._title, node=name, text=text)

    def done(self, name: str, text: str = "") -> None:
        self._stage.done(name, text)
        self._events.write("node done", stage=self._title, node=name, text=text)
