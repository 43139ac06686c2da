"""Many threads wait for things of one kind: one of them asks for the list, and tells the others.

Azure tells of a hundred VMs in one call; an operation of each would be a hundred calls, again and
again, and it takes some 25 a second:
https://learn.microsoft.com/azure/azure-resource-manager/management/request-limits-and-throttling
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from cloudtrain.errors import CloudError
from cloudtrain.providers._azure.client import Tree
from cloudtrain.providers._cloud.patience import Pace

LATE = 0.1
"""Of the time that something has taken already: by so much more, its end is seen late."""
UNLISTED = 3
"""Lists without it, after which it has to be asked for by itself."""


def interval(pace: Pace, taken: float) -> float:
    """Seconds until the next question about what has taken so long already."""
    return min(pace.poll_longest, max(pace.poll_first / 2, LATE * taken))


class Watch:
    """One list. `ask` tells it; `settled` says whether a thing of it is waited for no more."""

    def __init__(
        self, ask: Callable[[], Sequence[Tree]], settled: Callable[[Tree], bool], pace: Pace
    ) -> None:
        self._ask = ask
        self._settled = settled
        self._pace = pace
        self._changed = threading.Condition()
        self._waiting: dict[str, float] = {}
        self._asking = False
        self._round = 0
        self._things: Mapping[str, Tree] = {}
        self._failure: CloudError | None = None

    def wait(self, id: str, *, within: float) -> Tree | None:
        """The thing with this id, once it is settled; None where it is not listed, or not in time.

        Raises what the list is refused with. Only lists that were asked for after this call count.
        """
        key, begun = id.lower(), self._pace.clock()
        with self._changed:
            self._waiting[key] = begun
            first = self._round + 1 + self._asking
        try:
            while self._pace.clock() - begun < within:
                self._next_round(first)
                with self._changed:
                    if self._failure is not None:
                        raise self._failure
                    thing, rounds = self._things.get(key), self._round - first + 1
                if thing is None and rounds >= UNLISTED:
                    return None
                if thing is not None and self._settled(thing):
                    return thing
            return None
        finally:
            with self._changed:
                del self._waiting[key]

    def _next_round(self, first: int) -> None:
        """One more list, at least the one with the number `first`: by this thread or another."""
        with self._changed:
            wanted = max(first, self._round + 1)
        while True:
            with self._changed:
                while self._asking and self._round < wanted:
                    self._changed.wait()
                if self._round >= wanted:
                    return
                self._asking = True
                now = self._pace.clock()
                taken = min(now - begun for begun in self._waiting.values())
            with self._round_ended():
                self._pace.sleep(interval(self._pace, taken))
                self._list()

    def _list(self) -> None:
        things: Mapping[str, Tree] = {}
        failure = None
        try:
            things = {str(thing.get("id", "")).lower(): thing for thing in self._ask()}
        except CloudError as error:
            failure = error
        with self._changed:
            self._things, self._failure = things, failure
            self._round += 1

    @contextmanager
    def _round_ended(self) -> Iterator[None]:
        try:
            yield
        finally:
            with self._changed:
                self._asking = False
                self._changed.notify_all()
