"""Where things are in Resource Manager, and in which version of its API they are spoken of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

VERSIONS = (
    # The first that a path matches. Those of azure-mgmt-compute 39, -network 33, -resource 25.
    (r"/providers/microsoft\.compute/skus$", "2021-07-01"),
    (r"/providers/microsoft\.compute/disks\b", "2026-03-02"),
    (r"/providers/microsoft\.compute/", "2026-04-01"),
    (r"/providers/microsoft\.network/", "2026-03-01"),
    (r"/providers/microsoft\.devtestlab/", "2018-09-15"),
    (r"/providers/microsoft\.computeschedule/", "2025-05-01"),
    (r"/providers/microsoft\.authorization/", "2022-04-01"),
    (r"/providers/microsoft\.storage/", "2024-01-01"),
    (r"/providers/microsoft\.features/", "2021-07-01"),
    (r"/providers/microsoft\.resources/deployments", "2025-04-01"),
    (r"/(resourcegroups|resources|providers)\b", "2025-04-01"),
    (r"^/subscriptions\b", "2022-12-01"),
)


def version(path: str) -> str | None:
    """None for a link that the cloud gave: where it needs one, it has one."""
    return next((v for pattern, v in VERSIONS if re.search(pattern, path, re.IGNORECASE)), None)


def type_of(path: str) -> str:
    """What versions are told of: `microsoft.compute/virtualmachines`; "" of a group, a list."""
    _, provider, rest = path.partition("?")[0].lower().rpartition("/providers/")
    if not provider:
        return ""
    words = rest.strip("/").split("/")
    rest_of = words[3:4] if words[1:2] == ["locations"] and len(words) > 3 else words[1:2]
    return "/".join([words[0], *rest_of])


def newest(told: Sequence[str], wanted: str) -> str | None:
    """Of the versions that a refusal lists: the newest, a preview only where there is no other,
    and one that is newer than `wanted` only where all are."""
    ranked = sorted(told, key=lambda one: (one <= wanted, one.count("-") == 2, one))
    return ranked[-1] if ranked else None


@dataclass(frozen=True)
class Group:
    """A resource group, and the names in it; capitals as azure-mgmt writes them."""

    subscription: str
    name: str

    @property
    def itself(self) -> str:
        return f"/subscriptions/{self.subscription}/resourcegroups/{self.name}"

    @property
    def path(self) -> str:
        """What all ids in it begin with; no slash at its end."""
        return f"/subscriptions/{self.subscription}/resourceGroups/{self.name}"

    def vm(self, name: str) -> str:
        return f"{self.path}/providers/Microsoft.Compute/virtualMachines/{name}"

    def proximity(self, name: str) -> str:
        return f"{self.path}/providers/Microsoft.Compute/proximityPlacementGroups/{name}"

    def nic(self, node: str) -> str:
        return f"{self.path}/providers/Microsoft.Network/networkInterfaces/{node}"

    def address(self, node: str, zone: str) -> str:
        """An address stays in its zone, so each zone's has its own name."""
        name = f"{node}-{zone}" if zone else node
        return f"{self.path}/providers/Microsoft.Network/publicIPAddresses/{name}"

    def firewall(self, name: str) -> str:
        return f"{self.path}/providers/Microsoft.Network/networkSecurityGroups/{name}"

    def network(self, name: str) -> str:
        return f"{self.path}/providers/Microsoft.Network/virtualNetworks/{name}"

    def schedule(self, node: str) -> str:
        """The name is what the portal's own auto-shutdown looks for."""
        name = f"shutdown-computevm-{node}"
        return f"{self.path}/providers/Microsoft.DevTestLab/schedules/{name}"


def group_name(cluster: str, region: str) -> str:
    return f"cloudtrain-{cluster}-{region}"


def vm_of(id: str) -> tuple[Group, str] | None:
    """The group and name in a VM's id; None for another id.

    Lists tell groups' names in capitals at times; all of ours are small.
    """
    found = re.fullmatch(
        r"/subscriptions/([^/]+)/resourcegroups/([^/]+)/providers/"
        r"microsoft\.compute/virtualmachines/([^/]+)",
        id,
        re.IGNORECASE,
    )
    return (Group(found[1], found[2].lower()), found[3]) if found else None


def group_of(id: str) -> str:
    """The name of the group in an id, in lower case: ARM neither minds capitals nor keeps them."""
    found = re.search(r"/resourcegroups/([^/]+)", id, re.IGNORECASE)
    return found[1].lower() if found else ""


def last(id: str) -> str:
    return id.rstrip("/").rpartition("/")[2]


def zone_of(place_zone: str) -> str:
    """`1` of `eastus-1`; "" of ""."""
    return place_zone.rpartition("-")[2]


def local(url: str, prefix: str) -> str:
    """Path and query of a link that the cloud gave: it is followed at our own endpoint only, as
    our token goes along. `prefix` is the endpoint's own path."""
    parts = urlsplit(url)
    path = parts.path.removeprefix(prefix) if prefix else parts.path
    return f"{path}?{parts.query}" if parts.query else path
