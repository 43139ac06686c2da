"""What is asked again right before a deletion: that what is deleted was seen a moment ago, and that
the cluster is still this command's.

A laptop whose lid was closed, or a process that was stopped, goes on with a deletion that was
decided before: meanwhile another machine may have taken the cluster over, or made a new one of the
same name. https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html calls it
fencing.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from cloudtrain.errors import LookAgainError

TICK = 1.0
"""Seconds between two ticks."""
LATE = 5.0
"""Seconds by which a tick is late if this process, or its machine, stood still; a busy machine
makes it late by less."""

_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
Check = Callable[[], None]
_confirm: ContextVar[Check | None] = ContextVar("confirm", default=None)
_seen: ContextVar[Check | None] = ContextVar("seen", default=None)


@contextmanager
def confirmed_by(confirm: Check) -> Iterator[None]:
    """Have `confirm` called before each round of deletions inside: it raises if they may not go on.
    Also in threads of `fan_out`.
    """
    token = _confirm.set(confirm)
    try:
        yield
    finally:
        _confirm.reset(token)


def confirm() -> None:
    """Ask whether deletions may go on. Raises LeasedError."""
    asked = _confirm.get()
    if asked is not None:
        asked()


@contextmanager
def deleting_what_was_seen(before: int) -> Iterator[None]:
    """Have `refuse_stale` raise inside once this process has stood still since the listing of what
    is deleted. `before`: `gaps` when that began.
    """

    def check() -> None:
        if gaps() != before:
            raise LookAgainError("this process stood still since what it deletes was listed")

    token = _seen.set(check)
    try:
        yield
    finally:
        _seen.reset(token)


def refuse_stale() -> None:
    """Raise LookAgainError if this process stood still since it listed what it is about to delete.
    Drivers call it right before each request that deletes something.
    """
    check = _seen.get()
    if check is not None:
        check()


# ── How often this process stood still ───────────────────────────────────────


class Pulse:
    """Counts the times that it was asked, or ticked, much later than it should have been."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._lock = now, threading.Lock()
        self._last = now()
        self._gaps = 0

    def gaps(self) -> int:
        with self._lock:
            now = self._now()
            if now - self._last > TICK + LATE:
                self._gaps += 1
            self._last = now
            return self._gaps


_pulse: Pulse | None = None
_starting = threading.Lock()


def gaps() -> int:
    """How often this process or its machine stood still, since this was first asked."""
    global _pulse
    with _starting:
        if _pulse is None:
            _pulse = Pulse(lambda: time.clock_gettime(_SINCE_BOOT))
            threading.Thread(target=_tick, args=(_pulse,), name="pulse", daemon=True).start()
    return _pulse.gaps()


def _tick(pulse: Pulse) -> None:
    ticks = threading.Event()
    while not ticks.wait(TICK):
        pulse.gaps()


def _begin_anew() -> None:
    global _pulse, _starting
    _pulse, _starting = None, threading.Lock()


os.register_at_fork(after_in_child=_begin_anew)
