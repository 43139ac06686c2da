"""How long a cloud is waited for, and how often it is asked again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cloudtrain.errors import CloudError, RateError, TransientError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Pace:
    """All durations in seconds; clock and sleep are passed in by tests."""

    tries: int = 9
    """Of one call that is throttled or not answered: a minute and a half in all, as the clouds
    count their rates by the minute."""
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
        for number in range(self.tries - 1):
            try:
                return call()
            except kinds as error:
                backoff = min(self.longest, self.first * 2**number) * (0.5 + self.chance() / 2)
                self.sleep(max(backoff, error.retry_after or 0.0))
        return call()

    def until(self, ask: Callable[[], T | None], *, within: float) -> T | None:
        """Asks, ever less often, until the answer is not None; None when the time is over.

        What it waits for is seen at most a tenth of its time too late.
        """
        deadline = self.clock() + within
        wait = self.poll_first
        while True:
            answer = ask()
            if answer is not None or self.clock() >= deadline:
                return answer
            self.sleep(min(wait, max(0.0, deadline - self.clock())))
            wait = min(self.poll_longest, wait * 1.1)


PACE = Pace()
