"""Price estimate of a cluster: $/hour over all nodes, for every placement that the config
allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta

from cloudtrain import catalog
from cloudtrain.catalog import availability
from cloudtrain.cloud import cloud_of, is_cloud
from cloudtrain.model import ClusterConfig, Node, NodeGroup, NodePlan, Plan

STALE_AFTER = timedelta(days=180)
"""Age from which prices are reported as old."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Price estimate in $/hour, without disks, addresses and traffic. None means "not known"."""

    place: str
    """The most expensive of the placements; all figures are for it."""
    nodes: Mapping[str, float | None]
    """By node name."""
    most: float | None
    """Upper bound for an hour: uses the on-demand price if no spot price is known."""
    unknown: tuple[str, ...]
    """Machines without a price: `spot g4dn.xlarge in us-east-1`."""
    date: date
    """Date of the oldest price used."""

    @property
    def stale(self) -> bool:
        return availability.today() - self.date > STALE_AFTER

    @property
    def per_hour(self) -> float | None:
        return total(self.nodes.values())


def estimate(plan: Plan) -> Estimate | None:
    """Upper bound over all placements. None for providers that bill nothing.

    All nodes are in one placement, and any placement may be chosen: the most expensive counts, and
    one without a known price counts as more expensive than any.
    """
    cloud = cloud_of(plan.config.provider)
    if cloud is None:
        return None
    places = plan.config.placement or (cloud.first_region,)
    bills = [_at(plan, place) for place in places]
    return max(bills, key=lambda one: (one.most is None, one.most or 0.0, one.per_hour is None))


def price_of(config: ClusterConfig, node: Node) -> float | None:
    """$/hour of the actual machine type; attached accelerators are taken from the config."""
    return prices_of(config, node)[0]


def prices_of(config: ClusterConfig, node: Node) -> tuple[float | None, float | None]:
    """The price, and its upper bound if it is not known."""
    if not is_cloud(config.provider):
        return 0.0, 0.0
    group = replace(config.nodes.get(node.role, NodeGroup()), machine=node.machine or None)
    exists = NodePlan(
        name=node.name,
        role=node.role,
        index=node.index,
        port=0,
        machine=node.machine or None,
        accelerator=catalog.resolve_group(config.provider, group, ()).accelerator,
        spot=node.spot,
    )
    price = catalog.price(config.provider, exists, node.placement)
    return price, catalog.highest_price(config.provider, exists, node.placement)


def _at(plan: Plan, place: str) -> Estimate:
    provider = plan.config.provider
    priced = {n.name: catalog.price_and_date(provider, n, place) for n in plan.nodes}
    dates = [day for _, day in priced.values() if day is not None]
    region = catalog.region_of(provider, place)
    missing = dict.fromkeys(
        _describe(provider, node) for node in plan.nodes if priced[node.name][0] is None
    )
    return Estimate(
        place=place,
        nodes={name: price for name, (price, _) in priced.items()},
        most=total(catalog.highest_price(provider, node, place) for node in plan.nodes),
        unknown=tuple(f"{words} in {region}" for words in missing),
        date=min(dates, default=catalog.as_of(provider)),
    )


def _describe(provider: str, node: NodePlan) -> str:
    known = catalog.machine_type(provider, node.machine or "")
    attached = node.accelerator is not None and known is not None and bool(known.attachable)
    words = f"{node.machine} with {node.accelerator}" if attached else f"{node.machine}"
    return f"spot {words}" if node.spot else words


def total(prices: Iterable[float | None]) -> float | None:
    """Sum of the prices; None if one of them is not known."""
    summands = list(prices)
    known = [price for price in summands if price is not None]
    return sum(known) if len(known) == len(summands) else None
