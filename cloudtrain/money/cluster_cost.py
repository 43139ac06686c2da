"""What one cluster has cost: by run, role, month, and by what was billed."""

from __future__ import annotations

import time
from calendar import timegm
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.run_record import Run
from cloudtrain.core.task_id import TaskId
from cloudtrain.money.node_hours import CostSoFar, NodeHours, total


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


def cluster_cost(
    name: str, provider: str | None, spans: Sequence[NodeHours], runs: Sequence[Run], now: float
) -> ClusterCost:
    """Cost of a cluster's nodes until now (Unix time), by the prices on record."""
    roles, parts, by_month = (defaultdict[str, list[CostSoFar]](list) for _ in range(3))
    for span in spans:
        task = TaskId.of_node(span.node, name)
        roles[task.role if task else span.node].append(span.cost(0.0, now))
        for part, amount in span.parts(0.0, now).items():
            parts[part].append(amount)
        for month, begin, end in _months(span.begin, min(now, span.end or now)):
            if span.hours(begin, end, parts=True):
                by_month[month].append(span.cost(begin, end))
    return ClusterCost(
        name=name,
        provider=provider,
        cost=total(span.cost(0.0, now) for span in spans),
        node_hours=sum(span.hours(0.0, now) for span in spans),
        parts={part: total(amounts) for part, amounts in parts.items()},
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
            for run in runs
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
