"""Shows what many tasks of a role print alike as one line: `worker ×39 │ Epoch 1/2`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

HELD = 0.5
"""Seconds for which a line waits for the same line of other tasks."""

LEAST = 3
"""Tasks whose equal lines become one."""

MOST = 2000
"""Lines that wait at once."""


@dataclass
class _Held:
    number: int
    line: str
    since: float
    tasks: list[str] = field(default_factory=list)


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
        for task, line in lines:
            self._tasks.setdefault(role_of(task), set()).add(task)
            last, same = self._last.get(task, -1), self._by_line.get((role_of(task), line), [])
            held = next((each for each in same if each.number > last), None)
            if held is None:
                held = _Held(self._number, line, now)
                self._number += 1
                self._held.append(held)
                self._by_line.setdefault((role_of(task), line), []).append(held)
            held.tasks.append(task)
            self._last[task] = held.number
        return list(self._due(now))

    def rest(self) -> list[tuple[str, str]]:
        return list(self._due(float("inf")))

    def _due(self, now: float) -> Iterator[tuple[str, str]]:
        """The lines that every task of their role has printed, or that have waited long enough."""
        while self._held:
            held = self._held[0]
            role = role_of(held.tasks[0])
            of_all = len(held.tasks) >= max(LEAST, len(self._tasks[role]))
            if not of_all and now - held.since < HELD and len(self._held) <= MOST:
                return
            self._held.popleft()
            same = self._by_line[role, held.line]
            same.remove(held)
            if not same:
                del self._by_line[role, held.line]
            if len(held.tasks) >= LEAST:
                yield f"{role} ×{len(held.tasks)}", held.line
            else:
                yield from ((task, held.line) for task in held.tasks)


def role_of(task: str) -> str:
    """`worker12` → `worker`."""
    return task.partition(" ")[0].rstrip("0123456789")
