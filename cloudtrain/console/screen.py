"""Shared by both consoles: task output on one stream, progress on the other."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Protocol, TextIO

from cloudtrain.console.lines import LogLines
from cloudtrain.core import protocols
from cloudtrain.core.dataclass import dataclass

COLOURS = ("cyan", "magenta", "blue", "green", "yellow", "red")
_CODES = {"cyan": 36, "magenta": 35, "blue": 34, "green": 32, "yellow": 33, "red": 31}
FOLDED = "(TensorFlow's log about itself is hidden: --full-log shows it)"


class Screen(protocols.Console, Protocol):
    """A console that can be closed."""

    def flush(self) -> None:
        """Show unterminated last lines of tasks. Nothing is drawn after that."""

    def below(self, lines: Callable[[], Sequence[str]]) -> AbstractContextManager[None]:
        """Keep lines at the bottom of a terminal, drawn anew several times a second, below
        everything else; nothing elsewhere."""


class TaskOutput:
    """Lines of tasks, each after its task's name: `chief0 │ Epoch 1/2`."""

    def __init__(self, stream: TextIO, *, colours: bool, folds: bool = False) -> None:
        """`folds` hides what TensorFlow logs about itself, and says so once."""
        self._stream, self._colours, self._folds = stream, colours, folds
        self._folded = False
        self._bar = "│" if can_write(stream, "│") else "|"
        self._tasks: dict[str, LogLines] = {}
        self._prefixes: dict[str, str] = {}
        self._lock = threading.Lock()

    def feed(self, task: str, data: bytes) -> list[tuple[str, str]]:
        """Return (task, line) pairs of the lines that are complete now."""
        with self._lock:
            lines = self._tasks.setdefault(task, LogLines()).feed(data)
            return [(task, line) for line in self._unfolded(lines)]

    def skip(self, task: str, data: bytes) -> int:
        """Leave out the lines that are complete now; returns how many."""
        with self._lock:
            return self._tasks.setdefault(task, LogLines()).skip(data)

    def rest(self) -> list[tuple[str, str]]:
        with self._lock:
            return [
                (task, line)
                for task, log in self._tasks.items()
                for line in self._unfolded(log.flush())
            ]

    def _unfolded(self, lines: list[str]) -> list[str]:
        if not self._folds:
            return lines
        shown = [line for line in lines if not _OWN_LOG.match(line)]
        if len(shown) < len(lines) and not self._folded:
            self._folded = True
            return [FOLDED, *shown]
        return shown

    def write(self, lines: list[tuple[str, str]]) -> None:
        text = self.text(lines)
        with self._lock:
            self._stream.write(text)
            self._stream.flush()

    def text(self, lines: list[tuple[str, str]]) -> str:
        """The lines as the stream gets them; a line of no task as it is."""
        return "".join([f"{self._prefix(task)}{line}\n" for task, line in lines])

    def _prefix(self, task: str) -> str:
        found = self._prefixes.get(task)
        if found is None:
            found = f"{task} {self._bar} " if task else ""
            if self._colours and task:
                found = f"\x1b[{_CODES[self._colour(task)]}m{found}\x1b[0m"
            self._prefixes[task] = found
        return found

    def _colour(self, task: str) -> str:
        """Colour of a task, the same throughout, in the order of their first lines."""
        known = list(self._tasks)
        if task not in self._tasks:  # several: that of the first one
            known = [role_of(each) for each in known]
            task = role_of(task)
        return COLOURS[known.index(task) % len(COLOURS)]


