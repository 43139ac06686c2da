"""Cost of a cluster so far, of its `limits.budget`, and the time until which the rest lasts; pure.

All amounts are upper bounds: every node from its request on, also if it was rolled back; a spot
price that is not known as the price on demand."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from cloudtrain.core.cloud import Cloud
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.events import Line
from cloudtrain.money.estimate import NodePrice, total
from cloudtrain.money.node_hours import CostSoFar, NodeHours, charged_hours, lasts
from cloudtrain.money.node_hours import total as sum_of

WARN_AT = 0.8
"""Part of the budget at which a run warns."""


@dataclass(frozen=True, kw_only=True)
class BudgetState:
    """A cluster's budget at one moment. $, Unix times."""

    limit: float
    spent: CostSoFar
    end: float | None
    """Latest expiry of its nodes with which they stay within the budget; None if not known."""
    stop: float | None
    """When runs are ended and the cluster is taken down, so that all has landed before `end`."""

    @property
    def share(self) -> float | None:
        """Part of the budget that is spent, at most."""
        return None if self.spent.most is None else self.spent.most / self.limit

    @property
    def nearly_spent(self) -> bool:
        return self.share is not None and self.share >= WARN_AT

    def is_spent(self, now: float) -> bool:
        return self.stop is not None and now >= self.stop

    def __str__(self) -> str:
        if self.share is None:
            return f"{self.spent} of {self.limit:g} $"
        bound = "" if self.spent.exact is not None else "at most "
        return f"{bound}{self.spent.most:.2f} $ of {self.limit:g} $ ({100 * self.share:.0f} %)"


def budget_state(limit: float, cloud: Cloud, lines: Iterable[Line], now: float) -> BudgetState:
    """State of the budget, by the journal."""
    spans = charged_hours(lines)
    spent = sum_of(span.cost(0.0, now) for span in spans)
    end = latest_end(limit, cloud, spans, now)
    stop = None
    if end is not None and end != float("inf"):
        stop = end - landing_time(end - min(span.begin for span in spans))
    return BudgetState(
        limit=limit, spent=spent, end=end if end != float("inf") else None, stop=stop
    )


def landing_time(life: float) -> float:
    """Seconds before the nodes' end at which a run is ended: a minute more than their agents need
    for a last sync (`runs/node_agents.last_sync`)."""
    return max(120.0, min(600.0, life / 20)) + 60.0


def latest_end(
    limit: float,
    cloud: Cloud,
    spans: Sequence[NodeHours],
    now: float,
    *,
    added: Mapping[str, NodePrice] | None = None,
    started: Collection[str] = (),
) -> float | None:
    """Latest common expiry of all nodes with which the cluster stays within the budget; None if a
    price is not known, infinite if nothing costs anything. `added`: nodes to be created now, in
    place of those of their names. `started`: stopped nodes to be started again."""
    new = added or {}
    spent = sum_of(span.cost(0.0, now) for span in spans).most
    stay = [span for span in spans if span.end is None and span.node not in new]
    run = [
        span for span in stay if span.expires is None or span.expires > now or span.node in started
    ]
    ended = [span for span in stay if span not in run]
    rates = [*(span.most for span in run), *(span.after_end for span in ended)]
    rate = total([*rates, *(price.most for price in new.values())])
    kept = [*(span.after_end for span in stay), *(price.after_end for price in new.values())]
    left = total(kept)
    if spent is None or rate is None or left is None or not all(span.whole for span in stay):
        return None
    return now + lasts(limit - spent, per_hour=rate, after_end=left, end_takes=cloud.end_takes)
