"""Values shared by the modules of the AWS driver."""

from __future__ import annotations

from collections.abc import Mapping

from cloudtrain.core.dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class AwsImage:
    id: str
    name: str
    root: str
    """Device name of the root disk."""
    size_gb: int


UNKNOWN_ROOM = 1 << 16
"""Free addresses where an endpoint does not tell them."""


@dataclass(frozen=True, kw_only=True)
class Subnet:
    """A subnet as DescribeSubnets has it: botocore's model of EC2, Subnet."""

    id: str
    vpc: str
    zone: str
    room: int = UNKNOWN_ROOM
    """Free addresses."""
    state: str = "available"
    ipv6_only: bool = False
    blocked: str = ""
    """How VPC Block Public Access blocks it: `block-bidirectional`, `block-ingress`."""
    is_default: bool = False
    gives_addresses: bool = False

    def unusable(self, *, private: bool) -> str:
        """Reason for which no node can work in the subnet; "" if one can."""
        if self.state != "available":
            return f"is {self.state}"
        if self.ipv6_only:
            return "is for IPv6 only"
        if self.blocked.startswith("block-") and not private:
            return f"cannot be reached: VPC Block Public Access is {self.blocked}"
        return ""


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
