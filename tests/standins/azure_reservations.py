"""Capacity reservation groups, and the eviction rates of Resource Graph.

https://learn.microsoft.com/azure/virtual-machines/capacity-reservation-overview, -associate-vm and
-overallocate, read 2026-11-24: a VM beyond what is reserved is created all the same, against the
quota and the region's capacity.
"""

from __future__ import annotations

import re

from azure.mgmt.compute import models
from werkzeug.wrappers import Response

from tests.standins.azure_call import Call, route
from tests.standins.azure_errors import Body, real
from tests.standins.azure_models import check_answer
from tests.standins.azure_world import SUBSCRIPTION, Thing, World, same

KIND = "Microsoft.Compute/capacityReservationGroups"
VMS = "Microsoft.Compute/virtualMachines"
ID = re.compile(
    rf"/subscriptions/{SUBSCRIPTION}/resourcegroups/([^/]+)/providers/{re.escape(KIND)}/([^/]+)",
    re.IGNORECASE,
)


def group_of(world: World, given: Body) -> Body | None:
    """The group that a VM names, as the test put it."""
    wish = (given["properties"].get("capacityReservation") or {}).get("capacityReservationGroup")
    if not wish:
        return None
    found = ID.fullmatch(str(wish.get("id", "")))
    known = _known(world, f"{found[1]}/{found[2]}") if found else None
    if known is None:
        raise real("reservation-group-absent", id=wish.get("id"))
    return known


def check(world: World, given: Body) -> None:
    """Raises Refusal for a VM that cannot take a reservation at all."""
    group = group_of(world, given)
    if group is None:
        return
    properties = given["properties"]
    if group["region"] != given["location"]:
        raise real("reservation-group-elsewhere")
    if properties.get("priority") == "Spot":
        raise real("reservation-not-for-spot")
    if properties.get("proximityPlacementGroup"):
        raise real("reservation-with-proximity-group")
    if reservation_of(world, given) is None:
        raise real("reservation-group-without-size")


def reservation_of(world: World, given: Body) -> str | None:
    """The name of the reservation of its size and zone."""
    group = group_of(world, given)
    size = given["properties"]["hardwareProfile"]["vmSize"]
    zone = next(iter(given.get("zones") or []), "")
    for name, one in (group or {}).get("reservations", {}).items():
        if same(one["size"], size) and one.get("zone", "") == zone:
            return str(name)
    return None


def is_reserved(world: World, given: Body, but: Thing | None = None) -> bool:
    """Whether there is room for one more VM in its reservation: it then needs neither quota nor
    capacity."""
    name, group = reservation_of(world, given), group_of(world, given)
    if name is None or group is None:
        return False
    held = [one for one in members(world, group, name) if one is not but]
    return len(held) < int(group["reservations"][name]["count"])


def members(world: World, group: Body, name: str) -> list[Thing]:
    """VMs that are allocated, or will be."""
    return [
        one
        for one in world.of_type(VMS)
        if group_of(world, one.given) is group
        and reservation_of(world, one.given) == name
        and (one.state == "Creating" or one.made["_power"] not in ("", "deallocated"))
    ]


def _known(world: World, key: str) -> Body | None:
    return next((one for name, one in world.reservation_groups.items() if same(name, key)), None)


def _path(key: str) -> str:
    group, _, name = key.partition("/")
    return f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{group}/providers/{KIND}/{name}"


def _group(world: World, key: str, *, view: bool) -> Body:
    it = world.reservation_groups[key]
    names = it["reservations"]
    inner: Body = {
        "capacityReservations": [
            {"id": f"{_path(key)}/capacityReservations/{name}".upper()} for name in names
        ],
        "virtualMachinesAssociated": [
            {"id": one.id} for one in world.of_type(VMS) if group_of(world, one.given) is it
        ],
    }
    if it.get("type"):
        inner["reservationType"] = it["type"]
    if view:
        inner["instanceView"] = {
            "capacityReservations": [
                {
                    "name": name,
                    "utilizationInfo": {
                        "currentCapacity": one["count"],
                        "virtualMachinesAllocated": [
                            *({"id": vm.id} for vm in members(world, it, name)),
                            *({"id": f"/somebody/{n}"} for n in range(one.get("taken", 0))),
                        ],
                    },
                    "statuses": [],
                }
                for name, one in names.items()
            ]
        }
    zones = sorted({one["zone"] for one in names.values() if one.get("zone")})
    body: Body = {"id": _path(key), "name": key.partition("/")[2], "type": KIND}
    body |= {"location": it["region"], "properties": inner}
    body |= {"zones": zones} if zones else {}
    check_answer(models.CapacityReservationGroup, body)
    return body


