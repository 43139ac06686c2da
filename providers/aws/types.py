"""Values that the parts of the AWS driver pass to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class AwsImage:
    id: str
    name: str
    root: str
    """The root disk's device name."""
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
    group: str
    """The security group's id."""
    placement_group: str
    """Its name; "" where there is none."""
    images: Mapping[str, AwsImage]
    """By node name."""
