"""Capacity and quotas, and what is told of them: Microsoft.Compute/skus, usages, image versions."""

from __future__ import annotations

import fnmatch
from collections import Counter

from werkzeug.wrappers import Response

from tests.standins.azure_call import Call, route
from tests.standins.azure_errors import Body, Refusal, real
from tests.standins.azure_machine_rules import VMS, size_of
from tests.standins.azure_offer import (
    COMPUTE_QUOTAS,
    CORES,
    NETWORK_QUOTAS,
    PUBLIC_ADDRESSES,
    QUOTA_NAMES,
    SIZES,
    SPOT_CORES,
    quota_of,
)
from tests.standins.azure_references import ADDRESSES, INTERFACES, NETWORKS, SECURITY_GROUPS
from tests.standins.azure_references import quota as network_quota
from tests.standins.azure_reservations import is_reserved, members, reservation_of
from tests.standins.azure_resources import location
from tests.standins.azure_world import Thing, World, same

AT_ONCE = "SkuNotAvailable"
_COUNTED = {
    "VirtualNetworks": NETWORKS,
    "NetworkInterfaces": INTERFACES,
    "NetworkSecurityGroups": SECURITY_GROUPS,
    PUBLIC_ADDRESSES: ADDRESSES,
}


def check_room(world: World, given: Body) -> None:
    """Raises Refusal for what is refused at the PUT: a size that is not sold there, a quota."""
    check_sold(world, given)
    if is_reserved(world, given):
        return
    name, region = given["properties"]["hardwareProfile"]["vmSize"], given["location"]
    if world.capacity_code == AT_ONCE and _exceeded(world, given):
        raise real("sku-not-available", size=name, region=region)
    used = usage(world, region)
    for what, number in needed(given).items():
        most = limit(world, region, what)
        if used[what] + number > most:
            raise over_quota(what, region, most, used[what], number)


def check_sold(world: World, given: Body) -> None:
    """Raises Refusal for a size that is not sold there, to nobody or not to this subscription."""
    name = given["properties"]["hardwareProfile"]["vmSize"]
    size, region = size_of(given["properties"]), given["location"]
    zones = given.get("zones") or []
    places = [f"{region}-{zone}" for zone in zones] or [region]
    sold = region in size.regions and all(zone in size.zones_in(region) for zone in zones)
    if not sold or any(restricted(world, place, name) for place in places):
        raise _not_available(name, places)


def _not_available(name: str, places: list[str]) -> Refusal:
    region = places[0].partition("-")[0]
    return real("sku-not-available", size=name, region=region)


def restricted(world: World, place: str, size: str) -> bool:
    region = place.partition("-")[0]
    wanted = [f"{place}/{size}".lower(), f"{region}/{size}".lower()]
    return any(
        fnmatch.fnmatchcase(one, rule.lower()) for one in wanted for rule in world.restricted
    )


def no_room(world: World, thing: Thing) -> Refusal | None:
    """What the operation ends with where the VM can be placed nowhere."""
    if is_reserved(world, thing.given, thing) or not _exceeded(world, thing.given):
        return None
    zonal = bool(thing.given.get("zones"))
    code = world.capacity_code
    if "Overconstrained" in code:
        return real("overconstrained", code=code)
    found = real("zonal-allocation-failed" if zonal else "allocation-failed")
    found.code = code or found.code
    return found


def _exceeded(world: World, given: Body) -> bool:
    name = given["properties"]["hardwareProfile"]["vmSize"]
    places = _places(given)
    if given["properties"].get("proximityPlacementGroup") and set(places) & set(
        world.no_room_close
    ):
        return True
    for key, room in world.capacity.items():
        place, _, size = key.lower().partition("/")
        if not _matches(places, name, place, size):
            continue
        held = sum(
            1
            for one in world.of_type(VMS)
            if allocated(one) and _matches(_places(one.given), _size_name(one), place, size)
        )
        if held + 1 > room:
            return True
    return False


