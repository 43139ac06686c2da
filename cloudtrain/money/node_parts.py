"""Prices of what is billed beside a node's machine: its root disk and its public address."""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.core.cloud import Cloud, DiskPrice, cloud_of
from cloudtrain.core.model import ClusterConfig, NodePlan, Plan

HOURS = 730.0
"""Hours of a month, by which the clouds divide its price."""


def disk_gb(cloud: Cloud, node: NodePlan) -> int:
    """Size of the node's disk in GB; an image may make it larger."""
    if node.disk_gb or node.accelerator is None:
        return node.disk_gb or cloud.disk_gb
    return cloud.parts.gpu_disk_gb or cloud.gpu_disk_gb


def disk_per_hour(cloud: Cloud, node: NodePlan, place: str) -> float | None:
    """$/hour of the node's disk, whether it runs or not; None if not known. In a region whose price
    is not in the table it is an upper bound (`NodeParts.elsewhere`)."""
    gpus = node.accelerator is not None
    kinds = cloud.parts.disks
    kind = next((each for each in kinds if each.serves(node.machine or "", gpus=gpus)), kinds[-1])
    month = disk_per_month(cloud, kind, disk_gb(cloud, node), place)
    return None if month is None else month / HOURS


def disk_per_month(cloud: Cloud, kind: DiskPrice, gb: int, place: str) -> float | None:
    """$ a month of a disk in this place; None for one that is larger than the table."""
    month = kind.per_month(gb)
    factor = cloud.parts.regions.get(cloud.region_of(place), cloud.parts.elsewhere)
    return None if month is None else month * factor


# ── stopped nodes until `down` ───────────────────────────────────────────────


def left_by(config: ClusterConfig) -> Cloud | None:
    """The cloud, if it goes on billing disk and address of a node that has ended; else None."""
    cloud = cloud_of(config.provider)
    return cloud if cloud is not None and cloud.keeps_parts else None


def describe(
    cloud: Cloud, disks: Sequence[int | None], *, place: str = "", address: bool = True
) -> str:
    """`2 disks and addresses, about 16.90 $ a month`; a disk of None has the size of its image."""
    things = "disk" if len(disks) == 1 else f"{len(disks)} disks"
    if address:
        things += " and address" if len(disks) == 1 else " and addresses"
    where = place or cloud.first_region
    kind, each = cloud.parts.disks[-1], cloud.parts.address * HOURS if address else 0.0
    prices = [disk_per_month(cloud, kind, gb, where) for gb in disks if gb is not None]
    if len(prices) < len(disks) or None in prices:
        return f"{things} (dollars a month)"
    price = sum((price or 0.0) + each for price in prices)
    return f"{things}, about {price:.2f} $ a month"


def after_the_end(plan: Plan) -> str | None:
    """Note for a plan on a cloud that keeps billing stopped nodes; None elsewhere, or if nodes have
    no limit."""
    cloud = left_by(plan.config)
    if cloud is None or plan.config.limits.max_lifetime is None:
        return None
    disks, place = [node.disk_gb for node in plan.nodes], (*plan.config.placement, "")[0]
    things = describe(cloud, disks, place=place, address=not plan.config.network.private)
    return f"after max_lifetime, still billed until `down`: {things}"
