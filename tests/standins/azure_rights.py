"""What the caller's role allows, and which actions a call needs besides its own."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from typing import Any

from tests.standins.azure_world import World

LINKED = (
    # https://learn.microsoft.com/azure/virtual-network/virtual-network-manage-subnet#permissions
    # and the same pages of addresses, security groups and interfaces.
    (r"/virtualnetworks/[^/]+/subnets/[^/]+$", "Microsoft.Network/virtualNetworks/subnets"),
    (r"/publicipaddresses/[^/]+$", "Microsoft.Network/publicIPAddresses"),
    (r"/networksecuritygroups/[^/]+$", "Microsoft.Network/networkSecurityGroups"),
    (r"/networkinterfaces/[^/]+$", "Microsoft.Network/networkInterfaces"),
)
IDENTITIES = "Microsoft.ManagedIdentity/userAssignedIdentities"
BESIDES = {
    "microsoft.compute/virtualmachines/write": "Microsoft.Compute/disks/write",
    "microsoft.computeschedule/locations/virtualmachinessubmitdeallocate/action": (
        "Microsoft.Compute/virtualMachines/deallocate/action"
    ),
}
"""A VM's disk is made with it; ComputeSchedule acts in the caller's name."""


def may(world: World, action: str) -> bool:
    def matches(rules: list[str]) -> bool:
        return any(fnmatch.fnmatchcase(action.lower(), one.lower()) for one in rules)

    return not matches(world.not_permitted) and (world.granted is None or matches(world.granted))


def linked_actions(action: str, body: Any) -> Iterator[str]:
    """Of what a PUT refers to."""
    if besides := BESIDES.get(action.lower()):
        yield besides
    if action.lower().endswith("/write"):
        if isinstance(body, dict):
            named = (body.get("identity") or {}).get("userAssignedIdentities") or {}
            yield from [f"{IDENTITIES}/assign/action" for _ in named]
        for id in _ids(body):
            for pattern, type in LINKED:
                if re.search(pattern, id, re.IGNORECASE):
                    yield f"{type}/join/action"


def _ids(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("id"), str):
            yield value["id"]
        for one in value.values():
            yield from _ids(one)
    elif isinstance(value, list):
        for one in value:
            yield from _ids(one)
