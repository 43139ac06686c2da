"""Lines of logs, each with the time at which it arrived: filtered, and shown one by one."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cloudtrain.console.forwarding import ForwardingConsole
from cloudtrain.console.lines import LogLines, clean
from cloudtrain.core import moments
from cloudtrain.core.errors import UsageError
from cloudtrain.core.protocols import Console
from cloudtrain.state.line_times import Arrival, time_at


@dataclass(frozen=True, kw_only=True)
class LogLine:
    task: str
    text: str
    """Without control characters, as the console shows it."""
    time: float | None
    """Unix time at which it arrived at the machine that followed the run; None if not known."""


class LineView(ForwardingConsole):
    """A console that passes on lines of tasks that arrived after `since` and match `pattern`."""

    def __init__(
        self,
        console: Console,
        show: Callable[[LogLine], None],
        *,
        since: float | None = None,
        pattern: re.Pattern[str] | None = None,
        clock: Callable[[], float] = moments.now,
    ) -> None:
        super().__init__(console)
        self._show, self._clock = show, clock
        self._since, self._pattern = since, pattern
        self._rests: dict[str, LogLines] = {}
        self._lock = threading.Lock()

    def task_output(self, task: str, data: bytes) -> None:
        """Bytes that arrive now."""
        with self._lock:
            now = self._clock()
            for text in self._rest(task).feed(data):
                self._pass_on(LogLine(task=task, text=text, time=now))

    def recorded(
        self, task: str, data: bytes, index: Sequence[Arrival], tail: int | None, *, whole: bool
    ) -> None:
        """A log from its beginning, of which the last `tail` lines that fit are shown. If it is not
        `whole`, its unterminated last line is kept for what follows.

        Raises UsageError if `since` is given and the times of its lines are not known.
        """
        if self._since is not None and data and not index:
            raise UsageError(
                f"--since: the times of {task}'s lines are not on record here",
                hint="they are on the machine that followed the run, for runs of this version",
            )
        with self._lock:
            end = len(data) if whole else data.rfind(b"\n") + 1
            fit = [line for line in _lines(task, data[:end], index) if self._fits(line)]
            self._rest(task).feed(data[end:])
            for line in fit if tail is None else fit[len(fit) - min(tail, len(fit)) :]:
                self._show(line)

    def flush(self) -> None:
        """Show lines that were not terminated."""
        with self._lock:
            for task, rest in self._rests.items():
                for text in rest.flush():
                    self._pass_on(LogLine(task=task, text=text, time=self._clock()))

    def _rest(self, task: str) -> LogLines:
        return self._rests.setdefault(task, LogLines())

    def _fits(self, line: LogLine) -> bool:
        if self._since is not None and (line.time is None or line.time < self._since):
            return False
        return self._pattern is None or self._pattern.search(line.text) is not None

    def _pass_on(self, line: LogLine) -> None:
        if self._fits(line):
            self._show(line)


def _lines(task: str, data: bytes, index: Sequence[Arrival]) -> Iterator[LogLine]:
    offset = 0
    for raw in data.split(b"\n"):
        if raw or offset + len(raw) < len(data):
            text = clean(raw.replace(b"\0", b"").decode("utf-8", "replace"))
            yield LogLine(task=task, text=text, time=time_at(index, offset))
        offset += len(raw) + 1


def last_lines(data: bytes, tail: int | None) -> bytes:
    if tail is None:
        return data
    return b"".join(data.splitlines(keepends=True)[-tail:]) if tail > 0 else b""


class RoleFilter(ForwardingConsole):
    """A console that shows the output of some roles only."""

    def __init__(self, console: Console | LineView, roles: Sequence[str]) -> None:
        super().__init__(console)
        self._roles = frozenset(roles)
        self.by_line = isinstance(console, LineView)
        """True if lines are shown one by one, with the times at which they arrived."""

    def recorded(
        self, task: str, data: bytes, index: Sequence[Arrival], tail: int | None, *, whole: bool
    ) -> None:
        """Show the end of a log, and with `by_line`, its lines with the times of `index`."""
        if not self._takes(task):
            return
        if isinstance(self._console, LineView):
            self._console.recorded(task, data, index, tail, whole=whole)
        else:
            self._console.task_output(task, last_lines(data, tail))

    def task_output(self, task: str, data: bytes) -> None:
        if self._takes(task):
            super().task_output(task, data)

    def _takes(self, task: str) -> bool:
        return not self._roles or task in self._roles or task.rstrip("0123456789") in self._roles
