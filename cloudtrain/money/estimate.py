"""Price estimate of a cluster: $/hour over all nodes, for every placement that the config
allows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date, timedelta

from cloudtrain import catalog
from cloudtrain.catalog import availability
from cloudtrain.core.cloud import cloud_of, is_cloud
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.model import ClusterConfig, Node, NodeGroup, NodePlan, Plan
from cloudtrain.money import node_parts
from cloudtrain.money.node_hours import lasts

STALE_AFTER = timedelta(days=180)
"""Age from which prices are reported as old."""


@dataclass(frozen=True, kw_only=True)
class NodePrice:
    """Price of one node, in $/hour. None means "not known"."""

    machine: float | None
    """The machine with its accelerators, while it runs."""
    ceiling: float | None
    """Upper bound of `machine`."""
    disk: float | None = 0.0
    address: float = 0.0
    kept: bool = False
    """Whether disk and address are billed until `down` after the node has ended."""

    @property
    def per_hour(self) -> float | None:
        return total([self.machine, self.disk, self.address])

    @property
    def most(self) -> float | None:
        return total([self.ceiling, self.disk, self.address])

    @property
    def after_end(self) -> float | None:
        """$/hour from its end until `down`."""
        return total([self.disk, self.address]) if self.kept else 0.0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Price estimate in $/hour, without traffic. None means "not known"."""

    place: str
    """The most expensive of the placements; all figures are for it."""
    nodes: Mapping[str, NodePrice]
    """By node name."""
    unknown: tuple[str, ...]
    """Machines without a price: `spot g4dn.xlarge in us-east-1`."""
    date: date
    """Date of the oldest price used."""

    @property
    def machines(self) -> float | None:
        return total(node.machine for node in self.nodes.values())

    @property
    def disks(self) -> float | None:
        return total(node.disk for node in self.nodes.values())

    @property
    def addresses(self) -> float:
        return sum(node.address for node in self.nodes.values())

    @property
    def most(self) -> float | None:
        """Upper bound for an hour: uses the on-demand price if no spot price is known."""
        return total(node.most for node in self.nodes.values())

    @property
    def after_end(self) -> float | None:
        """$/hour of what the nodes leave behind after their end."""
        return total(node.after_end for node in self.nodes.values())

    @property
    def stale(self) -> bool:
        return availability.today() - self.date > STALE_AFTER

    @property
    def per_hour(self) -> float | None:
        return total(node.per_hour for node in self.nodes.values())


def estimate(plan: Plan) -> Estimate | None:
    """Upper bound over all placements. None for providers that bill nothing. All nodes are in one
    placement, and any placement may be chosen: the most expensive counts, and one without a known
    price counts as more expensive than any."""
    cloud = cloud_of(plan.config.provider)
    if cloud is None:
        return None
    places = plan.config.placement or (cloud.first_region,)
    bills = [_at(plan, place) for place in places]
    return max(bills, key=lambda one: (one.most is None, one.most or 0.0, one.per_hour is None))


def budget_seconds(found: Estimate, config: ClusterConfig) -> float | None:
    """Seconds that `limits.budget` pays for such a cluster, at least; None without one, or if a
    price is not known."""
    limit, cloud = config.limits.budget, cloud_of(config.provider)
    if limit is None or cloud is None or found.most is None or found.after_end is None:
        return None
    return lasts(limit, per_hour=found.most, after_end=found.after_end, end_takes=cloud.end_takes)


def price_of(config: ClusterConfig, node: Node) -> NodePrice:
    """Price of an existing node by its actual machine type and disk; attached accelerators are
    taken from the config."""
    if not is_cloud(config.provider):
        return NodePrice(machine=0.0, ceiling=0.0)
    group = replace(config.nodes.get(node.role, NodeGroup()), machine=node.machine or None)
    exists = NodePlan(
        name=node.name,
        role=node.role,
        index=node.index,
        port=0,
        machine=node.machine or None,
        accelerator=catalog.accelerator_of(config.provider, group),
        provisioning=node.provisioning,
        disk_gb=max(node.disk_gb or 0, group.disk_gb or 0) or None,
    )
    return planned_price(config, exists, node.placement)


def planned_price(config: ClusterConfig, node: NodePlan, place: str) -> NodePrice:
    """Price of a node to be created in a zone or region."""
    provider, cloud = config.provider, cloud_of(config.provider)
    if cloud is None:
        return NodePrice(machine=0.0, ceiling=0.0)
    return NodePrice(
        machine=catalog.price(provider, node, place),
        ceiling=catalog.highest_price(provider, node, place),
        disk=node_parts.disk_per_hour(cloud, node, place),
        address=0.0 if config.network.private else cloud.parts.address,
        kept=cloud.keeps_parts,
    )


def _at(plan: Plan, place: str) -> Estimate:
    provider = plan.config.provider
    prices = {node.name: planned_price(plan.config, node, place) for node in plan.nodes}
    dates = [catalog.price_and_date(provider, node, place)[1] for node in plan.nodes]
    region = catalog.region_of(provider, place)
    missing = dict.fromkeys(
        _describe(provider, node) for node in plan.nodes if prices[node.name].machine is None
    )
    disks = dict.fromkeys(
        f"a disk of {node.disk_gb} GB" for node in plan.nodes if prices[node.name].disk is None
    )
    return Estimate(
        place=place,
        nodes=prices,
        unknown=tuple(f"{words} in {region}" for words in (*missing, *disks)),
        date=min((day for day in dates if day is not None), default=catalog.as_of(provider)),
    )


def _describe(provider: str, node: NodePlan) -> str:
    known = catalog.machine_type(provider, node.machine or "")
    attached = node.accelerator is not None and known is not None and bool(known.attachable)
    words = f"{node.machine} with {node.accelerator}" if attached else f"{node.machine}"
    market = node.provisioning.market
    return words if market == "on-demand" else f"{market} {words}"


def total(prices: Iterable[float | None]) -> float | None:
    """Sum of the prices; None if one of them is not known."""
    summands = list(prices)
    known = [price for price in summands if price is not None]
    return sum(known) if len(known) == len(summands) else None
