"""Billed intervals of each node of a cluster, with their prices, by the cluster's journal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from cloudtrain.core import events
from cloudtrain.core.dataclass import dataclass

STARTED_WITHIN = 900.0
"""Seconds between the start of the first of new nodes that waited in the cloud's queue and the
moment when all run, at most: PARTIAL of providers/base/create.py, and polls."""

MOST, AFTER_END = "most", "after_end"
"""Facts of NodeRequested.made: upper bounds of the node's $/hour, with its disk and address, and of
that after its end."""


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
    """Of its machine."""
    ceiling: float | None = None
    """Upper bound of a price that is not known."""
    disk: float | None = 0.0
    address: float = 0.0
    kept: bool = False
    """Whether disk and address are billed after `expires`, until it is deleted."""
    queued: bool = False
    """Whether its request may have waited in the cloud's queue (flex-start), unbilled."""
    whole: bool = False
    """False if the record has no prices of its disk and address: an earlier version's."""

    def cost(self, begin: float, end: float) -> CostSoFar:
        """$ for its part of the time from `begin` to `end`."""
        return total(self.parts(begin, end).values())

    def parts(self, begin: float, end: float) -> dict[str, CostSoFar]:
        """The same by what is billed: machines, disks, addresses."""
        runs, exists = self.hours(begin, end), self.hours(begin, end, parts=True)
        ceiling = self.price if self.price is not None else self.ceiling
        return {
            "machines": _amount(self.price, ceiling, runs),
            "disks": _amount(self.disk, self.disk, exists),
            "addresses": _amount(self.address, self.address, exists),
        }

    def hours(self, begin: float, end: float, *, parts: bool = False) -> float:
        """Hours in which its machine was billed, or with `parts` its disk and address."""
        expires = None if parts and self.kept else self.expires
        last = min(end, *(each for each in (self.end, expires) if each is not None), end)
        return max(0.0, last - max(begin, self.begin)) / 3600

    @property
    def most(self) -> float | None:
        """Upper bound in $/hour while it runs."""
        ceiling = self.price if self.price is not None else self.ceiling
        if ceiling is None or self.disk is None:
            return None
        return ceiling + self.disk + self.address

    @property
    def after_end(self) -> float | None:
        """$/hour after its end."""
        if not self.kept:
            return 0.0
        return None if self.disk is None else self.disk + self.address


def _amount(price: float | None, ceiling: float | None, hours: float) -> CostSoFar:
    most = ceiling * hours if ceiling is not None else None if hours else 0.0
    return CostSoFar(least=(price or 0.0) * hours, most=most)


def node_hours(lines: Iterable[events.Line], *, is_up: bool) -> tuple[NodeHours, ...]:
    """Every node that was ever placed, by the record. `is_up`: the last ones may still exist."""
    book = _Book()
    for event in filter(None, map(events.from_line, lines)):
        book.enter(event)
    if not is_up:
        book.close_all(book.last)
    return (*book.closed, *(span for name, span in book.open.items() if name in book.placed))


def charged_hours(lines: Iterable[events.Line]) -> tuple[NodeHours, ...]:
    """Every node of the current cluster that may have been billed, for an upper bound of its cost.
    From the first `up` on, also in candidates that were given up (BudgetContinued), with nodes that
    were rolled back, and with those that are being deleted until the record says so."""
    book, earlier = _Book(), tuple[NodeHours, ...]()
    for event in filter(None, map(events.from_line, lines)):
        if isinstance(event, events.ClusterGone):
            book.close_all(book.emptied or event.time or book.last)
            earlier, book = (*earlier, *book.closed, *book.refused), _Book()
        elif isinstance(event, events.BudgetContinued):
            since = event.since
            book.closed += [span for span in earlier if (span.end or since) >= since]
            earlier = ()
        elif isinstance(event, events.DownBegun):
            book.emptied = book.last = event.time or book.last
        elif not isinstance(event, events.NodeCreated):  # billed, maybe, before it is recorded
            book.enter(event)
    return (*book.closed, *book.refused, *book.open.values())


