"""Subnets that are full, not ready, for IPv6 only, or behind VPC Block Public Access, as told by
DescribeSubnets (botocore's model of EC2: Subnet, BlockPublicAccessStates), of which moto knows
little."""

from __future__ import annotations

import re
from typing import Any

from werkzeug.wrappers import Request, Response

from tests.standins.aws_query import real


def described(world: Any, request: Request) -> Response:
    response: Response = world.by_moto(request)
    text = response.get_data(as_text=True)
    for id, facts in world.subnets.items():
        there = re.compile(rf"<item>(?:(?!</?item>).)*?<subnetId>{id}</subnetId>", re.DOTALL)
        found = there.search(text)
        if not found:
            continue
        start = found.start()
        head, rest = text[:start], text[start:]
        for name, value in _fields(facts).items():
            rest = re.sub(rf"<{name}>[^<]*</{name}>", f"<{name}>{value}</{name}>", rest, count=1)
        blocked = facts.get("blocked", "off")
        told = f"<internetGatewayBlockMode>{blocked}</internetGatewayBlockMode>"
        told = f"<blockPublicAccessStates>{told}</blockPublicAccessStates>"
        text = head + rest.replace("<item>", f"<item>{told}", 1)
    response.set_data(text)
    return response


def _fields(facts: dict[str, Any]) -> dict[str, Any]:
    names = {"room": "availableIpAddressCount", "state": "state", "ipv6_only": "ipv6Native"}
    return {names[key]: value for key, value in facts.items() if key in names}


def check_room(world: Any, given: dict[str, Any]) -> None:
    """Refuse an instance in a full subnet."""
    nic: dict[str, Any] = next(iter(given.get("NetworkInterfaces", [])), {})
    id = given.get("SubnetId") or nic.get("SubnetId")
    if world.subnets.get(id, {}).get("room", 1) < 1:
        raise real("subnet-full", subnet=str(id))
