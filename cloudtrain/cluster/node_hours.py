"""When each node of a cluster was billed, and at what price, by the cluster's journal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from cloudtrain.events import (
    ClusterGone,
    DownBegun,
    EndMoved,
    Event,
    Line,
    NodeCreated,
    NodeDeletionBegun,
    NodeRequested,
    NodesPlaced,
    PlacementRefused,
    from_line,
)
from cloudtrain.spent import CostSoFar


@dataclass(frozen=True, kw_only=True)
class NodeHours:
    """One node from its creation to its deletion. Unix time; $/hour, None if not known."""

    node: str
    begin: float
    end: float | None = None
    """None while it exists, by the record."""
    expires: float | None = None
    """When the cloud ends it, unless it is deleted before."""
    price: float | None = None
    ceiling: float | None = None
    """Upper bound of a price that is not known."""

    def cost(self, begin: float, end: float) -> CostSoFar:
        """$ for its part of the time from `begin` to `end`."""
        hours = self.hours(begin, end)
        ceiling = self.price if self.price is not None else self.ceiling
        most = ceiling * hours if ceiling is not None else None if hours else 0.0
        return CostSoFar(least=(self.price or 0.0) * hours, most=most)

    def hours(self, begin: float, end: float) -> float:
        last = min(end, *(each for each in (self.end, self.expires) if each is not None), end)
        return max(0.0, last - max(begin, self.begin)) / 3600


def node_hours(lines: Iterable[Line], *, is_up: bool) -> tuple[NodeHours, ...]:
    """Every node that was ever placed, by the record. `is_up`: the last ones may still exist."""
    book = _Book()
    for event in filter(None, map(from_line, lines)):
        book.enter(event)
    if not is_up:
        book.close_all(book.last)
    return (*book.closed, *(span for name, span in book.open.items() if name in book.placed))


class _Book:
    """Spans of nodes, event by event. A node that was never placed was rolled back, unbilled."""

    def __init__(self) -> None:
        self.open: dict[str, NodeHours] = {}
        self.placed: set[str] = set()
        self.closed: list[NodeHours] = []
        self.last = 0.0

    def enter(self, event: Event) -> None:
        now = self.last = event.time or self.last
        if isinstance(event, NodeRequested):
            self.close(event.node, now)
            lifetime = (event.made or {}).get("lifetime")
            expires = now + lifetime if isinstance(lifetime, int | float) else None
            self.open[event.node] = NodeHours(node=event.node, begin=now, expires=expires)
        elif isinstance(event, NodeCreated) and event.node in self.open:
            self.open[event.node] = replace(self.open[event.node], begin=now)
        elif isinstance(event, NodesPlaced):
            self.place(event)
        elif isinstance(event, EndMoved):
            for name, span in self.open.items():
                self.open[name] = replace(span, expires=event.expires)
        elif isinstance(event, NodeDeletionBegun):
            self.close(event.node, now)
        elif isinstance(event, PlacementRefused):
            for name in self.open.keys() - self.placed:
                del self.open[name]
        elif isinstance(event, DownBegun | ClusterGone):
            self.close_all(now)

    def place(self, event: NodesPlaced) -> None:
        for name in event.places.keys() & self.open.keys():
            self.placed.add(name)
            price, ceiling = event.prices.get(name), event.ceilings.get(name)
            self.open[name] = replace(self.open[name], price=price, ceiling=ceiling)

    def close(self, name: str, now: float) -> None:
        span = self.open.pop(name, None)
        if span is not None and name in self.placed:
            self.closed.append(replace(span, end=now))
        self.placed.discard(name)

    def close_all(self, now: float) -> None:
        for name in tuple(self.open):
            self.close(name, now)
