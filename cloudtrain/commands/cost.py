"""`cloudtrain cost`: what clusters on record have cost, by the prices agreed at `up`."""

from __future__ import annotations

import time
from calendar import timegm
from collections import defaultdict
from collections.abc import Iterator, Mapping

from cloudtrain.core import moments
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.task_id import TaskId
from cloudtrain.money.node_hours import CostSoFar, node_hours, total
from cloudtrain.state import Records, known_clusters


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
    parts: Mapping[str, CostSoFar] = field(default_factory=dict)
    """By what was billed: machines, disks, addresses."""
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
    """Cost of one cluster, or of all on record here, without traffic and stores. Computed from the
    prices on record and the times at which nodes were created and deleted, also of clusters of the
    same name before. No provider is asked, and no bill is read."""
    names = known_clusters() if name is None else (name,)
    moment = moments.now() if now is None else now
    return CostReport(clusters=tuple(_of(Records(each), moment) for each in names))


def _of(records: Records, now: float) -> ClusterCost:
    spans = node_hours(records.events(), is_up=records.is_open())
    try:
        provider = str(records.config().get("provider") or "") or None
    except ConfigError:
        provider = None
    roles, parts, by_month = (defaultdict[str, list[CostSoFar]](list) for _ in range(3))
    for span in spans:
        task = TaskId.of_node(span.node, records.name)
        roles[task.role if task else span.node].append(span.cost(0.0, now))
        for name, amount in span.parts(0.0, now).items():
            parts[name].append(amount)
        for month, begin, end in _months(span.begin, min(now, span.end or now)):
            if span.hours(begin, end, parts=True):
                by_month[month].append(span.cost(begin, end))
    return ClusterCost(
        name=records.name,
        provider=provider,
        cost=total(span.cost(0.0, now) for span in spans),
        node_hours=sum(span.hours(0.0, now) for span in spans),
        parts={name: total(amounts) for name, amounts in parts.items()},
        runs=tuple(
            RunCost(
                run=run.id,
                state=run.state,
                begin=run.created,
                end=run.ended,
                cost=total(
                    span.cost(run.created, now if run.ended is None else run.ended)
                    for span in spans
                ),
            )
            for run in records.runs()
        ),
        roles={role: total(costs) for role, costs in roles.items()},
        months={month: total(by_month[month]) for month in sorted(by_month)},
    )


def _months(begin: float, end: float) -> Iterator[tuple[str, float, float]]:
    """Each month, in UTC, that has a part of this time: its name, beginning and end."""
    at = begin
    while at < end:
        year, month, *_ = time.gmtime(at)
        following = timegm((year + month // 12, month % 12 + 1, 1, 0, 0, 0))
        yield f"{year}-{month:02}", at, min(end, following)
        at = following
