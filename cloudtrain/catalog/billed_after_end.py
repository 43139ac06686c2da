"""Costs of stopped nodes until `down`: their disks and addresses."""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.cloud import Leftover, cloud_of
from cloudtrain.model import ClusterConfig, Plan


def left_by(config: ClusterConfig) -> Leftover | None:
    """What this config's nodes leave behind; None if nothing is billed after they stop."""
    cloud = cloud_of(config.provider)
    return cloud.leftover if cloud else None


def per_month(left: Leftover, disk_gb: int, *, address: bool) -> float | None:
    """$ per month of one node; None for a disk larger than the table."""
    disk = next((price for size, price in left.disks if disk_gb <= size), None)
    return None if disk is None else disk + (left.address if address else 0.0)


def describe(left: Leftover, disks: Sequence[int | None], *, address: bool = True) -> str:
    """`2 disks and addresses, about 16.90 $ a month`; a disk of None has the size of its image."""
    things = "disk" if len(disks) == 1 else f"{len(disks)} disks"
    if address:
        things += " and address" if len(disks) == 1 else " and addresses"
    prices = [per_month(left, gb, address=address) for gb in disks if gb is not None]
    if len(prices) < len(disks) or None in prices:
        return f"{things} (dollars a month)"
    return f"{things}, about {sum(price or 0.0 for price in prices):.2f} $ a month"


def after_the_end(plan: Plan) -> str | None:
    """Note for a plan on a cloud that keeps billing stopped nodes; None elsewhere, or if nodes have
    no limit.
    """
    left = left_by(plan.config)
    if left is None or plan.config.limits.max_lifetime is None:
        return None
    disks = [node.disk_gb for node in plan.nodes]
    things = describe(left, disks, address=not plan.config.network.private)
    return f"after max_lifetime, still billed until `down`: {things}"
