"""`cloudtrain cost`: what clusters on record have cost, by the prices agreed at `up`."""

from __future__ import annotations

import time
from calendar import timegm
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from cloudtrain.commands.node_notes import CostSoFar
from cloudtrain.errors import ConfigError
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
from cloudtrain.run_record import Run
from cloudtrain.state import Records, known_clusters
from cloudtrain.task_id import TaskId


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


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """All nodes of the cluster, from the start of a run to its end."""

    run: str
    state: str
    begin: float
    end: float | None
    cost: CostSoFar


@dataclass(frozen=True, kw_only=True)
class ClusterCost:
    name: str
    provider: str | None
    """From the record; None if that cannot be read."""
    cost: CostSoFar
    node_hours: float
    runs: tuple[RunCost, ...] = ()
    roles: Mapping[str, CostSoFar] = field(default_factory=dict)
    months: Mapping[str, CostSoFar] = field(default_factory=dict)
    """By month in UTC, `2026-11`."""


@dataclass(frozen=True, kw_only=True)
class CostReport:
    clusters: tuple[ClusterCost, ...]

    @property
    def cost(self) -> CostSoFar:
        return total(each.cost for each in self.clusters)

    @property
    def months(self) -> dict[str, CostSoFar]:
        names = sorted({month for each in self.clusters for month in each.months})
        return {
            month: total(c.months[month] for c in self.clusters if month in c.months)
            for month in names
        }


def cost(name: str | None, *, now: float | None = None) -> CostReport:
    """Cost of one cluster, or of all on record here, without disks, addresses and traffic.

    Computed from the prices on record and the times at which nodes were created and deleted, also
    of clusters of the same name before. No provider is asked, and no bill is read.
    """
    names = known_clusters() if name is None else (name,)
    moment = time.time() if now is None else now
    return CostReport(clusters=tuple(_of(Records(each), moment) for each in names))


def total(costs: Iterable[CostSoFar]) -> CostSoFar:
    """Their sum; not known as soon as one has no upper bound."""
    least, most = 0.0, 0.0
    known = True
    for each in costs:
        least += each.least
        most += each.most or 0.0
        known = known and each.most is not None
    return CostSoFar(least=least, most=most if known else None)


def _of(records: Records, now: float) -> ClusterCost:
    spans = node_hours(records.events(), is_up=records.is_open())
    try:
        provider = str(records.config().get("provider") or "") or None
    except ConfigError:
        provider = None
    roles: dict[str, list[CostSoFar]] = {}
    for span in spans:
        task = TaskId.of_node(span.node, records.name)
        roles.setdefault(task.role if task else span.node, []).append(span.cost(0.0, now))
    return ClusterCost(
        name=records.name,
        provider=provider,
        cost=total(span.cost(0.0, now) for span in spans),
        node_hours=sum(span.hours(0.0, now) for span in spans),
        runs=tuple(_run_cost(run, spans, now) for run in records.runs()),
        roles={role: total(costs) for role, costs in roles.items()},
        months=_by_month(spans, now),
    )


def _run_cost(run: Run, spans: Iterable[NodeHours], now: float) -> RunCost:
    end = now if run.ended is None else run.ended
    cost = total(span.cost(run.created, end) for span in spans)
    return RunCost(run=run.id, state=run.state, begin=run.created, end=run.ended, cost=cost)


def _by_month(spans: Iterable[NodeHours], now: float) -> dict[str, CostSoFar]:
    found: dict[str, list[CostSoFar]] = {}
    for span in spans:
        for month, begin, end in _months(span.begin, min(now, span.end or now)):
            if span.hours(begin, end):
                found.setdefault(month, []).append(span.cost(begin, end))
    return {month: total(found[month]) for month in sorted(found)}


def _months(begin: float, end: float) -> Iterator[tuple[str, float, float]]:
    """Each month, in UTC, that has a part of this time: its name, beginning and end."""
    at = begin
    while at < end:
        year, month, *_ = time.gmtime(at)
        following = timegm((year + month // 12, month % 12 + 1, 1, 0, 0, 0))
        yield f"{year}-{month:02}", at, min(end, following)
        at = following


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
