"""Timeouts, retries and polling for calls to a cloud."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CloudError, NoNetworkError, RateError, TransientError
from cloudtrain.core.network import HINT, no_network
from cloudtrain.core.retry import CLOCK, NODE_LISTED, Clock, Retry, poll_until, report_wait

T = TypeVar("T")

CALLS = Retry(pause=0.5, backoff=2.0, longest=30.0, jitter=0.5, tries=9, within=90.0)
"""Retries for throttled or unanswered calls: a minute and a half, as clouds count rates per minute.
"""

POLLS = Retry(pause=0.2, backoff=1.1, longest=5.0)
"""Polling intervals: a change is noticed at most a tenth of the waiting time late."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """All durations, in seconds; tests pass in their own, and a clock."""

    calls: Retry = CALLS
    polls: Retry = POLLS
    boot: float = 600.0
    """Time allowed until every VM runs."""
    listing: float = NODE_LISTED
    """Time allowed until a new VM is listed."""
    clock: Clock = CLOCK

    def call(
        self,
        work: Callable[[], T],
        *,
        also: type[CloudError] | None = None,
        unless: Callable[[CloudError], bool] | None = None,
    ) -> T:
        """Run `work`, again after TransientError, RateError and `also`, once the cloud allows it.
        Only for idempotent calls."""
        answers = (RateError, also or RateError)

        def hopeless(error: CloudError) -> bool:
            return isinstance(error, NoNetworkError) or (unless is not None and unless(error))

        return replace(self.calls, answers=answers).call(
            work,
            on=(TransientError, *answers),
            unless=hopeless,
            before_pause=lambda error, pause, taken: report_wait(
                f"retrying in {pause:.0f} s: {error.message}", taken=taken + pause
            ),
            clock=self.clock,
        )

    def until(self, ask: Callable[[], T | None], *, within: float, what: str = "") -> T | None:
        """Poll `ask` until it returns something other than None, and return that; None after
        `within` seconds. A long wait is reported as waiting for `what`."""
        polls = replace(self.polls, within=within)
        return poll_until(ask, polls, waits_for=what, clock=self.clock)


def require_network(url: str) -> None:
    """Raise NoNetworkError if this machine has no network, unless the host was reached before."""
    why = no_network(url)
    if why is not None:
        raise NoNetworkError(why, hint=HINT)


TIMING = Timing()
