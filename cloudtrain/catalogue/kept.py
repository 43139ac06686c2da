"""What Azure bills for a node that has ended, until `down`: its disk and its address.

AWS and GCP delete both at the end. Prices are those of East US in $, as of 2026-11:
https://azure.microsoft.com/pricing/details/managed-disks/ (StandardSSD_LRS, a month) and
https://azure.microsoft.com/pricing/details/ip-addresses/ (Standard static, an hour).
"""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.model import Plan

DISKS = (
    # GiB up to which a disk is billed so, $ a month.
    (4, 0.30),
    (8, 0.60),
    (16, 1.20),
    (32, 2.40),
    (64, 4.80),
    (128, 9.60),
    (256, 19.20),
    (512, 38.40),
    (1024, 76.80),
    (2048, 153.60),
    (4096, 307.20),
)
ADDRESS = 0.005 * 730
"""$ a month."""


def per_month(disk_gb: int, *, address: bool) -> float | None:
    """$ per month of one node; None for a disk larger than the table."""
    disk = next((price for size, price in DISKS if disk_gb <= size), None)
    return None if disk is None else disk + (ADDRESS if address else 0.0)


def words(disks: Sequence[int | None], *, address: bool = True) -> str:
    """`2 disks and addresses, about 16.90 $ a month`; a disk of None has the size of its image."""
    things = "disk" if len(disks) == 1 else f"{len(disks)} disks"
    if address:
        things += " and address" if len(disks) == 1 else " and addresses"
    prices = [per_month(gb, address=address) for gb in disks if gb is not None]
    if len(prices) < len(disks) or None in prices:
        return f"{things} (dollars a month)"
    return f"{things}, about {sum(price or 0.0 for price in prices):.2f} $ a month"


def after_the_end(plan: Plan) -> str | None:
    """Note for a plan on a cloud that goes on billing; None elsewhere, or if nothing ends by
    itself.
    """
    if plan.config.provider != "azure" or plan.config.limits.max_lifetime is None:
        return None
    disks = [node.disk_gb for node in plan.nodes]
    return f"after their end, until `down`, still billed: {_sum(disks, plan)}"


def _sum(disks: Sequence[int | None], plan: Plan) -> str:
    return words(disks, address=not plan.config.network.private)
