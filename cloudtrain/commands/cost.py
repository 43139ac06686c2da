"""`cloudtrain cost`: what clusters on record have cost, by the prices agreed at `up`."""

from __future__ import annotations

from cloudtrain.core import moments
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import ConfigError
from cloudtrain.money.cluster_cost import ClusterCost, cluster_cost
from cloudtrain.money.node_hours import CostSoFar, node_hours, total
from cloudtrain.state import Records, known_clusters


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
    return cluster_cost(records.name, provider, spans, records.runs(), now)
