"""Maps Google's resources to our types."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cloudtrain.core.model import ON_DEMAND, SPOT, Node, NodeState, Provisioning
from cloudtrain.core.partial_list import NotAsked
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.answers import ip_address, typed, unix_time
from cloudtrain.providers.base.driver import Location, Resource, Vm
from cloudtrain.providers.gcp.client import Json
from cloudtrain.providers.gcp.requests import read_description

STATES: dict[str, NodeState] = {
    # https://cloud.google.com/compute/docs/instances/instance-lifecycle
    "PENDING": "starting",
    "PROVISIONING": "starting",
    "STAGING": "starting",
    "REPAIRING": "starting",
    "RUNNING": "running",
    "PENDING_STOP": "stopped",
    "STOPPING": "stopped",
    "SUSPENDING": "stopped",
    "DEPROVISIONING": "stopped",
    "STOPPED": "stopped",
    "SUSPENDED": "stopped",
    "TERMINATED": "stopped",
}
LEAVING = frozenset({"PENDING_STOP", "STOPPING", "SUSPENDING", "DEPROVISIONING"})
"""States of a VM that is being stopped or deleted and accepts no requests."""


def to_vm(instance: Json) -> Vm | None:
    """Convert an instance to a Vm; None if it is not ours."""
    found = listed_vm(instance)
    return found if isinstance(found, Vm) else None


def listed_vm(instance: Json, of: str | None = None) -> Vm | NotAsked | None:
    """Convert an instance, `of` one cluster alone; NotAsked if its labels cannot be ours."""
    zone, name = last(typed(instance, "zone", str)), typed(instance, "name", str)
    parsed = labels.read(typed(instance, "labels", dict), of=of, named=name)
    if isinstance(parsed, labels.NotOurs):
        return parsed.on(f"instance {name} in {zone}")
    if parsed is None:
        return None
    public, internal = _addresses(instance)
    node = Node(
        name=name,
        state=STATES.get(str(instance.get("status")), "starting"),
        address=public,
        internal=internal,
        placement=zone,
        machine=last(instance.get("machineType")),
        provisioning=_provisioning(instance),
        disk_gb=_disk_gb(instance),
        identities=tuple(str(each.get("email")) for each in instance.get("serviceAccounts") or ()),
        created=unix_time(instance.get("creationTimestamp")),
        expires=_ends(instance) or parsed.expires,
        no_end=_no_end(instance, parsed.expires),
        **parsed.node_fields,
    )
    return Vm(
        cluster=parsed.cluster,
        node=node,
        place=place_of(zone),
        id=str(instance.get("id") or f"{zone}/{node.name}"),
    )


def _addresses(instance: Json) -> tuple[str, str]:
    """The address for our connections ("" while unknown) and the address for the other nodes."""
    interfaces = instance.get("networkInterfaces") or [{}]
    internal = ip_address(interfaces[0].get("networkIP"))
    outside = interfaces[0].get("accessConfigs")
    if not outside:
        return internal, internal
    return ip_address(outside[0].get("natIP")), internal


def _disk_gb(instance: Json) -> int | None:
    boot = [disk for disk in instance.get("disks") or () if disk.get("boot")]
    size = str(boot[0].get("diskSizeGb") or "") if boot else ""
    return int(size) if size.isdecimal() else None


def _ends(instance: Json) -> float | None:
    status = (instance.get("resourceStatus") or {}).get("scheduling") or {}
    return unix_time(status.get("terminationTimestamp"))


def _no_end(instance: Json, expires: float | None) -> str:
    """Reason for which Google does not end a running VM that our label says it ends: none of the
    three fields that say so is there. "" if it does.
    https://cloud.google.com/compute/docs/instances/limit-vm-runtime (documented)"""
    asked = instance.get("scheduling") or {}
    armed = _ends(instance) or asked.get("maxRunDuration") or asked.get("terminationTime")
    if expires is None or armed or instance.get("status") != "RUNNING":
        return ""
    return "Google holds no run time for it"


def to_resource(
    kind: str, item: Json, endings: Sequence[str] = ("",), of: str | None = None
) -> Resource | NotAsked | None:
    """Convert a resource of a kind that has no labels; None unless both its name and its
    description mark it as ours, NotAsked if the description cannot be ours."""
    parsed = read_description(typed(item, "description", str), of=of)
    if isinstance(parsed, labels.NotOurs):
        return parsed.on(f"{kind} {item.get('name')}")
    if parsed is None:
        return None
    if item.get("name") not in {f"{labels.group_name(parsed.cluster)}{e}" for e in endings}:
        return None
    return _resource(kind, item, parsed, last(item.get("region")))


def to_disk(item: Json, of: str | None = None) -> Resource | NotAsked | None:
    """Convert a disk; None if it is not ours or a VM uses it, NotAsked if it cannot be ours."""
    parsed = labels.read(typed(item, "labels", dict), of=of)
    if parsed is None or item.get("users"):
        return None
    if isinstance(parsed, labels.NotOurs):
        return parsed.on(f"disk {item.get('name')} in {last(item.get('zone'))}")
    return _resource("disk", item, parsed, last(item.get("zone")))


def _resource(kind: str, item: Json, parsed: labels.Labels, where: str) -> Resource:
    return Resource(
        cluster=parsed.cluster,
        kind=kind,
        name=str(item["name"]),
        id=str(item["name"]),
        region=where,
        **parsed.resource_fields,
    )


def place_of(zone: str) -> Location:
    return Location(region=zone.rpartition("-")[0], zone=zone)


def last(url: object) -> str:
    """The last part of a URL: `…/zones/us-east4-c` → `us-east4-c`."""
    return str(url or "").rpartition("/")[2]


def _provisioning(instance: Json) -> Provisioning:
    """Provisioning of the VM. A reservation of its own project has no project in its name."""
    scheduling = instance.get("scheduling") or {}
    if scheduling.get("provisioningModel") == "FLEX_START":
        return Provisioning(market="flex-start")
    if scheduling.get("provisioningModel") == "SPOT" or scheduling.get("preemptible"):
        return SPOT
    affinity = instance.get("reservationAffinity") or {}
    if affinity.get("consumeReservationType") != "SPECIFIC_RESERVATION":
        return ON_DEMAND
    name = str(next(iter(affinity.get("values") or ()), ""))
    own = re.search(r"projects/[^/]+/", str(instance.get("selfLink") or ""))
    prefix = f"{own[0]}reservations/" if own else ""
    return Provisioning(market="reservation", name=name.removeprefix(prefix))
