"""Tells the time: by this machine's clock as it was when this process began, by the time passed
since, and by what clouds say.

The only module that reads the wall clock (tests/unit/test_architecture.py), as a wall clock
can jump: it is set anew, or was wrong."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

OFF = 60.0
"""Seconds from which a wrong clock is said and corrected: a `Date` has whole seconds, and no end
of a machine is more exact than a minute."""

SLOW = 10.0
"""Seconds of a request from which its `Date` says nothing: it may be a retry, or waited for us."""

_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def since_boot() -> float:
    """Seconds since this machine booted, also suspended ones (clock_gettime(2), CLOCK_BOOTTIME)."""
    return time.clock_gettime(_SINCE_BOOT)


def _wall() -> float:
    return time.time()


class Moments:
    """Unix times. For many threads."""

    def __init__(
        self, wall: Callable[[], float] = _wall, passed: Callable[[], float] = since_boot
    ) -> None:
        self._passed, self._lock = passed, threading.Lock()
        self._unsaid = ""
        self.wall = wall
        """Unix time by this machine's clock now, by which files and others' tokens are dated."""
        self.began = wall() - passed()
        """When this machine booted, by its clock as it was when this process began."""
        self.offset = 0.0
        """Seconds by which that clock is behind the clouds'; 0 below `OFF`."""
        self.heard = 0.0
        """The same, as this process has heard it."""
        self.say: Callable[[str], None] | None = None
        """Says that the clock is wrong; see `said_to`."""
        self.changed: Callable[[], None] | None = None
        """Called when `offset` has changed."""

    def now(self) -> float:
        """Unix time. Later changes of this machine's clock do not change it."""
        return self.began + self._passed() + self.offset

    def hear(self, date: str | None, *, asked: float, who: str) -> None:
        """Hear the `Date` header (RFC 9110, 6.6.1) of an answer that has just come to a request
        sent at `asked`, by `since_boot`. What is no date is ignored, and so is an answer that came
        before it was asked for: requests measures by this machine's clock, which may be set back.
        """
        from email.utils import parsedate_to_datetime

        answered = self._passed()
        if date is None or not 0.0 <= answered - asked <= SLOW:
            return
        try:
            theirs = parsedate_to_datetime(date).timestamp() + 0.5
        except (TypeError, ValueError, OverflowError):
            return
        behind = theirs - (self.began + (asked + answered) / 2)
        with self._lock:
            new = behind if abs(behind) >= OFF else 0.0
            if abs(new - self.heard) < OFF:
                return
            self.heard = new
            is_new = abs(new - self.offset) >= OFF
            if is_new:
                self.offset = new
            self._unsaid = said(new, who) if new else ""
        if is_new and self.changed is not None:
            self.changed()
        self._say_it()

    @contextmanager
    def said_to(self, listener: Callable[[str], None]) -> Iterator[None]:
        """Say to this function that the clock is wrong, once in a process, when this is known."""
        before, self.say = self.say, listener
        self._say_it()
        try:
            yield
        finally:
            self.say = before

    def _say_it(self) -> None:
        with self._lock:
            text, listener = self._unsaid, self.say
            if listener is not None:
                self._unsaid = ""
        if text and listener is not None:
            listener(text)


def wrong_by(offset: float, who: str) -> str:
    """`the clock of this machine is 20 h ahead of that of Azure`."""
    way, amount = "behind" if offset > 0 else "ahead of", f"{abs(offset):.0f} s"
    for unit, size in (("min", 60.0), ("h", 3600.0), ("days", 86400.0)):
        if round(abs(offset) / size) >= 2:
            amount = f"{abs(offset) / size:.0f} {unit}"
    return f"the clock of this machine is {amount} {way} that of {who}"


def said(offset: float, who: str) -> str:
    return (
        f"{wrong_by(offset, who)}: ends are set "
        "and compared by theirs; set the clock right, as the times of files and logs go by it"
    )


MOMENTS = Moments()
now = MOMENTS.now
wall = MOMENTS.wall
hear = MOMENTS.hear


def answered(response: Any, who: str) -> None:
    """Hear the `Date` of an answer of the library requests, from one of its hooks."""
    asked = since_boot() - response.elapsed.total_seconds()
    hear(response.headers.get("Date"), asked=asked, who=who)


# ── Seconds in which this process could listen ────────────────────────────────────────────────
# For everything that may have been silent only because nobody listened. A laptop whose lid is
# closed and a stopped process (SIGSTOP) hear nothing, and what was sent to them meanwhile is read
# only after they go on. Those seconds do not count here.

TICK = 1.0
"""Seconds between two ticks."""
LATE = 5.0
"""Seconds after which a tick shows that nobody listened; less can be a busy machine."""
READS = 5.0
"""Seconds after that which do not count either: what has arrived meanwhile is being read."""


class Awake:
    """A clock that stands still while its process does, if asked every `LATE` seconds."""

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
    may be old after each, such as that a lease is its own."""
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
