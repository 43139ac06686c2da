"""Networks, subnets, security groups and rules, public addresses, network interfaces."""

from __future__ import annotations

from typing import Any

from azure.mgmt.network import models

from tests.standins.azure_addresses import asked_address, check_private_address
from tests.standins.azure_errors import Body, not_acted_out, real
from tests.standins.azure_offer import PUBLIC_ADDRESSES
from tests.standins.azure_references import (
    ADDRESSES,
    BASTIONS,
    INTERFACES,
    NETWORKS,
    SECURITY_GROUPS,
    check_subnet_free,
    check_zones,
    children,
    free_address,
    holder_of,
    limit,
    named,
    network_of,
    prefixes,
    referred,
    referred_subnet,
    users,
)
from tests.standins.azure_resources import Kind, kind
from tests.standins.azure_security_rules import check_rule
from tests.standins.azure_world import Thing, World, ids_in, same


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
            check_rule(name, properties)
            slot = properties["direction"], properties["priority"]
            if slot in seen:
                raise real("rule-priority-taken", other=seen[slot], name=name)
            seen[slot] = name

    def properties(self, world: World, thing: Thing) -> Body:
        found = super().properties(world, thing)
        found["securityRules"] = children(thing, "securityRules")
        found["defaultSecurityRules"] = []
        found["networkInterfaces"] = [{"id": one.id} for one in users(world, thing, INTERFACES)]
        found["subnets"] = [
            {"id": f"{network.id}/subnets/{subnet['name']}"}
            for network in users(world, thing, NETWORKS)
            for subnet in network.properties.get("subnets") or []
            if thing.id.lower() in ids_in(subnet)
        ]
        return found

    def check_delete(self, world: World, thing: Thing) -> None:
        found = [one.id for one in users(world, thing, INTERFACES, NETWORKS)]
        if found:
            raise real("security-group-in-use", thing=thing.id, found=", ".join(found))


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
            raise real("parameter-missing", name="addressSpace.addressPrefixes")
        ranges = [network_of(text) for text in space]
        taken: list[tuple[str, Any]] = []
        for subnet in properties.get("subnets") or []:
            name = named(subnet)
            for part in [network_of(text) for text in prefixes(subnet)]:
                if not any(part.subnet_of(one) for one in ranges):
                    raise real("subnet-outside-network", name=name, network=id.rpartition("/")[2])
                for other, range in taken:
                    if part.overlaps(range):
                        raise real("subnets-overlap", name=name, other=other)
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
        found["subnets"] = children(thing, "subnets")
        return found

    def check_delete(self, world: World, thing: Thing) -> None:
        for subnet in thing.properties.get("subnets") or []:
            check_subnet_free(world, f"{thing.id}/subnets/{subnet['name']}")


@kind
class Bastions(Kind):
    """What a user has made; no tunnel is opened through it here."""

    type = BASTIONS
    word = "Bastion"
    model = models.BastionHost
    update = models.TagsObject

    def check(self, world: World, id: str, given: Body, old: Thing | None) -> None:
        for part in given.get("properties", {}).get("ipConfigurations") or []:
            subnet = (part.get("properties") or {}).get("subnet") or {}
            if not str(subnet.get("id")).endswith("/subnets/AzureBastionSubnet"):
                raise real("bastion-subnet-name")
            referred_subnet(world, subnet, id, given["location"])


@kind
class Addresses(Kind):
    type = ADDRESSES
    word = "public address"
    model = models.PublicIPAddress
    update = models.TagsObject

    def check(self, world: World, id: str, given: Body, old: Thing | None) -> None:
        if (given.get("sku") or {}).get("name", "Basic") == "Basic":
            raise real("public-address-limit")
        if (given.get("properties") or {}).get("publicIPAllocationMethod") != "Static":
            raise real("standard-address-not-static", id=id)
        limit(world, given["location"], PUBLIC_ADDRESSES, self.type, old)
        check_zones(self.type, given)
        if old is not None and old.given.get("zones") != given.get("zones"):
            raise real("zones-fixed", id=id)

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
            raise real("public-address-allocated", thing=thing.id, holder=holder[1])


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
            raise real("interface-without-configuration", id=id)
        if len(configurations) > 1:
            raise not_acted_out("a network interface with several IP configurations")
        region = given["location"]
        name, inner = named(configurations[0]), configurations[0].get("properties") or {}
        if not inner.get("subnet"):
            raise real("subnet-reference-missing", id=id, name=name)
        referred_subnet(world, inner["subnet"], id, region)
        check_private_address(world, id, name, inner)
        if inner.get("publicIPAddress"):
            address = referred(world, inner["publicIPAddress"], ADDRESSES, id, region)
            holder = holder_of(world, address)
            if holder and not same(holder[0].id, id):
                raise real(
                    "public-address-in-use", id=id, name=name, address=address.id, holder=holder[1]
                )
        if properties.get("networkSecurityGroup"):
            referred(world, properties["networkSecurityGroup"], SECURITY_GROUPS, id, region)

    def make(self, world: World, thing: Thing, old_given: Body | None) -> None:
        inner = thing.properties["ipConfigurations"][0].setdefault("properties", {})
        public = inner.get("publicIPAddress")
        address = world.find(public["id"]) if public else None
        if asked_address(inner):
            thing.made["address"] = asked_address(inner)
            if world.nodes is not None and address:
                address.made["ipAddress"] = thing.made["address"]
        if "address" not in thing.made:
            if world.nodes is not None:  # A node has one address, inside and outside.
                thing.made["address"] = (
                    address.made["ipAddress"] if address else world.nodes.address()
                )
            else:
                thing.made["address"] = free_address(world, inner["subnet"]["id"])
        if "mac" not in thing.made:
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
            "privateIPAllocationMethod": configuration["properties"].get(
                "privateIPAllocationMethod", "Dynamic"
            ),
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
        raise real("interface-in-use", thing=thing.id, user=user)
    keeper, until = thing.made.get("_reserved", ("", 0.0))
    if until > world.now() and not (by and same(keeper, by)):
        raise real("interface-reserved", keeper=keeper)
