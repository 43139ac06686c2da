"""Capacity reservation groups: which reservations they have, and what is left in them.

https://learn.microsoft.com/azure/virtual-machines/capacity-reservation-overview and
https://learn.microsoft.com/azure/virtual-machines/capacity-reservation-overallocate, read
2026-11-24; not tried on a real subscription."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CapacityError, CloudConfigError
from cloudtrain.core.model import NodePlan, Plan, Provisioning
from cloudtrain.providers.azure import paths
from cloudtrain.providers.azure.client import ArmClient
from cloudtrain.providers.azure.listing import plain
from cloudtrain.providers.base.driver import Location
from cloudtrain.providers.base.http import Tree

TARGETED = ("", "targeted")
"""Types of groups that a VM names. `Block` ones end their VMs at a time that is not documented,
`Open` ones are not named."""


@dataclass(frozen=True, kw_only=True)
class Reservation:
    name: str
    size: str
    zones: tuple[str, ...]
    """Empty: regional."""
    capacity: int
    allocated: frozenset[str]
    """IDs of the VMs in it, in lower case; more than `capacity` if it is overallocated."""

    def fits(self, node: NodePlan, place: Location) -> bool:
        """True for this size; a VM in a zone needs a zonal reservation, another a regional one."""
        zone = paths.zone_of(place.zone)
        return self.size.lower() == (node.machine or "").lower() and (
            zone in self.zones if zone else not self.zones
        )

    @property
    def left(self) -> int:
        return max(0, self.capacity - len(self.allocated))


@dataclass(frozen=True, kw_only=True)
class ReservationGroup:
    id: str
    shown: str
    region: str
    reservations: tuple[Reservation, ...]

    def __str__(self) -> str:
        words = [
            f"{each.capacity} × {each.size} in "
            + (", ".join(f"{self.region}-{zone}" for zone in each.zones) or self.region)
            for each in self.reservations
        ]
        return ", ".join(words) or "no reservation"


Groups = Mapping[Provisioning, ReservationGroup]


def of_plan(plan: Plan) -> tuple[Provisioning, ...]:
    return tuple(dict.fromkeys(n.provisioning for n in plan.nodes if n.provisioning.name))


def find(arm: ArmClient, plan: Plan) -> Groups:
    """The groups that the plan names. Raises CloudConfigError for one that cannot be used."""
    return {bought: _read(arm, bought, _id(arm, bought.name)) for bought in of_plan(plan)}


def _id(arm: ArmClient, name: str) -> str:
    """The ID of a group, given as such, as GROUP/NAME, or as a name that is unique."""
    if "/" in name:
        return paths.reservation_group(arm.subscription, name)
    kind = f"{arm.path}/providers/{paths.RESERVATION_GROUPS}"
    named = [str(one.get("id", "")) for one in arm.pages(kind)]
    found = [id for id in named if paths.last(id).lower() == name.lower()]
    if len(found) == 1:
        return found[0]
    several = f"{len(found)} capacity reservation groups are called {name}" if found else ""
    raise CloudConfigError(
        several or f"no capacity reservation group {name} in this subscription",
        hint="write RESOURCE_GROUP/NAME: `az capacity reservation group list` shows them",
    )


def _read(arm: ArmClient, bought: Provisioning, id: str) -> ReservationGroup:
    found = arm.find(id, **{"$expand": "instanceView"})
    if found is None:
        raise CloudConfigError(
            f"no capacity reservation group {bought.name}",
            hint="write RESOURCE_GROUP/NAME: `az capacity reservation group list` shows them",
        )
    properties: Tree = found.get("properties") or {}
    kind = str(properties.get("reservationType") or "")
    if kind.lower() not in TARGETED:
        raise CloudConfigError(
            f"{bought} is of type {kind}: cloudtrain uses those of type Targeted only",
            hint="use another group, or `provisioning: on-demand`",
        )
    views = (properties.get("instanceView") or {}).get("capacityReservations") or ()
    allocated = {}
    for view in views:
        inside = (view.get("utilizationInfo") or {}).get("virtualMachinesAllocated") or ()
        vms = frozenset(str(vm.get("id", "")).lower() for vm in inside)
        allocated[str(view.get("name", "")).lower()] = vms
    return ReservationGroup(
        id=id,
        shown=paths.reservation_name(id, arm.subscription),
        region=plain(str(found.get("location", ""))),
        reservations=tuple(
            Reservation(
                name=str(one.get("name", "")),
                size=str((one.get("sku") or {}).get("name", "")),
                zones=tuple(map(str, one.get("zones") or ())),
                capacity=int((one.get("sku") or {}).get("capacity") or 0),
                allocated=allocated.get(str(one.get("name", "")).lower(), frozenset()),
            )
            for one in arm.pages(f"{id}/capacityReservations")
        ),
    )


def fitting(groups: Groups, plan: Plan, places: Sequence[Location]) -> tuple[Location, ...]:
    """The places where every reserved node has a reservation. Raises CloudConfigError."""
    reserved = [node for node in plan.nodes if node.provisioning in groups]
    kept = tuple(
        place for place in places if all(_of(groups, node, place) is not None for node in reserved)
    )
    if kept or not reserved:
        return kept or tuple(places)
    there = "; ".join(f"{bought} has {group}" for bought, group in groups.items())
    machines = ", ".join(sorted({str(node.machine) for node in reserved}))
    raise CloudConfigError(
        f"{there}: nothing for {machines} in {', '.join(plan.config.placement)}",
        hint="set `placement` and `machine` to what is reserved",
    )


def _of(groups: Groups, node: NodePlan, place: Location) -> Reservation | None:
    group = groups[node.provisioning]
    if group.region != place.region:
        return None
    return next((each for each in group.reservations if each.fits(node, place)), None)


def refuse_full(groups: Groups, plan: Plan, place: Location, within: paths.Group) -> None:
    """Raise CapacityError if the reservations do not have room for the nodes that are not in them.

    Azure itself would create the others all the same, beyond the reservation: billed besides it,
    against the quota, and without its assurance ("overallocation", documented).
    `within`: the cluster's resource group, whose VMs are in their places already."""
    short = [
        f"{group.shown}: {_free(one)} free in {place}, {missing} needed"
        for group, one, names in _needs(groups, plan, place)
        for missing in [sum(within.vm(name).lower() not in one.allocated for name in names)]
        if missing > one.left
    ]
    if short:
        raise CapacityError(
            "; ".join(short),
            scope="zone" if place.zone else "region",
            hint="the reservation is full: enlarge it, or choose another one",
        )


