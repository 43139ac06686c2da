"""Networks, subnets, security groups and rules, public addresses, network interfaces."""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Iterator
from typing import Any

from azure.mgmt.network import models

from tests.standins.azure_errors import Body, Refusal, missing, not_acted_out
from tests.standins.azure_offer import NETWORK_QUOTAS, REGIONS
from tests.standins.azure_resources import Kind, kind
from tests.standins.azure_world import Thing, World, ids_in, same

NETWORKS = "Microsoft.Network/virtualNetworks"
SECURITY_GROUPS = "Microsoft.Network/networkSecurityGroups"
ADDRESSES = "Microsoft.Network/publicIPAddresses"
INTERFACES = "Microsoft.Network/networkInterfaces"
SERVICE_TAGS = ("VirtualNetwork", "AzureLoadBalancer", "Internet", "*")
FIRST_FREE = 4
"""Azure keeps a subnet's first four addresses, and its last, for itself."""


@kind
class SecurityGroups(Kind):
    type = SECURITY_GROUPS
    word = "security group"
    model = models.NetworkSecurityGroup
    update = models.TagsObject

    def check(self, world: World, id: str, given: Body, old: Thing | None) -> None:
        limit(world, given["location"], "NetworkSecurityGroups", self.type, old)
        rules = given.get("properties", {}).get("securityRules") or []
        seen: dict[tuple[str, int], str] = {}
        for rule in rules:
            name = named(rule)
            properties = rule.get("properties") or {}
            _check_rule(name, properties)
            slot = properties["direction"], properties["priority"]
            if slot in seen:
                raise Refusal(
                    400,
                    "SecurityRuleConflict",
                    f"Security rule {seen[slot]} conflicts with rule {name}. Rules cannot have the "
                    "same Priority and Direction.",
                )
            seen[slot] = name

    def properties(self, world: World, thing: Thing) -> Body:
        found = super().properties(world, thing)
        found["securityRules"] = _children(thing, "securityRules")
        found["defaultSecurityRules"] = []
        found["networkInterfaces"] = [{"id": one.id} for one in _users(world, thing, INTERFACES)]
        found["subnets"] = [
            {"id": f"{network.id}/subnets/{subnet['name']}"}
            for network in _users(world, thing, NETWORKS)
            for subnet in network.properties.get("subnets") or []
            if thing.id.lower() in ids_in(subnet)
        ]
        return found

    def check_delete(self, world: World, thing: Thing) -> None:
        users = [one.id for one in _users(world, thing, INTERFACES, NETWORKS)]
        if users:
            raise Refusal(
                400,
                "InUseNetworkSecurityGroupCannotBeDeleted",
                f"Network security group {thing.id} cannot be deleted because it is in use by the "
                f"following resources: {', '.join(users)}. In order to delete the Network security "
                "group, remove the association with the resource(s).",
            )


@kind
class Networks(Kind):
    type = NETWORKS
    word = "network"
    model = models.VirtualNetwork
    update = models.TagsObject

    def check(self, world: World, id: str, given: Body, old: Thing | None) -> None:
        limit(world, given["location"], "VirtualNetworks", self.type, old)
        properties = given.get("properties") or {}
        space = (properties.get("addressSpace") or {}).get("addressPrefixes")
        if not space:
            raise missing("addressSpace.addressPrefixes")
        ranges = [_network(text) for text in space]
        taken: list[tuple[str, Any]] = []
        for subnet in properties.get("subnets") or []:
            name = named(subnet)
            for part in [_network(text) for text in prefixes(subnet)]:
                if not any(part.subnet_of(one) for one in ranges):
                    raise Refusal(
                        400,
                        "NetcfgInvalidSubnet",
                        f"Subnet '{name}' is not valid because its IP address range is outside the "
                        f"IP address range of virtual network '{id.rpartition('/')[2]}'.",
                    )
                for other, range in taken:
                    if part.overlaps(range):
                        text = (
                            f"Subnet '{name}' is not valid because its IP address range "
                            f"overlaps with that of an existing subnet '{other}' in "
                            "virtual network."
                        )
                        raise Refusal(400, "NetcfgSubnetRangesOverlap", text)
                taken.append((name, part))
            group = (subnet.get("properties") or {}).get("networkSecurityGroup")
            if group:
                referred(world, group, SECURITY_GROUPS, id, given["location"])
        if old is not None:
            kept = {named(one).lower() for one in properties.get("subnets") or []}
            for subnet in old.properties.get("subnets") or []:
                if subnet["name"].lower() not in kept:
                    check_subnet_free(world, f"{old.id}/subnets/{subnet['name']}")

    def properties(self, world: World, thing: Thing) -> Body:
        found = super().properties(world, thing)
        found["subnets"] = _children(thing, "subnets")
        return found

    def check_delete(self, world: World, thing: Thing) -> None:
        for subnet in thing.properties.get("subnets") or []:
            check_subnet_free(world, f"{thing.id}/subnets/{subnet['name']}")