class Progress:
    """A stream whose loss is ignored: the run matters more than its progress lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = stream.encoding
        self.errors = stream.errors

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()


def counted(done: Mapping[str, str], total: int) -> str:
    """`3 of 3, nothing new`: how many nodes are done, and what all of them said in the end. Nothing
    with a figure, which would be that of one node."""
    said = set(done.values())
    count = f"{len(done)} of {total}" if total else "done"
    alike = said.pop() if len(said) == 1 else ""
    figure = len(done) > 1 and any(letter.isdigit() for letter in alike)
    return count if figure or not alike else f"{count}, {alike}"


def can_write(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


# ── lines of TensorFlow itself ─────────────────────────────────────────────────
# Those that its C++ runtime logs about itself, which a terminal hides.


_OWN_LOG = re.compile(
    r"WARNING: All log messages before absl::InitializeLog\(\)"
    r"|I\d{4} \d\d:\d\d:\S+ +\d+ [\w./-]+\.(?:cc|cu|h):\d+\] "
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: I (?:tensorflow|external|third_party|xla)/"
    r"|To enable the following instructions: .* rebuild TensorFlow"
    r"|\S+ .*\.cc:\d+\] Unable to register cu(?:DNN|FFT|BLAS) factory: "
    r"|\S+ .*\.cc:\d+\] computation placer already registered"
    r"|\S+ .*dataset\.cc:\d+\] Input of \S+ will not be optimized because the dataset does not "
    r"|/job:\w+/replica:\d+/task:\d+\s*$"
)
"""Information by the two loggers of TensorFlow (tsl/platform/default/logging.cc in 1.15 to 2.17,
absl's log_format.cc since; read), the three messages of every start that are no fault
(https://github.com/tensorflow/tensorflow/issues/62075), and that a dataset made in Python is not
optimized (framework/dataset.cc; read). The coordination service lists tasks on lines of their own,
below one of those (seen with 2.21). Python's loggers name a .py file."""


# ── what many tasks of a role print alike as one line: `worker ×39 │ Epoch 1/2` ─


HELD = 0.5
"""Seconds for which a line waits for the same line of other tasks."""

LEAST = 3
"""Tasks whose equal lines become one."""

MOST = 2000
"""Lines that wait at once."""


@dataclass
class _Held:
    number: int
    role: str
    line: str
    since: float
    tasks: list[str]


class AlikeLines:
    """Holds lines for a moment. The lines of each task stay in their order."""

    def __init__(self) -> None:
        self._held: deque[_Held] = deque()
        self._by_line: dict[tuple[str, str], list[_Held]] = {}
        self._last: dict[str, int] = {}
        self._tasks: dict[str, set[str]] = {}
        self._number = 0

    @property
    def waiting(self) -> bool:
        return bool(self._held)

    def add(self, lines: Iterable[tuple[str, str]], now: float) -> list[tuple[str, str]]:
        """Take (task, line) pairs; returns those to show now, as (task or `worker ×39`, line)."""
        before: str | None = None
        role, last = "", -1
        for task, line in lines:
            if task != before:
                before, role, last = task, role_of(task), self._last.get(task, -1)
                self._tasks.setdefault(role, set()).add(task)
            same = self._by_line.setdefault((role, line), [])
            held = next((each for each in same if each.number > last), None) if same else None
            if held is None:
                held = _Held(self._number, role, line, now, [])
                self._number += 1
                self._held.append(held)
                same.append(held)
            held.tasks.append(task)
            self._last[task] = last = held.number
        return list(self._due(now))

    def rest(self) -> list[tuple[str, str]]:
        return list(self._due(float("inf")))

    def _due(self, now: float) -> Iterator[tuple[str, str]]:
        """The lines that every task of their role has printed, or that have waited long enough."""
        while self._held:
            held, tasks = self._held[0], self._held[0].tasks
            of_all = len(tasks) >= max(LEAST, len(self._tasks[held.role]))
            if not of_all and now - held.since < HELD and len(self._held) <= MOST:
                return
            self._held.popleft()
            same = self._by_line[held.role, held.line]
            same.remove(held)
            if not same:
                del self._by_line[held.role, held.line]
            if len(tasks) >= LEAST:
                yield f"{held.role} ×{len(tasks)}", held.line
            else:
                for task in tasks:
                    yield task, held.line


def role_of(task: str) -> str:
    """`worker12` → `worker`."""
    return task.partition(" ")[0].rstrip("0123456789")
