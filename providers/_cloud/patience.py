"""How long a cloud is waited for, and how often it is asked again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cloudtrain.errors import CloudError, RateError, TransientError
from cloudtrain.retry import report_wait

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Pace:
    """All durations in seconds; clock and sleep are passed in by tests."""

    tries: int = 9
    """Of one call that is throttled or not answered: a minute and a half in all, as the clouds
    count their rates by the minute."""
    at_most: float = 90.0
    """Seconds after which a call that is not answered is not made again; once it always is."""
    first: float = 0.5
    longest: float = 30.0
    poll_first: float = 0.2
    poll_longest: float = 5.0
    boot: float = 600.0
    """Until every VM runs."""
    listing: float = 60.0
    """Until a new VM is listed."""
    now: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random
    """Uniform in [0, 1)."""

    def patiently(self, call: Callable[[], T], *, retried: type[CloudError] | None = None) -> T:
        """`call`, again while it raises TransientError or RateError (or `retried`), with
        exponential backoff and jitter, and never sooner than the cloud asked for.

        Only for calls that do the same thing once however often they are made.
        """
        kinds: tuple[type[CloudError], ...] = (TransientError, RateError, retried or RateError)
        begun = self.clock()
        for number in range(self.tries - 1):
            try:
                return call()
            except kinds as error:
                late = number > 0 and self.clock() - begun >= self.at_most
                if isinstance(error, TransientError) and late:
                    raise
                backoff = min(self.longest, self.first * 2**number) * (0.5 + self.chance() / 2)
                wait = max(backoff, error.retry_after or 0.0)
                report_wait(
                    f"asked again in {wait:.0f} s: {error.message}",
                    taken=self.clock() - begun + wait,
                )
                self.sleep(wait)
        return call()

    def until(self, ask: Callable[[], T | None], *, within: float, what: str = "") -> T | None:
        """Asks, ever less often, until the answer is not None; None when the time is over.

        What it waits for is seen at most a tenth of its time too late; `what` that is, is told
        after a while.
        """
        begun = self.clock()
        deadline = begun + within
        wait = self.poll_first
        while True:
            answer = ask()
            if answer is not None or self.clock() >= deadline:
                return answer
            if what:
                report_wait(f"waiting, {within:.0f} s at most: {what}", taken=self.clock() - begun)
            self.sleep(min(wait, max(0.0, deadline - self.clock())))
            wait = min(self.poll_longest, wait * 1.1)


PACE = Pace()
