"""Maps the VMs in Resource Manager's four lists to our types, by pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import BusyError, CapacityError, CloudError, Scope
from cloudtrain.core.model import ON_DEMAND, SPOT, Node, NodeState, Provisioning
from cloudtrain.core.partial_list import NotAsked
from cloudtrain.providers.azure import faults, paths
from cloudtrain.providers.azure.client import failure_reason, state_of
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.answers import ip_address, typed, unix_time
from cloudtrain.providers.base.driver import Location, Vm
from cloudtrain.providers.base.http import Tree

STATES: Mapping[str, NodeState] = {
    # https://learn.microsoft.com/azure/virtual-machines/states-billing
    "starting": "starting",
    "running": "running",
    "stopping": "stopped",
    "stopped": "stopped",
    "deallocating": "stopped",
    "deallocated": "stopped",
    "hibernated": "stopped",
}


@dataclass(frozen=True, kw_only=True)
class Lists:
    """Resource Manager's four lists by ID in lower case, as it does not preserve the case."""

    vms: Mapping[str, Tree]
    views: Mapping[str, Tree]
    """Instance views of the VMs."""
    nics: Mapping[str, Tree]
    addresses: Mapping[str, Tree]
    dying: frozenset[str] = frozenset()
    """Names of groups that are being deleted, in lower case."""
    now: float = 0.0
    """Unix time."""
    within: float = math.inf
    """Seconds in which a VM is created, unless it is stuck."""


def by_id(things: Sequence[Tree]) -> dict[str, Tree]:
    return {str(thing.get("id", "")).lower(): thing for thing in things}


def to_vms(lists: Lists, of: str | None = None) -> Iterator[Vm | NotAsked]:
    """Convert the VMs, `of` one cluster alone; NotAsked for one whose labels cannot be ours."""
    for id, vm in lists.vms.items():
        found = _machine(id, vm, lists, of)
        if found is not None:
            yield found


def _machine(id: str, vm: Tree, lists: Lists, of: str | None) -> Vm | NotAsked | None:
    where = paths.vm_of(typed(vm, "id", str))
    if where is None:
        raise ValueError(f"a VM has no ID: {vm.get('id')!r:.60}")
    group, name = where[0], where[1].lower()  # ours are; ARM does not preserve the case of IDs
    known = labels.read(typed(vm, "tags", dict, null=True), of=of, named=name)
    if isinstance(known, labels.NotOurs):
        return known.on(f"VM {where[1]} in resource group {group.name}")
    if known is None:
        return None
    properties: Mapping[str, Any] = vm.get("properties") or {}
    place = place_of(vm)
    view = lists.views.get(id) or properties.get("instanceView") or {}
    dying = group.name.lower() in lists.dying
    reach: Scope = "zone" if vm.get("zones") else "region"
    state, error = condition(name, properties, view, dying=dying, reach=reach)
    created = unix_time(properties.get("timeCreated"))
    if state == "starting" and state_of(vm) == "creating" and created is not None:
        error = stuck(lists.within) if lists.now - created > lists.within else error
    internal, address = _addresses(properties, lists)
    return Vm(
        cluster=known.cluster,
        node=Node(
            name=name,
            state=state,
            address=address,
            internal=internal,
            placement=str(place),
            machine=str((properties.get("hardwareProfile") or {}).get("vmSize", "")),
            provisioning=_provisioning(properties, group.subscription),
            disk_gb=disk_gb(properties),
            identities=tuple((vm.get("identity") or {}).get("userAssignedIdentities") or ()),
            created=created,
            expires=known.expires,
            **known.node_fields,
        ),
        place=place,
        id=group.vm(name),
        error=error,
    )


def stuck(within: float) -> CapacityError:
    """The error for a VM that was still being created after `within` seconds."""
    words = f"Azure accepted the VM, and had not created it after {within / 60:.0f} min"
    error = CapacityError(words, scope="zone")
    error.stuck = True
    return error


def disk_gb(properties: Mapping[str, Any]) -> int | None:
    size = ((properties.get("storageProfile") or {}).get("osDisk") or {}).get("diskSizeGB")
    return size if isinstance(size, int) else None


def place_of(vm: Tree) -> Location:
    region = plain(str(vm.get("location", "")))
    zones = vm.get("zones") or ()
    return Location(region=region, zone=f"{region}-{zones[0]}" if zones else "")


def plain(region: str) -> str:
    """A region's name in lower case without spaces: `East US` and `eastus` are the same region."""
    return region.replace(" ", "").lower()


def condition(
    name: str, properties: Tree, view: Tree, *, dying: bool, reach: Scope = "region"
) -> tuple[NodeState, CloudError | None]:
    """The state of a VM, and the reason if that is a failure."""
    provisioning = str(properties.get("provisioningState", "")).lower()
    if dying or provisioning == "deleting":
        return "stopped", BusyError("the VM is being deleted", what=name, scope="region")
    codes = [str(status.get("code", "")).lower() for status in view.get("statuses") or ()]
    power = next((code.partition("/")[2] for code in codes if code.startswith("powerstate/")), "")
    if power not in ("", "unknown"):
        # A running VM is kept, even if a later change to it failed.
        return STATES.get(power, "starting"), None
    if provisioning == "failed":
        reason = failure_reason({"properties": {**properties, "instanceView": view}})
        return "stopped", faults.of_error("", reason, reach=reach).copy_with(what=name)
    # If the power state is not reported, a provisioned VM is taken as running.
    return ("running" if provisioning == "succeeded" else "starting"), None


def _addresses(properties: Tree, lists: Lists) -> tuple[str, str]:
    """The private address and that for our connections; "" while unknown."""
    nics = (properties.get("networkProfile") or {}).get("networkInterfaces") or ()
    nic = lists.nics.get(str(nics[0].get("id", "")).lower()) if nics else None
    configurations = ((nic or {}).get("properties") or {}).get("ipConfigurations") or ()
    inside: Tree = configurations[0].get("properties") or {} if configurations else {}
    internal = ip_address(inside.get("privateIPAddress"))
    public = inside.get("publicIPAddress")
    if not public:
        return internal, internal
    found = lists.addresses.get(str(public.get("id", "")).lower()) or public
    return internal, ip_address((found.get("properties") or {}).get("ipAddress"))


def _provisioning(properties: Mapping[str, Any], subscription: str) -> Provisioning:
    wish = (properties.get("capacityReservation") or {}).get("capacityReservationGroup") or {}
    if wish.get("id"):
        name = paths.reservation_name(str(wish["id"]), subscription)
        return Provisioning(market="reservation", name=name)
    return SPOT if str(properties.get("priority", "")).lower() == "spot" else ON_DEMAND
