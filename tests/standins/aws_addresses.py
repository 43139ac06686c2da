"""Whether EC2 gives a new instance the private address that it is asked for.

https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceNetworkInterfaceSpecification.html
says that it must be in the subnet's range; aws/aws-cli#7178 quotes the refusal of one in use. That
an instance has its address until it is terminated, also while it shuts down, is documented; the
words for a reserved address are suspected.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from tests.standins.aws_query import real
from tests.standins.aws_world import World

RESERVED = 4
"""EC2 keeps a subnet's first four addresses, and its last, for itself:
https://docs.aws.amazon.com/vpc/latest/userguide/subnet-sizing.html
"""


def asked_address(given: dict[str, Any]) -> str:
    """The address that the first interface is to have; "" for any."""
    nic: dict[str, Any] = next(iter(given.get("NetworkInterfaces", [])), {})
    return str(nic.get("PrivateIpAddress") or "")


def check_address(world: World, region: str, given: dict[str, Any]) -> None:
    asked = asked_address(given)
    if not asked:
        return
    if not _is_in_range(world, region, given, asked):
        raise real("address-outside-subnet", asked=asked)
    if any(_has(one, asked) for one in world.alive(region)):
        raise real("address-in-use", asked=asked)


def _is_in_range(world: World, region: str, given: dict[str, Any], asked: str) -> bool:
    if world.nodes is not None:  # its nodes have addresses of this machine
        return bool(world.nodes.gave(asked))
    nic = given["NetworkInterfaces"][0]
    subnet = world.backend(region).get_subnet(nic.get("SubnetId") or given["SubnetId"])
    range = ipaddress.ip_network(subnet.cidr_block)
    number = int(ipaddress.ip_address(asked)) - int(range.network_address)
    return RESERVED <= number < range.num_addresses - 1


def _has(instance: Any, address: str) -> bool:
    return any(nic.private_ip_address == address for nic in instance.nics.values())