class _Book:
    """Spans of nodes, event by event. A node that was never placed was rolled back."""

    def __init__(self) -> None:
        self.open: dict[str, NodeHours] = {}
        self.placed: set[str] = set()
        self.closed: list[NodeHours] = []
        self.refused: list[NodeHours] = []
        """Of nodes that were never placed."""
        self.last = 0.0
        self.emptied: float | None = None
        """When the deletion of all nodes began."""
        self.uncertain = False
        """A rollback failed: what it was to delete may exist."""

    def enter(self, event: events.Event) -> None:
        now = self.last = event.time or self.last
        if isinstance(event, events.NodeRequested):
            self.close(event.node, now)
            span = _requested(event.node, event.made or {}, now)
            # Nodes that join others may start one by one: when is not on record.
            self.open[event.node] = replace(span, queued=span.queued and not self.placed)
            self.emptied = None
        elif isinstance(event, events.NodeCreated) and event.node in self.open:
            self.open[event.node] = replace(self.open[event.node], begin=now)
        elif isinstance(event, events.NodesPlaced):
            self.place(event, now)
        elif isinstance(event, events.EndMoved):
            for name, span in self.open.items():
                self.open[name] = replace(span, expires=event.expires)
        elif isinstance(event, events.NodeDeletionBegun):
            self.close(event.node, now)
            self.emptied = self.emptied and now
        elif isinstance(event, events.CleanupFailed):
            self.uncertain = True
        elif isinstance(event, events.PlacementRefused) and not self.uncertain:
            for name in self.open.keys() - self.placed:
                self.close(name, now)
        elif isinstance(event, events.DownBegun | events.ClusterGone):
            self.close_all(now)

    def place(self, event: events.NodesPlaced, now: float) -> None:
        self.emptied = None
        for name in event.places.keys() & self.open.keys():
            before = self.open[name]
            if before.queued and name not in self.placed:
                before = replace(before, begin=max(before.begin, now - STARTED_WITHIN))
            after = replace(
                before,
                price=event.prices.get(name),
                ceiling=event.ceilings.get(name),
                disk=event.disks.get(name, 0.0),
                address=event.addresses.get(name, 0.0),
                kept=event.kept,
                whole=name in event.disks,
                expires=event.expires.get(name, before.expires),
            )
            ended = before.expires is not None and before.expires <= now
            if name in self.placed and (ended or _rates(after) != _rates(before)):
                self.closed.append(replace(before, end=now))
                after = replace(after, begin=now)
            self.placed.add(name)
            self.open[name] = after

    def close(self, name: str, now: float) -> None:
        span = self.open.pop(name, None)
        if span is not None:
            (self.closed if name in self.placed else self.refused).append(replace(span, end=now))
        self.placed.discard(name)

    def close_all(self, now: float) -> None:
        for name in tuple(self.open):
            self.close(name, now)


def _requested(node: str, made: Mapping[str, Any], now: float) -> NodeHours:
    lifetime, most, after = (_number(made.get(key)) for key in ("lifetime", MOST, AFTER_END))
    kept = after or 0.0
    return NodeHours(
        node=node,
        begin=now,
        expires=now + lifetime if lifetime is not None else None,
        ceiling=None if most is None else max(0.0, most - kept),
        disk=None if most is None else kept,
        kept=bool(kept),
        queued=made.get("provisioning") == "flex-start",
        whole=most is not None,
    )


def _rates(span: NodeHours) -> tuple[float | None, ...]:
    return (span.price, span.ceiling, span.disk, span.address)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


# ── Amounts of money of which only bounds may be known ────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class CostSoFar:
    """$ so far, at least and at most; None if not known."""

    least: float
    most: float | None

    @property
    def exact(self) -> float | None:
        return self.least if self.least == self.most else None

    def __str__(self) -> str:
        if self.exact is not None:
            return f"{self.exact:.2f} $"
        if self.most is None:
            return f"≥ {self.least:.2f} $" if self.least else "not known"
        return f"≥ {self.least:.2f} $, ≤ {self.most:.2f} $"


def total(costs: Iterable[CostSoFar]) -> CostSoFar:
    """Their sum; not known as soon as one has no upper bound."""
    least, most = 0.0, 0.0
    known = True
    for each in costs:
        least += each.least
        most += each.most or 0.0
        known = known and each.most is not None
    return CostSoFar(least=least, most=most if known else None)


KEPT_FOR = 72 * 3600.0
"""Seconds that a budget pays for what ended nodes leave behind until `down`: a weekend."""


def lasts(amount: float, *, per_hour: float, after_end: float, end_takes: float) -> float:
    """Seconds until the nodes must end so that `amount` $ pay for them, for the `end_takes` seconds
    that their end takes, and for KEPT_FOR of `after_end` $/hour. Negative if the amount is too
    small; infinite if nothing costs anything."""
    left = amount - after_end * KEPT_FOR / 3600
    return left / per_hour * 3600 - end_takes if per_hour > 0 else float("inf")
