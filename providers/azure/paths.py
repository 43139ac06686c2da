"""Paths in Resource Manager and their API versions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from urllib.parse import urlsplit

from cloudtrain.core.dataclass import dataclass

VERSIONS = (
    (r"/providers/microsoft\.resourcegraph/", "2024-04-01"),
    # The first match counts. Versions of azure-mgmt-compute 39, -network 33, -resource 25.
    (r"/providers/microsoft\.compute/skus$", "2021-07-01"),
    (r"/providers/microsoft\.compute/disk(s|encryptionsets)\b", "2026-03-02"),
    (r"/providers/microsoft\.compute/", "2026-04-01"),
    (r"/providers/microsoft\.network/", "2026-03-01"),
    (r"/providers/microsoft\.devtestlab/", "2018-09-15"),
    (r"/providers/microsoft\.computeschedule/", "2025-05-01"),
    (r"/providers/microsoft\.authorization/", "2022-04-01"),
    (r"/providers/microsoft\.storage/", "2024-01-01"),
    (r"/providers/microsoft\.marketplaceordering/", "2021-01-01"),
    (r"/providers/microsoft\.managedidentity/", "2024-11-30"),
    (r"/providers/microsoft\.features/", "2021-07-01"),
    (r"/providers/microsoft\.resources/deployments", "2025-04-01"),
    (r"/(resourcegroups|resources|providers)\b", "2025-04-01"),
    (r"^/subscriptions\b", "2022-12-01"),
)


def version(path: str) -> str | None:
    """The API version for a path; None for a link of the cloud's, which has what it needs."""
    return next((v for pattern, v in VERSIONS if re.search(pattern, path, re.IGNORECASE)), None)


def type_of(path: str) -> str:
    """The resource type of a path: `microsoft.compute/virtualmachines`; "" for a group or list."""
    _, provider, rest = path.partition("?")[0].lower().rpartition("/providers/")
    if not provider:
        return ""
    words = rest.strip("/").split("/")
    rest_of = words[3:4] if words[1:2] == ["locations"] and len(words) > 3 else words[1:2]
    return "/".join([words[0], *rest_of])


def newest(versions: Sequence[str], wanted: str) -> str | None:
    """The newest of the versions that a refusal lists. A preview is chosen if there is nothing
    else, a version above `wanted` if all are."""
    ranked = sorted(versions, key=lambda one: (one <= wanted, one.count("-") == 2, one))
    return ranked[-1] if ranked else None


@dataclass(frozen=True)
class Group:
    """A resource group and the paths of resources in it, capitalized as in azure-mgmt."""

    subscription: str
    name: str

    @property
    def itself(self) -> str:
        return f"/subscriptions/{self.subscription}/resourcegroups/{self.name}"

    @property
    def path(self) -> str:
        """Prefix of all IDs in the group, without a trailing slash."""
        return f"/subscriptions/{self.subscription}/resourceGroups/{self.name}"

    def vm(self, name: str) -> str:
        return f"{self.path}/providers/Microsoft.Compute/virtualMachines/{name}"

    def proximity(self, name: str) -> str:
        return f"{self.path}/providers/Microsoft.Compute/proximityPlacementGroups/{name}"

    def nic(self, node: str) -> str:
        return f"{self.path}/providers/Microsoft.Network/networkInterfaces/{node}"

    def address(self, node: str, zone: str) -> str:
        """The path of a VM's public address. It cannot leave its zone, which is in its name."""
        name = f"{node}-{zone}" if zone else node
        return f"{self.path}/providers/Microsoft.Network/publicIPAddresses/{name}"

    def firewall(self, name: str) -> str:
        return f"{self.path}/providers/Microsoft.Network/networkSecurityGroups/{name}"

    def network(self, name: str) -> str:
        return f"{self.path}/providers/Microsoft.Network/virtualNetworks/{name}"

    def schedule(self, node: str) -> str:
        """The path of a VM's schedule, with the name that the portal's auto-shutdown expects."""
        name = f"shutdown-computevm-{node}"
        return f"{self.path}/providers/Microsoft.DevTestLab/schedules/{name}"


def group_name(cluster: str, region: str) -> str:
    return f"cloudtrain-{cluster}-{region}"


RESERVATION_GROUPS = "Microsoft.Compute/capacityReservationGroups"


def _id(subscription: str, value: str, *, kind: str) -> str:
    """The ID of a resource, given as its ID or as GROUP/NAME."""
    if value.startswith("/"):
        return value
    group, _, name = value.partition("/")
    return f"{Group(subscription, group).path}/providers/{kind}/{name}"


bastion = partial(_id, kind="Microsoft.Network/bastionHosts")
identity = partial(_id, kind="Microsoft.ManagedIdentity/userAssignedIdentities")
reservation_group = partial(_id, kind=RESERVATION_GROUPS)


def disk_key(subscription: str, value: str | None) -> str | None:
    """The ID of a disk encryption set, given as its ID or as GROUP/NAME."""
    kind = "Microsoft.Compute/diskEncryptionSets"
    return None if value is None else _id(subscription, value, kind=kind)


def reservation_name(id: str, subscription: str) -> str:
    """GROUP/NAME of a capacity reservation group; of another subscription, its ID."""
    shape = rf"/subscriptions/([^/]+)/resourcegroups/([^/]+)/providers/{RESERVATION_GROUPS}/([^/]+)"
    found = re.fullmatch(shape, id, re.IGNORECASE)
    own = found is not None and found[1].lower() == subscription.lower()
    return f"{found[2]}/{found[3]}" if found and own else id


def vm_of(id: str) -> tuple[Group, str] | None:
    """The group and name in a VM's ID; None for other IDs. Group names are converted to lower case,
    as lists sometimes capitalize them."""
    found = re.fullmatch(
        r"/subscriptions/([^/]+)/resourcegroups/([^/]+)/providers/"
        r"microsoft\.compute/virtualmachines/([^/]+)",
        id,
        re.IGNORECASE,
    )
    return (Group(found[1], found[2].lower()), found[3]) if found else None


def group_of(id: str) -> str:
    """The name of the group in an ID, in lower case: ARM ignores case and does not preserve it."""
    found = re.search(r"/resourcegroups/([^/]+)", id, re.IGNORECASE)
    return found[1].lower() if found else ""


def last(id: str) -> str:
    return id.rstrip("/").rpartition("/")[2]


def zone_of(place_zone: str) -> str:
    """The zone number: `1` for `eastus-1`; "" for ""."""
    return place_zone.rpartition("-")[2]


def local(url: str, prefix: str) -> str:
    """The path and query of a link that the cloud returned. `prefix` is the endpoint's own path.
    Links are followed only to our own endpoint, as the request carries our token."""
    parts = urlsplit(url)
    path = parts.path.removeprefix(prefix) if prefix else parts.path
    return f"{path}?{parts.query}" if parts.query else path
