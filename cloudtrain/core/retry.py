"""Retry policies and polling: how often, with what backoff, until when."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from cloudtrain.core import moments
from cloudtrain.core.moments import awake
from cloudtrain.core.wait_limits import NODE_AWAY

T = TypeVar("T")
E = TypeVar("E", bound=Exception)

LONG_WAIT = 10.0
"""Seconds after which a wait is reported."""
REPEATED_AFTER = 30.0
"""Seconds in which the same text is reported only once, over all threads."""


def _chance() -> float:
    import random

    return random.random()


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Source of time and chance; tests inject others."""

    now: Callable[[], float] = moments.now
    """Unix time, for moments: no jump of this machine's clock changes it."""
    monotonic: Callable[[], float] = time.monotonic
    """For durations."""
    awake: Callable[[], float] = awake
    """For silence: seconds in which this process listened."""
    sleep: Callable[[float], object] = time.sleep
    """True ends the wait for good, as `Event.wait` does once the event is set by Ctrl-C."""
    chance: Callable[[], float] = _chance
    """Uniform in [0, 1)."""


CLOCK = Clock()


@dataclass(frozen=True, kw_only=True)
class Retry:
    """A retry policy, or the pace of a poll. All durations in seconds."""

    pause: float
    """Pause before the second try."""
    backoff: float = 1.0
    """Factor for each further pause."""
    longest: float = math.inf
    """Maximum pause, except for a Retry-After."""
    jitter: float = 0.0
    """Share of each pause that is random."""
    tries: float = math.inf
    within: float = math.inf
    """Counted from the first try's start. No pause exceeds it, except for a Retry-After."""
    at_least: int = 2
    """Tries made even after that time: the first one alone may have taken that long."""
    answers: tuple[type[Exception], ...] = ()
    """Errors that prove the other side alive: limited by `tries`, not by `within`."""

    def pause_after(self, failures: int) -> float:
        """Backoff after a number of tries, without jitter, `within` and Retry-After."""
        try:
            return min(self.longest, self.pause * self.backoff ** (failures - 1))
        except OverflowError:
            return self.longest

    def call(
        self,
        work: Callable[[], T],
        *,
        on: type[E] | tuple[type[E], ...],
        unless: Callable[[E], bool] | None = None,
        before_pause: Callable[[E, float, float], None] | None = None,
        clock: Clock = CLOCK,
    ) -> T:
        """Call `work`, retrying while it raises one of `on`; return its result or raise its last
        error. Only for idempotent work. A `retry_after` of the error is honoured. `before_pause` is
        called with the error, the pause, and the seconds so far."""
        begun, failures = clock.monotonic(), 0
        while True:
            try:
                return work()
            except on as error:
                failures += 1
                taken = clock.monotonic() - begun
                pause = self._next_pause(failures, taken, error, clock)
                if pause is None or (unless is not None and unless(error)):
                    raise
                if before_pause is not None:
                    before_pause(error, pause, taken)
                if clock.sleep(pause):
                    raise

    def _next_pause(
        self, failures: int, taken: float, error: Exception, clock: Clock
    ) -> float | None:
        left = math.inf if isinstance(error, self.answers) else self.within - taken
        if failures >= self.tries or (left <= 0 and failures >= self.at_least):
            return None
        pause = self.pause_after(failures)
        if self.jitter:
            pause *= 1 - self.jitter * (1 - clock.chance())
        asked: float | None = getattr(error, "retry_after", None)
        return max(min(pause, max(0.0, left)), asked or 0.0)


AWAY = Retry(pause=1.0, within=NODE_AWAY)
"""For a node that does not answer: its sshd restarts, or accepts no more logins (MaxStartups)."""


class _NotYet(Exception):
    pass


def poll_until(
    ask: Callable[[], T | None], every: Retry, *, waits_for: str = "", clock: Clock = CLOCK
) -> T | None:
    """The first answer that is not None; None once its time is over. Polls at least once,
    and once more at the end. `waits_for` is shown to users once the wait is long."""

    def once() -> T:
        answer = ask()
        if answer is None:
            raise _NotYet
        return answer

    def report(_: _NotYet, __: float, taken: float) -> None:
        if waits_for:
            report_wait(f"waiting, {every.within:.0f} s at most: {waits_for}", taken=taken)

    try:
        return replace(every, at_least=1).call(once, on=_NotYet, before_pause=report, clock=clock)
    except _NotYet:
        return None


_listeners: list[Callable[[str], None]] = []
_reported: dict[str, float] = {}
_lock = threading.Lock()


@contextmanager
def waits_reported_to(listener: Callable[[str], None]) -> Iterator[None]:
    """Report long waits inside to this function only."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def report_wait(text: str, *, taken: float) -> None:
    """Report a wait if it is long; `taken` is its duration, planned or so far, in seconds."""
    with _lock:
        now = time.monotonic()
        lately = now - _reported.get(text, -REPEATED_AFTER) < REPEATED_AFTER
        if taken < LONG_WAIT or not _listeners or lately:
            return
        _reported[text] = now
        listener = _listeners[-1]
    listener(text)
