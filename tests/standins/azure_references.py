"""What resources refer to, and what holds for several types: quotas, zones, addresses."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from tests.standins.azure_errors import Body, Refusal, real
from tests.standins.azure_offer import NETWORK_QUOTAS, REGIONS
from tests.standins.azure_world import Thing, World, ids_in, same

NETWORKS = "Microsoft.Network/virtualNetworks"
SECURITY_GROUPS = "Microsoft.Network/networkSecurityGroups"
ADDRESSES = "Microsoft.Network/publicIPAddresses"
INTERFACES = "Microsoft.Network/networkInterfaces"
BASTIONS = "Microsoft.Network/bastionHosts"
FIRST_FREE = 4
"""Azure keeps a subnet's first four addresses, and its last, for itself."""


def named(part: Body) -> str:
    if not part.get("name"):
        raise real("name-missing")
    return str(part["name"])


def prefixes(subnet: Body) -> list[str]:
    properties = subnet.get("properties") or {}
    one = properties.get("addressPrefix")
    found = [one] if one else list(properties.get("addressPrefixes") or [])
    if not found:
        raise real("parameter-missing", name=f"subnets.{subnet.get('name')}.addressPrefix")
    return found


def children(thing: Thing, name: str) -> list[Body]:
    return [child(thing, name, part) for part in thing.properties.get(name) or []]


def child(thing: Thing, name: str, part: Body) -> Body:
    """A subnet or rule as it is shown."""
    properties = {**part.get("properties", {}), "provisioningState": thing.state}
    found = {"id": f"{thing.id}/{name}/{part['name']}", "name": part["name"]}
    return {**found, "type": f"{thing.type}/{name}", "properties": properties}


def network_of(text: str) -> Any:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        raise real("address-prefix-malformed", text=text) from None


def users(world: World, thing: Thing, *types: str) -> Iterator[Thing]:
    for type in types:
        for one in world.of_type(type):
            if thing.id.lower() in ids_in(one.properties):
                yield one


def holder_of(world: World, address: Thing) -> tuple[Thing, str] | None:
    """The NIC that has the public address, and the id of its IP configuration."""
    one = _holders(world).get(address.id.lower())
    if one is None:
        return None
    name = one.properties["ipConfigurations"][0]["name"]
    return one, f"{one.id}/ipConfigurations/{name}"


def _holders(world: World) -> Mapping[str, Thing]:
    """NICs by the ids of their public addresses; read anew once something has changed."""
    known = world.holders
    if known is None or known[0] != world.changes:
        found: dict[str, Thing] = {}
        for nic in world.of_type(INTERFACES):
            for configuration in nic.properties.get("ipConfigurations") or ():
                public = (configuration.get("properties") or {}).get("publicIPAddress")
                if public:
                    found.setdefault(str(public["id"]).lower(), nic)
        known = world.holders = (world.changes, found)
    return known[1]


def check_subnet_free(world: World, subnet: str) -> None:
    for one in world.of_type(INTERFACES):
        if subnet.lower() in ids_in(one.properties):
            name = one.properties["ipConfigurations"][0]["name"]
            network, _, last = subnet.rpartition("/subnets/")
            raise real("subnet-in-use", last=last, one=one.id, name=name, network=network)


def referred(world: World, given: Body, type: str, by: str, region: str) -> Thing:
    id = str(given.get("id", ""))
    found = world.find(id)
    if found is None or not same(found.type, type) or found.region != region:
        raise _bad_reference(id, by)
    if found.state != "Succeeded":
        raise real("reference-not-provisioned", id=id, by=by, state=found.state)
    return found


def referred_subnet(world: World, given: Body, by: str, region: str) -> None:
    id = str(given.get("id", ""))
    network, _, name = id.rpartition("/subnets/")
    found = referred(world, {"id": network or id}, NETWORKS, by, region)
    if not any(same(one["name"], name) for one in found.properties.get("subnets") or []):
        raise _bad_reference(id, by)


def _bad_reference(id: str, by: str) -> Refusal:
    return real("reference-absent", id=id, by=by)


def range_of(world: World, subnet: str) -> Any:
    network, _, name = subnet.rpartition("/subnets/")
    found = world.find(network)
    assert found
    part = next(one for one in found.properties["subnets"] if same(one["name"], name))
    return network_of(prefixes(part)[0])


def free_address(world: World, subnet: str) -> str:
    range, name = range_of(world, subnet), subnet.rpartition("/")[2]
    taken = {one.made.get("address") for one in world.of_type(INTERFACES)}
    for number in itertools.count(FIRST_FREE):
        if number >= range.num_addresses - 1:
            break
        address = str(range[number])
        if address not in taken:
            return address
    raise real("subnet-is-full", name=name, range=range)


def check_zones(type: str, given: Body) -> None:
    known = REGIONS[given["location"]][1]
    for zone in given.get("zones") or []:
        if not known:
            raise real("zones-not-supported", type=type, location=given["location"])
        if zone not in known:
            raise real(
                "zone-invalid",
                zone=zone,
                type=type,
                location=given["location"],
                known=",".join(known),
            )


def limit(world: World, region: str, name: str, type: str, old: Thing | None) -> None:
    most = quota(world, region, name)
    held = sum(1 for one in world.of_type(type) if one.region == region)
    if old is None and held + 1 > most:
        kind = "PublicIP" if "Public" in name else name
        raise real("count-limit-reached", kind=kind, most=most, name=name)


def quota(world: World, region: str, name: str) -> int:
    for key in (f"{region}/{name}", name):
        if key in world.quotas:
            return world.quotas[key]
    return NETWORK_QUOTAS[name]
