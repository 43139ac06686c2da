"""Lets many threads wait for resources of one kind by polling one shared list.

Azure lists a hundred VMs in one call. Polling an operation per VM would take a hundred calls each
time, but Azure accepts only about 25 a second:
https://learn.microsoft.com/azure/azure-resource-manager/management/request-limits-and-throttling"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from cloudtrain.core.errors import CloudError, TransientError
from cloudtrain.core.paths import some
from cloudtrain.core.retry import report_wait
from cloudtrain.providers.azure import paths
from cloudtrain.providers.base.http import Tree
from cloudtrain.providers.base.timing import Timing

LATE = 0.1
"""Maximum delay in noticing the end, as a fraction of the time already taken."""
UNLISTED = 3
"""Number of lists without a resource after which the resource is queried by itself."""
REPORTED = 60.0
"""Seconds after which a wait is reported."""
NOT_DONE = "not done"
"""Code of the TransientError for what Azure did not finish in time."""


def interval(timing: Timing, taken: float, listed: float = 0.0) -> float:
    """The seconds until the next poll of an operation that has taken `taken` seconds so far.
    `listed`: seconds that the last list took, with a page for each hundred resources. The pause is
    as long, so that hundreds of nodes do not take up all calls that Azure accepts."""
    return min(timing.polls.longest, max(timing.polls.pause / 2, LATE * taken, listed))


class SharedPoll:
    """A shared list that is polled. `ask` fetches it; `settled` tells what need not wait."""

    def __init__(
        self, ask: Callable[[], Sequence[Tree]], settled: Callable[[Tree], bool], timing: Timing
    ) -> None:
        self._ask = ask
        self._settled = settled
        self._timing = timing
        self._changed = threading.Condition()
        self._waiting: dict[str, float] = {}
        """When each wait began."""
        self._pauses: dict[str, float] = {}
        """The `pause` of each wait."""
        self._asking = False
        self._round = 0
        self._listed = 0.0
        """Seconds that the last list took."""
        self._things: Mapping[str, Tree] = {}
        self._failure: CloudError | None = None

    def wait(self, id: str, *, within: float, pause: float = 0.0) -> Tree | None:
        """The resource with this id once it is settled; None if it is not listed.

        `pause`: seconds between two polls that Azure asked for. Raises the list's error, and
        TransientError (`NOT_DONE`) after `within` seconds. Only lists that were requested after
        this call count."""
        key, begun = id.lower(), self._timing.clock.monotonic()
        with self._changed:
            self._waiting[key], self._pauses[key] = begun, pause
            first = self._round + 1 + self._asking
        try:
            while self._timing.clock.monotonic() - begun < within:
                self._next_round(first)
                with self._changed:
                    if self._failure is not None:
                        raise self._failure
                    thing, rounds = self._things.get(key), self._round - first + 1
                if thing is None and rounds >= UNLISTED:
                    return None
                if thing is not None and self._settled(thing):
                    return thing
            name = paths.last(id)
            raise TransientError(f"not ready after {within:.0f} s", what=name, code=NOT_DONE)
        finally:
            with self._changed:
                del self._waiting[key], self._pauses[key]

    def _next_round(self, first: int) -> None:
        """Wait until list number `first` or a later one was fetched, by this thread or another."""
        with self._changed:
            wanted = max(first, self._round + 1)
        while True:
            with self._changed:
                while self._asking and self._round < wanted:
                    self._changed.wait()
                if self._round >= wanted:
                    return
                self._asking = True
                now = self._timing.clock.monotonic()
                taken = min(now - begun for begun in self._waiting.values())
                pause = min(self._pauses.values())
            try:
                pause = max(pause, interval(self._timing, taken, self._listed))
                self._timing.clock.sleep(pause)
                self._list()
                self._report()
            finally:
                with self._changed:
                    self._asking = False
                    self._changed.notify_all()

    def _list(self) -> None:
        things: Mapping[str, Tree] = {}
        failure, begun = None, self._timing.clock.monotonic()
        try:
            things = {str(thing.get("id", "")).lower(): thing for thing in self._ask()}
        except CloudError as error:
            failure = error
        with self._changed:
            self._things, self._failure = things, failure
            self._listed = self._timing.clock.monotonic() - begun
            self._round += 1

    def _report(self) -> None:
        """Say each minute what is still waited for."""
        now = self._timing.clock.monotonic()
        with self._changed:
            late = {
                paths.last(key): now - begun
                for key, begun in self._waiting.items()
                if (thing := self._things.get(key)) is not None and not self._settled(thing)
            }
        taken = max(late.values(), default=0.0)
        if taken >= REPORTED:
            text = f"Azure has been creating {some(late)} for {taken // 60:.0f} min"
            report_wait(text, taken=taken)