def _matches(places: list[str], name: str, place: str, size: str) -> bool:
    return any(fnmatch.fnmatchcase(one, place) for one in places) and (
        not size or fnmatch.fnmatchcase(name.lower(), size)
    )


def _places(given: Body) -> list[str]:
    region = given["location"]
    return [region, *(f"{region}-{zone}" for zone in given.get("zones") or [])]


def _size_name(thing: Thing) -> str:
    return str(thing.properties["hardwareProfile"]["vmSize"])


def allocated(thing: Thing) -> bool:
    return thing.made["_power"] not in ("", "deallocated")


# ── Quotas ───────────────────────────────────────────────────────────────────


def needed(given: Body) -> Counter[str]:
    """Spot VMs count against one quota of their own only."""
    size = size_of(given["properties"])
    if given["properties"].get("priority") == "Spot":
        return Counter({SPOT_CORES: size.vcpus, "virtualMachines": 1})
    return Counter({CORES: size.vcpus, quota_of(size.family): size.vcpus, "virtualMachines": 1})


def usage(world: World, region: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for one in world.of_type(VMS):
        starting = one.state == "Creating"
        reserved = reservation_of(world, one.given) is not None
        if one.region == region and (allocated(one) or starting) and not reserved:
            found += needed(one.given)
    for group in world.reservation_groups.values():
        for name, it in group["reservations"].items() if group["region"] == region else ():
            size = next(size for key, size in SIZES.items() if same(key, it["size"]))
            cores = size.vcpus * max(it["count"], len(members(world, group, name)))
            found += Counter({CORES: cores, quota_of(size.family): cores})
    return found


def limit(world: World, region: str, name: str) -> int:
    for key in (f"{region}/{name}", name):
        if key in world.quotas:
            return world.quotas[key]
    return COMPUTE_QUOTAS[name]


def over_quota(name: str, region: str, most: int, used: int, more: int) -> Refusal:
    words = {CORES: "Total Regional Cores", SPOT_CORES: "LowPriorityCores"}.get(name, name)
    return real(
        "over-quota",
        quota=words,
        region=region,
        limit=f"Current Limit: {most}",
        used=f"Current Usage: {used}",
        more=f"Additional Required: {more}",
        needed=f"New Limit Required: {used + more}",
    )


@route(
    "GET",
    "/subscriptions/{subscription}/providers/Microsoft.Compute/locations/{location}/usages",
    "Microsoft.Compute/locations/usages/read",
)
def _compute_usages(call: Call) -> Response:
    region = location(call.given["location"], VMS)
    used = usage(call.world, region)
    names = [name for name in COMPUTE_QUOTAS if is_told(call.world, name)]
    return call.page([_usage(one, used[one], limit(call.world, region, one)) for one in names])


@route(
    "GET",
    "/subscriptions/{subscription}/providers/Microsoft.Network/locations/{location}/usages",
    "Microsoft.Network/locations/usages/read",
)
def _network_usages(call: Call) -> Response:
    world, region = call.world, location(call.given["location"], NETWORKS)
    found = []
    for name in filter(lambda one: is_told(world, one), NETWORK_QUOTAS):
        things = world.of_type(_COUNTED[name]) if name in _COUNTED else iter(())
        used = sum(1 for one in things if one.region == region)
        base = f"/subscriptions/{call.given['subscription']}/providers/Microsoft.Network"
        id = f"{base}/locations/{region}/usages/{name}"
        found.append({"id": id, **_usage(name, used, network_quota(world, region, name))})
    return call.page(found)


def is_told(world: World, name: str) -> bool:
    return not any(fnmatch.fnmatchcase(name.lower(), one.lower()) for one in world.untold_quotas)


def _usage(name: str, used: int, most: int) -> Body:
    shown = QUOTA_NAMES.get(name, name)
    named = {"value": name, "localizedValue": shown}
    return {"name": named, "currentValue": used, "limit": most, "unit": "Count"}