@route("GET", f"/subscriptions/{{subscription}}/providers/{KIND}", f"{KIND}/read")
def _list(call: Call) -> Response:
    world = call.world
    return call.page([_group(world, key, view=False) for key in world.reservation_groups])


def _asked(call: Call) -> str:
    wanted = f"{call.given['group']}/{call.given['name']}"
    found = next((key for key in call.world.reservation_groups if same(key, wanted)), None)
    if found is None:
        raise real("resource-not-found-by-name", kind=KIND, name=call.given["name"])
    return found


_ONE = f"/subscriptions/{{subscription}}/resourceGroups/{{group}}/providers/{KIND}/{{name}}"


@route("GET", _ONE, f"{KIND}/read")
def _get(call: Call) -> Response:
    view = call.query.get("$expand", "").lower() == "instanceview"
    return call.answer(_group(call.world, _asked(call), view=view))


@route("GET", f"{_ONE}/capacityReservations", f"{KIND}/capacityReservations/read")
def _reservations(call: Call) -> Response:
    key = _asked(call)
    it = call.world.reservation_groups[key]
    found = []
    for name, one in it["reservations"].items():
        body: Body = {
            "id": f"{_path(key)}/capacityReservations/{name}",
            "name": name,
            "type": f"{KIND}/capacityReservations",
            "location": it["region"],
            "sku": {"name": one["size"], "capacity": one["count"]},
            "properties": {"provisioningState": "Succeeded"},
            **({"zones": [one["zone"]]} if one.get("zone") else {}),
        }
        check_answer(models.CapacityReservation, body)
        found.append(body)
    return call.page(found)


# ── Resource Graph ───────────────────────────────────────────────────────────

GRAPH = "Microsoft.ResourceGraph/resources/read"
"""Needs no right of its own: rows that the caller may not see are left out.
https://learn.microsoft.com/azure/governance/resource-graph/overview#permissions-in-azure-resource-graph
"""
_QUERY = re.compile(
    r"SpotResources \| where type =~ 'microsoft\.compute/skuspotevictionrate/location' "
    r"\| where sku\.name in~ \(([^()]*)\) \| where location in~ \(([^()]*)\) "
    r"\| project (\w+) = tostring\(sku\.name\), location, "
    r"(\w+) = tostring\(properties\.evictionRate\)"
)


@route("POST", "/providers/Microsoft.ResourceGraph/resources", GRAPH)
def _graph(call: Call) -> Response:
    """Of Kusto it knows this query alone."""
    given = call.body()
    if set(given) - {"query", "subscriptions", "managementGroups", "options", "facets"}:
        raise real("graph-members-unknown")
    if "subscriptions" in given:
        return call.answer({"totalRecords": 0, "count": 0, "data": [], "resultTruncated": "false"})
    found = _QUERY.fullmatch(str(given.get("query", "")))
    if found is None:
        raise real("graph-query-refused")
    sizes, regions = (re.findall(r"'([^']*)'", found[n]) for n in (1, 2))
    rows = []
    for key, rate in call.world.eviction_rates.items():
        region, _, size = key.partition("/")
        if region in regions and size.lower() in [one.lower() for one in sizes]:
            rows.append({found[3]: size.lower(), "location": region, found[4]: rate})
    body = {"totalRecords": len(rows), "count": len(rows), "data": rows}
    return call.answer({**body, "facets": [], "resultTruncated": "false"})
