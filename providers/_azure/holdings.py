"""What the subscription holds under our label, in all regions; and its removal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from cloudtrain.errors import BusyError, NotFoundError
from cloudtrain.fan_out import fan_out
from cloudtrain.providers._azure import listing, paths
from cloudtrain.providers._azure.client import Tree
from cloudtrain.providers._azure.connection import Arm, optional, side_by_side
from cloudtrain.providers._azure.ends import Ends
from cloudtrain.providers._azure.ground import BEING_DELETED
from cloudtrain.providers._azure.vms import Vms
from cloudtrain.providers._cloud import labels
from cloudtrain.providers._cloud.account import Machine, Place, Resource

GROUP = "resource group"
AT_ONCE = 64
KINDS = (
    # In the order in which they can be deleted.
    "Microsoft.DevTestLab/schedules",
    "Microsoft.Network/networkInterfaces",
    "Microsoft.Network/publicIPAddresses",
    "Microsoft.Compute/disks",
    "Microsoft.Network/virtualNetworks",
    "Microsoft.Network/networkSecurityGroups",
    "Microsoft.Compute/proximityPlacementGroups",
)
"""All that we make besides VMs and groups."""


class Holdings:
    """Safe to use from many threads."""

    def __init__(self, arm: Arm, vms: Vms, ends: Ends) -> None:
        self._arm = arm
        self._vms = vms
        self._ends = ends

    def machines(self, cluster: str | None, place: Place | None) -> tuple[Machine, ...]:
        """From five lists side by side, however many VMs there are."""
        compute = f"{self._arm.path}/providers/Microsoft.Compute/virtualMachines"
        network = f"{self._arm.path}/providers/Microsoft.Network"
        vms, views, nics, addresses, groups = side_by_side(
            lambda: self._arm.pages(compute),
            lambda: optional(lambda: self._arm.pages(compute, statusOnly="true")) or [],
            lambda: self._arm.pages(f"{network}/networkInterfaces"),
            lambda: self._arm.pages(f"{network}/publicIPAddresses"),
            self._groups,
        )
        ours = [vm for vm in vms if (name := _cluster(vm)) and cluster in (None, name)]
        lists = listing.Lists(
            vms=listing.by_id(ours),
            views=self._views(ours, views),
            nics=listing.by_id(nics),
            addresses=listing.by_id(addresses),
            dying=frozenset(str(g.get("name", "")).lower() for g in groups if _is_dying(g)),
        )
        return tuple(m for m in listing.machines(lists) if place in (None, m.place))

    def _views(self, vms: Sequence[Tree], listed: Sequence[Tree]) -> dict[str, Tree]:
        """Of each VM; asked one by one where the list does not tell them."""
        told = {
            id: (vm.get("properties") or {}).get("instanceView") or {}
            for id, vm in listing.by_id(listed).items()
        }
        missing = [vm for vm in vms if not listing.tells_power(told.get(str(vm["id"]).lower()))]

        def ask(vm: Tree) -> Tree:
            return optional(lambda: self._arm.get(f"{vm['id']}/instanceView")) or {}

        asked = fan_out(missing, ask, name=lambda vm: str(vm["name"]), workers=AT_ONCE)
        return told | {str(vm["id"]).lower(): view for vm, view in zip(missing, asked, strict=True)}

    def resources(self, cluster: str | None) -> tuple[Resource, ...]:
        """Groups of ours, and what else bears our label in groups that are not ours."""
        query = f"tagName eq '{labels.CLUSTER}'"
        query += f" and tagValue eq '{cluster}'" if cluster else ""
        path = f"{self._arm.path}/resources"
        groups, others = side_by_side(
            self._groups,
            lambda: optional(lambda: self._arm.pages(path, **{"$filter": query})) or [],
        )
        groups = [group for group in groups if _cluster(group) is not None]
        names = {str(group.get("name", "")).lower() for group in groups}
        found = [_resource(group, GROUP) for group in groups]
        for other in others:
            kind = _kind(other)
            if kind and paths.group_of(str(other.get("id", ""))) not in names:
                # A list that is filtered by tags tells none.
                full = other if other.get("tags") else self._arm.find(str(other["id"])) or {}
                if _cluster(full) is not None:
                    found.append(_resource({**other, **full}, kind))
        return tuple(r for r in found if cluster in (None, r.cluster))

    def _groups(self) -> list[Tree]:
        return self._arm.pages(f"{self._arm.path}/resourcegroups")

    def erase(self, machines: Sequence[Machine], resources: Sequence[Resource]) -> None:
        """A group goes with all that is in it; only the rest goes one by one."""
        groups = [resource for resource in resources if resource.kind == GROUP]
        whole = {group.name.lower() for group in groups}
        steps: dict[str, Callable[[], None]] = {
            f"{GROUP} {group.name}": partial(self._drop, group.name) for group in groups
        }
        for machine in machines:
            if paths.group_of(machine.id) not in whole:
                steps[machine.id] = partial(self._vms.erase, machine)
        try:
            fan_out(list(steps), lambda name: steps[name](), name=paths.last, workers=AT_ONCE)
        finally:
            others = [resource for resource in resources if resource.kind != GROUP]
            for other in sorted(others, key=lambda r: KINDS.index(r.kind)):
                self._arm.delete(other.id)

    def _drop(self, name: str) -> None:
        path = self._arm.group(name).itself
        self._ends.disarm_all(self._arm.group(name))
        try:
            begun = self._arm.call("DELETE", path)
            self._arm.finish("DELETE", path, begun, within=BEING_DELETED)
        except NotFoundError:
            return
        except BusyError as error:
            if error.code != "ResourceGroupBeingDeleted":
                raise
        gone = self._arm.pace.until(
            lambda: True if self._arm.find(path) is None else None, within=BEING_DELETED
        )
        if gone is None:
            raise BusyError(
                f"resource group {name} is still being deleted",
                hint="run it again in some minutes",
                scope="region",
            )


def _cluster(thing: Tree) -> str | None:
    known = labels.read(thing.get("tags") or {})
    return known.cluster if known else None


def _is_dying(group: Tree) -> bool:
    state = (group.get("properties") or {}).get("provisioningState", "")
    return str(state).lower() == "deleting"


def _kind(thing: Tree) -> str | None:
    told = str(thing.get("type", "")).lower()
    return next((kind for kind in KINDS if kind.lower() == told), None)


def _resource(thing: Tree, kind: str) -> Resource:
    known = labels.read(thing.get("tags") or {})
    name = str(thing.get("name", ""))
    return Resource(
        cluster=known.cluster if known else "",
        kind=kind,
        name=name,
        id=name if kind == GROUP else str(thing.get("id", "")),
        region=listing.plain(str(thing.get("location", ""))),
        owner=known.owner if known else "",
    )
