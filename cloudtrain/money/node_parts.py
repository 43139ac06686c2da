"""Prices of what is billed beside a node's machine: its root disk and its public address."""

from __future__ import annotations

from cloudtrain.core.cloud import Cloud, DiskPrice, cloud_of
from cloudtrain.core.model import NodePlan

HOURS = 730.0
"""Hours of a month, by which the clouds divide its price."""


def disk_gb(cloud: Cloud, node: NodePlan) -> int:
    """Size of the node's disk in GB; an image may make it larger."""
    if node.disk_gb or node.accelerator is None:
        return node.disk_gb or cloud.disk_gb
    return cloud.parts.gpu_disk_gb or cloud.gpu_disk_gb


def disk_per_hour(provider: str, node: NodePlan, place: str) -> float | None:
    """$/hour of the node's disk, whether it runs or not; None if not known. In a region whose price
    is not in the table it is an upper bound (`NodeParts.elsewhere`)."""
    cloud = cloud_of(provider)
    if cloud is None:
        return 0.0
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


def address_per_hour(provider: str, *, private: bool) -> float:
    """$/hour of a node's public address; 0 for a node without one."""
    cloud = cloud_of(provider)
    return 0.0 if cloud is None or private else cloud.parts.address
