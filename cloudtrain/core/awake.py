"""Seconds in which this process could listen: for everything that may have been silent only because
nobody listened.

A laptop whose lid is closed and a stopped process (SIGSTOP) hear nothing, and what was sent to them
meanwhile is read only after they go on. Those seconds do not count here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from cloudtrain.core.moments import since_boot

TICK = 1.0
"""Seconds between two ticks."""
LATE = 5.0
"""Seconds after which a tick shows that nobody listened; less can be a busy machine."""
READS = 5.0
"""Seconds after that which do not count either: what has arrived meanwhile is being read."""


class Awake:
    """A clock that stands still while its process does. For many threads.

    Something must ask it more often than every `LATE` seconds.
    """

    def __init__(self, passed: Callable[[], float] = since_boot) -> None:
        self._passed, self._lock = passed, threading.Lock()
        self._last = self._counted = passed()
        self._reads_until = 0.0
        self.gaps = 0
        """How often the process stood still."""

    def now(self) -> float:
        """Seconds, from any beginning."""
        with self._lock:
            now = self._passed()
            taken, self._last = now - self._last, now
            if taken > LATE:
                self.gaps += 1
                self._reads_until = now + READS
            elif now >= self._reads_until:
                self._counted += taken
            return self._counted


_awake: Awake | None = None
_starting = threading.Lock()


def awake() -> float:
    """Seconds in which this process could listen, from any beginning."""
    return _ticking().now()


def gaps() -> int:
    """Number of times that this process stood still since it first asked. What it knew of others
    may be old after each, such as that a lease is its own.
    """
    ticking = _ticking()
    ticking.now()
    return ticking.gaps


def _ticking() -> Awake:
    global _awake
    with _starting:
        if _awake is None:
            _awake = Awake()
            threading.Thread(target=_tick, args=(_awake,), name="awake", daemon=True).start()
        return _awake


def _tick(clock: Awake) -> None:
    ticks = threading.Event()
    while not ticks.wait(TICK):
        clock.now()


def _forget_in_child() -> None:
    global _awake, _starting
    _awake, _starting = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)
