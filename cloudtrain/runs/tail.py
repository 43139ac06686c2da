"""Follows the log and state of tasks over any number of connections, and shows lines of logs."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue

from cloudtrain.console.forwarding import ForwardingConsole
from cloudtrain.console.lines import LogLines, clean
from cloudtrain.core import metrics, moments
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CloudtrainError, UsageError
from cloudtrain.core.model import Node
from cloudtrain.core.protocols import Console, Transport
from cloudtrain.core.retry import LOG_SILENT, Clock, Retry, poll_until
from cloudtrain.core.run_record import Run, Task
from cloudtrain.runs import task_commands
from cloudtrain.runs.attempt_state import TAIL
from cloudtrain.runs.tasks import folder_of
from cloudtrain.state.files import FULL
from cloudtrain.state.followed import MetricsFile, append
from cloudtrain.state.line_times import Arrival, ArrivalIndex, time_at

AGAIN = Retry(pause=1.0)
"""Retries of following a task, until its end has arrived."""


@dataclass(frozen=True)
class NodeSilent:
    """The node did not answer."""

    reason: str


@dataclass(frozen=True)
class Event:
    """News of a task in its attempt: bytes of its log, already in the local log, what its node
    reports of it, or that its node did not answer. `AttemptEnd` comes after every byte of the log.
    """

    task: Task
    news: bytes | task_commands.FollowFact | NodeSilent


class Events:
    """Events in their order. Bytes of a task's log that wait are one event, of which the last TAIL
    are kept: whoever takes them may be busy for minutes, and the log here has all. A failure in a
    thread that follows is raised in the one that takes events, which would wait for ever."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Event | Exception] = SimpleQueue()
        self._logs: dict[tuple[str, int], bytearray] = {}
        self._lock = threading.Lock()

    def put(self, event: Event) -> None:
        with self._lock:
            if isinstance(event.news, bytes):
                key = event.task.name, event.task.attempt
                waits = key in self._logs
                log = self._logs.setdefault(key, bytearray())
                log += event.news
                del log[:-TAIL]
                if waits:
                    return
            self._queue.put(event)

    def fail(self, error: Exception) -> None:
        self._queue.put(error)

    def get(self, timeout: float) -> Event:
        """The next one; raises queue.Empty after so many seconds."""
        event = self._queue.get(timeout=timeout) if timeout else self._queue.get_nowait()
        if isinstance(event, Exception):
            raise event
        if not isinstance(event.news, bytes):
            return event
        with self._lock:
            log = self._logs.pop((event.task.name, event.task.attempt))
            return Event(event.task, bytes(log))


class Follower:
    """Follows each task in a thread; `events` yields what they see, in order for each attempt. The
    size of the local log file is the offset from which a log is continued, so that no second record
    can disagree with it."""

    def __init__(
        self, run: Run, transport: Transport, log_path: Callable[[Task], Path], console: Console
    ) -> None:
        self.events = Events()
        self._closed = threading.Event()
        self._warned: set[Path] = set()
        self._run = run
        self._transport = transport
        self._log_path = log_path
        self._console = console

    def follow(self, task: Task, node: Node) -> None:
        """Follow the task's attempt in a thread of its own, to its end."""
        threading.Thread(
            target=self._follow_or_fail, args=(task, node), daemon=True, name=f"follow {task.name}"
        ).start()

    def close(self) -> None:
        """Stop retrying; a thread that is waiting for bytes ends with its connection."""
        self._closed.set()

    def _follow_or_fail(self, task: Task, node: Node) -> None:
        try:
            self._follow(task, node)
        except Exception as error:  # noqa: BLE001  (of any kind: nobody else would tell)
            self.events.fail(error)

    def _follow(self, task: Task, node: Node) -> None:
        folder, log = folder_of(self._run, task), self._log_path(task)
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        log.touch(mode=0o600)

        def followed() -> task_commands.AttemptEnd | None:
            try:
                return self._follow_once(task, node, folder, log)
            except (CloudtrainError, OSError) as error:
                if not (isinstance(error, OSError) and error.errno in FULL):
                    self.events.put(Event(task, NodeSilent(str(error))))
                elif log not in self._warned:  # of this machine: no reason to end the run
                    self._warned.add(log)
                    self._console.warn(
                        f"{log}: disk full: the task continues, and its log is followed again, "
                        "without a gap, once there is space; until then its end is not noticed"
                    )
                return None

        end = poll_until(followed, AGAIN, clock=Clock(sleep=self._closed.wait))
        if end is not None:
            self.events.put(Event(task, end))

    def _follow_once(
        self, task: Task, node: Node, folder: str, log: Path
    ) -> task_commands.AttemptEnd | None:
        with log.open("ab") as file:
            reader, times = task_commands.FollowReader(), ArrivalIndex(log)
            samples = MetricsFile(log.with_suffix(metrics.SUFFIX))
            end: list[task_commands.AttemptEnd] = []

            def wrote(data: bytes) -> None:
                times.arrived(file.tell(), moments.now())
                append(file, data)
                self._console.task_output(task.name, data.replace(b"\0", b""))
                self.events.put(Event(task, data))

            def beat(data: bytes) -> None:
                for one in reader.feed(data):
                    if isinstance(one, task_commands.AttemptEnd):
                        end.append(one)
                    elif isinstance(one, task_commands.MetricsLine):
                        samples.add(one.text)
                    else:
                        self.events.put(Event(task, one))

            self._transport.run(
                node,
                task_commands.follow(folder, file.tell(), measured=samples.size),
                on_stdout=wrote,
                on_stderr=beat,
                timeout=LOG_SILENT,
            )
            return end[0] if end else None


def listening_ports(tasks: Sequence[Task], node: Node, transport: Transport) -> frozenset[str]:
    """Tasks of a node whose port is open there."""
    listing = "awk '$4 == \"0A\" {print substr($2, length($2) - 3)}' /proc/net/tcp /proc/net/tcp6"
    open_ports = transport.ask(node, listing).stdout.decode("ascii", "replace").split()
    return frozenset(task.name for task in tasks if f"{task.port:04X}" in open_ports)


# ── lines of logs, filtered ────────────────────────────────────────────────────


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
        `whole`, its unterminated last line is kept for what follows. Raises UsageError if `since`
        is given and the times of its lines are not known."""
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
