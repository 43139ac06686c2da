"""Values shared by the modules of the AWS driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class AwsImage:
    id: str
    name: str
    root: str
    """Device name of the root disk."""
    size_gb: int


@dataclass(frozen=True, kw_only=True)
class Subnet:
    id: str
    vpc: str
    zone: str


@dataclass(frozen=True, kw_only=True)
class ClusterNetwork:
    """Network resources that the nodes of one cluster share in one zone."""

    subnet: Subnet
    groups: tuple[str, ...]
    """Ids of the security groups."""
    placement_group: str
    """Name of the placement group; "" if there is none."""
    reserved_group: str = ""
    """Name of the placement group of the plan's reservation, which is its owner's; "" if none."""
    images: Mapping[str, AwsImage]
    """Images by node name."""
    efa_cards: tuple[int, ...] = ()
    """Network cards of each node that get an Elastic Fabric Adapter."""