@kind
class Addresses(Kind):
    type = ADDRESSES
    word = "public address"
    model = models.PublicIPAddress
    update = models.TagsObject

    def check(self, world: World, id: str, given: Body, old: Thing | None) -> None:
        if (given.get("sku") or {}).get("name", "Basic") == "Basic":
            raise Refusal(
                400,
                "IPv4BasicSkuPublicIpCountLimitReached",
                "Cannot create more than 0 IPv4 Basic SKU public IP addresses for this "
                "subscription "
                "in this region.",
            )
        if (given.get("properties") or {}).get("publicIPAllocationMethod") != "Static":
            raise Refusal(
                400,
                "StandardSkuPublicIPAddressesMustBeStatic",
                f"Standard sku publicIp {id} must have AllocationMethod set to Static.",
            )
        limit(world, given["location"], "StandardSkuPublicIpAddresses", self.type, old)
        check_zones(self.type, given)
        if old is not None and old.given.get("zones") != given.get("zones"):
            text = (
                f"Resource {id} has an existing availability zone constraint and cannot be changed."
            )
            raise Refusal(400, "ResourceAvailabilityZonesCannotBeModified", text)

    def make(self, world: World, thing: Thing, old_given: Body | None) -> None:
        if old_given is None:
            number = world.number()
            address = f"203.0.{113 + number // 254}.{number % 254 + 1}"
            thing.made["ipAddress"] = world.nodes.address() if world.nodes else address
        thing.made.setdefault("publicIPAddressVersion", "IPv4")
        thing.made.setdefault("idleTimeoutInMinutes", 4)

    def properties(self, world: World, thing: Thing) -> Body:
        found = super().properties(world, thing)
        holder = holder_of(world, thing)
        if holder:
            found["ipConfiguration"] = {"id": holder[1]}
        return found

    def check_delete(self, world: World, thing: Thing) -> None:
        holder = holder_of(world, thing)
        if holder:
            raise Refusal(
                400,
                "PublicIPAddressCannotBeDeleted",
                f"Public IP address {thing.id} can not be deleted since it is still allocated to "
                f"resource {holder[1]}. In order to delete the public IP, disassociate/detach the "
                "Public IP address from the resource.",
            )


@kind
class Interfaces(Kind):
    type = INTERFACES
    word = "network interface"
    model = models.NetworkInterface
    update = models.TagsObject

    def check(self, world: World, id: str, given: Body, old: Thing | None) -> None:
        limit(world, given["location"], "NetworkInterfaces", self.type, old)
        properties = given.get("properties") or {}
        configurations = properties.get("ipConfigurations") or []
        if not configurations:
            text = f"Network interface {id} must have one or more IP configurations."
            raise Refusal(400, "NetworkInterfaceMustHaveAtLeastOneIpConfiguration", text)
        if len(configurations) > 1:
            raise not_acted_out("a network interface with several IP configurations")
        region = given["location"]
        name, inner = named(configurations[0]), configurations[0].get("properties") or {}
        if not inner.get("subnet"):
            text = f"Subnet reference is required for ipconfiguration {id}/ipConfigurations/{name}."
            raise Refusal(400, "SubnetIsRequired", text)
        referred_subnet(world, inner["subnet"], id, region)
        if inner.get("publicIPAddress"):
            address = referred(world, inner["publicIPAddress"], ADDRESSES, id, region)
            holder = holder_of(world, address)
            if holder and not same(holder[0].id, id):
                text = (
                    f"Resource {id}/ipConfigurations/{name} is referencing public IP "
                    f"address {address.id} that is already allocated to resource "
                    f"{holder[1]}."
                )
                raise Refusal(400, "PublicIPAddressInUse", text)
        if properties.get("networkSecurityGroup"):
            referred(world, properties["networkSecurityGroup"], SECURITY_GROUPS, id, region)

    def make(self, world: World, thing: Thing, old_given: Body | None) -> None:
        inner = thing.properties["ipConfigurations"][0].setdefault("properties", {})
        public = inner.get("publicIPAddress")
        if "address" not in thing.made:
            address = world.find(public["id"]) if public else None
            if world.nodes is not None:  # A node has one address, inside and outside.
                thing.made["address"] = (
                    address.made["ipAddress"] if address else world.nodes.address()
                )
            else:
                thing.made["address"] = _free(world, inner["subnet"]["id"])
            tail = world.number()
            thing.made["mac"] = (
                f"00-0D-3A-{tail >> 16 & 255:02X}-{tail >> 8 & 255:02X}-{tail & 255:02X}"
            )

    def properties(self, world: World, thing: Thing) -> Body:
        found = super().properties(world, thing)
        found["macAddress"] = found.pop("mac")
        configuration = found["ipConfigurations"][0]
        configuration["id"] = f"{thing.id}/ipConfigurations/{configuration['name']}"
        configuration["type"] = f"{self.type}/ipConfigurations"
        configuration["properties"] |= {
            "privateIPAddress": found.pop("address"),
            "privateIPAllocationMethod": "Dynamic",
            "primary": True,
            "provisioningState": "Succeeded",
        }
        found.setdefault("enableAcceleratedNetworking", False)
        return {key: value for key, value in found.items() if not key.startswith("_")}

    def check_delete(self, world: World, thing: Thing) -> None:
        check_interface_free(world, thing, None)