def _needs(
    groups: Groups, plan: Plan, place: Location
) -> Iterator[tuple[ReservationGroup, Reservation, list[str]]]:
    """Yield each reservation that nodes of the plan take, with their names."""
    found: dict[tuple[Provisioning, Reservation], list[str]] = {}
    for node in plan.nodes:
        one = _of(groups, node, place) if node.provisioning in groups else None
        if one is not None:
            found.setdefault((node.provisioning, one), []).append(node.name)
    for (bought, one), names in found.items():
        yield groups[bought], one, names


def described(groups: Groups, plan: Plan, place: Location) -> str:
    """`capacity/t4: 2 of 4 Standard_NC4as_T4_v3 free in eastus-1`"""
    return "; ".join(
        f"{group.shown}: {_free(one)} free in {place}"
        for group, one, _ in _needs(groups, plan, place)
    )


def _free(one: Reservation) -> str:
    return f"{one.left} of {one.capacity} {one.size}"


def refuse_close(plan: Plan) -> None:
    """Raise CloudConfigError for `network.close: on`, as Azure supports no proximity placement
    group with a reservation (documented)."""
    if of_plan(plan) and plan.config.network.close == "on":
        raise CloudConfigError(
            "network.close: on: Azure supports no placement group with a capacity reservation",
            hint="set network.close to auto",
        )
