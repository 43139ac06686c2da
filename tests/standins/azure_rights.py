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
RESERVATIONS = "Microsoft.Compute/capacityReservationGroups"
IDENTITIES = "Microsoft.ManagedIdentity/userAssignedIdentities"
BESIDES = {
    "microsoft.compute/virtualmachines/write": "Microsoft.Compute/disks/write",
    "microsoft.computeschedule/locations/virtualmachinessubmitdeallocate/action": (
        "Microsoft.Compute/virtualMachines/deallocate/action"
    ),
}
"""A VM's disk is made with it; ComputeSchedule acts in the caller's name."""


def may(world: World, action: str, scope: str) -> bool:
    def matches(rules: list[str]) -> bool:
        return any(fnmatch.fnmatchcase(action.lower(), one.lower()) for one in rules)

    granted = granted_in(world, scope)
    return not matches(world.not_permitted) and (granted is None or matches(granted))


def granted_in(world: World, scope: str) -> list[str] | None:
    """The actions of the roles that are assigned at the scope or above it; None: all."""
    if world.granted_at is None:
        return world.granted
    at = f"{scope.lower().rstrip('/')}/"
    roles = [given for top, given in world.granted_at.items() if at.startswith(f"{top.lower()}/")]
    return [action for given in roles for action in given]


def linked_actions(action: str, scope: str, body: Any) -> Iterator[tuple[str, str]]:
    """Of what a PUT refers to, each with its own scope."""
    if besides := BESIDES.get(action.lower()):
        yield besides, scope
    if action.lower().endswith("/write"):
        if isinstance(body, dict):
            named = (body.get("identity") or {}).get("userAssignedIdentities") or {}
            yield from [(f"{IDENTITIES}/assign/action", id) for id in named]
        for id in _ids(body):
            if re.search(r"/diskencryptionsets/[^/]+$", id, re.IGNORECASE):
                yield "Microsoft.Compute/diskEncryptionSets/read", id
            for pattern, type in LINKED:
                if re.search(pattern, id, re.IGNORECASE):
                    yield f"{type}/join/action", id
            if re.search(rf"/{RESERVATIONS}/[^/]+$", id, re.IGNORECASE):
                yield f"{RESERVATIONS}/deploy/action", id
                yield f"{RESERVATIONS}/capacityReservations/deploy/action", id


def _ids(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("id"), str):
            yield value["id"]
        for one in value.values():
            yield from _ids(one)
    elif isinstance(value, list):
        for one in value:
            yield from _ids(one)