def check_interface_free(world: World, thing: Thing, by: str | None) -> None:
    """Raises Refusal unless the NIC may be deleted, or be used by the VM with the id `by`."""
    user = thing.made.get("virtualMachine", {}).get("id")
    if user and not (by and same(user, by)):
        raise Refusal(
            400,
            "NicInUse",
            f"Network Interface {thing.id} is used by existing resource {user}. In order to delete "
            "the network interface, it must be dissociated from the resource. To learn more, see "
            "aka.ms/deletenic.",
        )
    keeper, until = thing.made.get("_reserved", ("", 0.0))
    if until > world.now() and not (by and same(keeper, by)):
        raise Refusal(
            400,
            "NicReservedForAnotherVm",
            "Nic(s) in request is reserved for another Virtual Machine for 180 seconds. Please "
            f"provide another nic(s) or retry after 180 seconds. Reserved VM: {keeper}",
        )


# ── Parts ────────────────────────────────────────────────────────────────────


def named(part: Body) -> str:
    if not part.get("name"):
        raise Refusal(400, "InvalidRequestFormat", "Cannot parse the request: a name is required.")
    return str(part["name"])


def prefixes(subnet: Body) -> list[str]:
    properties = subnet.get("properties") or {}
    one = properties.get("addressPrefix")
    found = [one] if one else list(properties.get("addressPrefixes") or [])
    if not found:
        raise missing(f"subnets.{subnet.get('name')}.addressPrefix")
    return found


def _children(thing: Thing, name: str) -> list[Body]:
    return [child(thing, name, part) for part in thing.properties.get(name) or []]


def child(thing: Thing, name: str, part: Body) -> Body:
    """A subnet or rule as it is shown."""
    properties = {**part.get("properties", {}), "provisioningState": thing.state}
    found = {"id": f"{thing.id}/{name}/{part['name']}", "name": part["name"]}
    return {**found, "type": f"{thing.type}/{name}", "properties": properties}


def _network(text: str) -> Any:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        text = (
            f"The address prefix {text} is not formatted correctly. It should follow CIDR "
            "notation, for example 10.0.0.0/24."
        )
        raise Refusal(400, "InvalidAddressPrefixFormat", text) from None


def _users(world: World, thing: Thing, *types: str) -> Iterator[Thing]:
    for type in types:
        for one in world.of_type(type):
            if thing.id.lower() in ids_in(one.properties):
                yield one


def holder_of(world: World, address: Thing) -> tuple[Thing, str] | None:
    """The NIC that has the public address, and the id of its IP configuration."""
    for one in _users(world, address, INTERFACES):
        name = one.properties["ipConfigurations"][0]["name"]
        return one, f"{one.id}/ipConfigurations/{name}"
    return None


def check_subnet_free(world: World, subnet: str) -> None:
    for one in world.of_type(INTERFACES):
        if subnet.lower() in ids_in(one.properties):
            name = one.properties["ipConfigurations"][0]["name"]
            network, _, last = subnet.rpartition("/subnets/")
            raise Refusal(
                400,
                "InUseSubnetCannotBeDeleted",
                f"Subnet {last} is in use by {one.id}/ipConfigurations/{name} and cannot "
                "be deleted. "
                "In order to delete the subnet, delete all the resources within the subnet. See "
                f"aka.ms/deletesubnet. ({network})",
            )


def referred(world: World, given: Body, type: str, by: str, region: str) -> Thing:
    id = str(given.get("id", ""))
    found = world.find(id)
    if found is None or not same(found.type, type) or found.region != region:
        raise _bad_reference(id, by)
    if found.state != "Succeeded":
        raise Refusal(
            409,
            "ReferencedResourceNotProvisioned",
            f"Cannot proceed with operation because resource {id} used by resource {by} is not in "
            f"Succeeded state. Resource is in {found.state} state.",
        )
    return found


def referred_subnet(world: World, given: Body, by: str, region: str) -> None:
    id = str(given.get("id", ""))
    network, _, name = id.rpartition("/subnets/")
    found = referred(world, {"id": network or id}, NETWORKS, by, region)
    if not any(same(one["name"], name) for one in found.properties.get("subnets") or []):
        raise _bad_reference(id, by)


def _bad_reference(id: str, by: str) -> Refusal:
    return Refusal(
        400,
        "InvalidResourceReference",
        f"Resource {id} referenced by resource {by} was not found. Please make sure that the "
        "referenced resource exists, and that both resources are in the same region.",
    )


def _free(world: World, subnet: str) -> str:
    network, _, name = subnet.rpartition("/subnets/")
    found = world.find(network)
    assert found
    part = next(one for one in found.properties["subnets"] if same(one["name"], name))
    range = _network(prefixes(part)[0])
    taken = {one.made.get("address") for one in world.of_type(INTERFACES)}
    for number in itertools.count(FIRST_FREE):
        if number >= range.num_addresses - 1:
            break
        address = str(range[number])
        if address not in taken:
            return address
    text = (
        f"Subnet {name} with address prefix {range} does not have enough capacity for 1 "
        "IP addresses."
    )
    raise Refusal(400, "SubnetIsFull", text)


def check_zones(type: str, given: Body) -> None:
    known = REGIONS[given["location"]][1]
    for zone in given.get("zones") or []:
        if not known:
            text = (
                f"The resource type '{type}' does not support availability zones at "
                f"location '{given['location']}'."
            )
            raise Refusal(400, "LocationNotSupportAvailabilityZones", text)
        if zone not in known:
            text = (
                f"The zone(s) '{zone}' for resource '{type}' is not supported. The "
                f"supported zones for location '{given['location']}' are "
                f"'{','.join(known)}'"
            )
            raise Refusal(400, "InvalidAvailabilityZone", text)


def limit(world: World, region: str, name: str, type: str, old: Thing | None) -> None:
    most = quota(world, region, name)
    held = sum(1 for one in world.of_type(type) if one.region == region)
    if old is None and held + 1 > most:
        code = "PublicIPCountLimitReached" if "Public" in name else f"{name}CountLimitReached"
        text = f"Cannot create more than {most} {name} for this subscription in this region."
        raise Refusal(400, code, text)


def quota(world: World, region: str, name: str) -> int:
    for key in (f"{region}/{name}", name):
        if key in world.quotas:
            return world.quotas[key]
    return NETWORK_QUOTAS[name]


# ── Security rules ───────────────────────────────────────────────────────────


def _check_rule(name: str, rule: Body) -> None:
    if not 100 <= rule["priority"] <= 4096:
        text = (
            f"Security rule has invalid Priority. Value provided: {rule['priority']} "
            "Allowed range 100-4096."
        )
        raise Refusal(400, "SecurityRuleInvalidPriority", text)
    for side in ("source", "destination"):
        for what, fits in (("AddressPrefix", _is_prefix), ("PortRange", _is_port)):
            single, plural = (
                f"{side}{what}",
                f"{side}{what}{'es' if what == 'AddressPrefix' else 's'}",
            )
            several = rule.get(plural) or []
            if rule.get(single) and several:
                text = f"Security rule {name} has both {single} and {plural}."
                raise Refusal(400, "SecurityRuleInvalidParameters", text)
            values = several or [rule.get(single)]
            if values == [None]:
                text = (
                    "Required security rule parameters are missing for security rule "
                    f"with Id: {name}. Security rule must specify {plural} or {single}."
                )
                raise Refusal(400, "SecurityRuleParameterIsMissing", text)
            for value in values:
                if not fits(value):
                    text = f"Security rule {name} has invalid {what}. Value provided: {value}."
                    raise Refusal(400, f"SecurityRuleInvalid{what}", text)


def _is_prefix(text: Any) -> bool:
    if text in SERVICE_TAGS:
        return True
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def _is_port(text: Any) -> bool:
    found = re.match(r"(\d+)(?:-(\d+))?\Z", str(text))
    if text == "*":
        return True
    low, high = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    return low <= high <= 65535
