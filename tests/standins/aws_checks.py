"""Whether EC2 would run what it is asked to run, and how many of it."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES

from tests.standins import (
    aws_addresses,
    aws_data,
    aws_profiles,
    aws_reservations,
    aws_subnets,
)
from tests.standins.aws_query import not_acted_out, real
from tests.standins.aws_world import World


def checked(world: World, region: str, given: dict[str, Any]) -> int:
    """How many can be had."""
    _follow_policy(world, given)
    if "MinCount" not in given or "MaxCount" not in given:
        raise real("mincount-missing")
    machine = given.get("InstanceType", "m1.small")
    market = given.get("InstanceMarketOptions", {})
    if market.get("SpotOptions", {}).get("SpotInstanceType", "one-time") != "one-time":
        raise not_acted_out("spot requests that are not one-time")
    if world.account_plan == "FREE" and not INSTANCE_TYPES[machine].get("FreeTierEligible"):
        raise real("not-eligible-for-free-tier")
    zone = _zone(world, region, given, machine)
    _check_image(world, region, given, machine)
    _check_others(world, region, given, machine)
    _check_interfaces(world, region, given, machine)
    aws_addresses.check_address(world, region, given)
    if not given.get("DryRun"):
        aws_subnets.check_room(world, given)
    aws_profiles.check(world, given)
    targets = aws_reservations.target_of(world, given)
    if given.get("DryRun"):
        raise real("dry-run-succeeds")
    if given["MaxCount"] == 1 and aws_reservations.place(world, region, given, machine, zone):
        return 1  # its quota was taken and its capacity set aside when it was reserved
    assert not targets or given["MaxCount"] == 1, "this stand-in reserves one at a time"
    spot = market.get("MarketType") == "spot"
    wanted = _within_quota(world, region, machine, spot, given)
    there = world.capacity.get(f"{machine} {zone}", wanted + len(world.alive(region)))
    taken = sum(
        one.instance_type == machine
        and one.availability_zone == zone
        and not getattr(one, "capacity_reservation_id", None)
        for one in world.alive(region)
        if one.state != "stopped"
    )
    if given.get("Placement", {}).get("GroupName") and zone in world.no_room_close:
        there = taken
    if there - taken < given["MinCount"]:
        if world.capacity_code == "UnfulfillableCapacity":
            raise real("unfulfillable")
        others = ", ".join(each for each in _offers(region, machine) if each != zone)
        raise real("no-capacity-in-zone", machine=machine, zone=zone, others=others)
    return min(wanted, there - taken)


def _follow_policy(world: World, given: dict[str, Any]) -> None:
    """`world.required`: what a service control policy demands of each RunInstances, such as
    `{"MetadataOptions.HttpTokens": "required", "BlockDeviceMappings.Ebs.Encrypted": True}`; it
    denies a dry run as it denies the call.

    https://docs.aws.amazon.com/organizations/latest/userguide/orgs_manage_policies_scps_examples_ec2.html
    """
    for path, needed in world.required.items():
        if set(_values(given, path.split("."))) != {needed}:
            raise real("launch-denied-by-organization", account=world.account, encoded="Ab3-_" * 40)


def _values(given: Any, path: list[str]) -> list[Any]:
    """What stands at `path`, in each member of the lists on the way."""
    if isinstance(given, list):
        return [value for each in given for value in _values(each, path)]
    if not path:
        return [given]
    return _values(given.get(path[0]), path[1:]) if isinstance(given, dict) else [None]


def _zone(world: World, region: str, given: dict[str, Any], machine: str) -> str:
    nic: dict[str, Any] = next(iter(given.get("NetworkInterfaces", [])), {})
    subnet = given.get("SubnetId") or nic.get("SubnetId")
    backend = world.backend(region)
    placed = given.get("Placement", {}).get("AvailabilityZone")
    if subnet:
        placed = backend.get_subnet(subnet).availability_zone
    offers = _offers(region, machine)
    if not offers:
        raise real("instance-type-unknown", machine=machine)
    if placed and placed not in offers:
        raise real("type-not-in-zone", machine=machine, placed=placed, offers=", ".join(offers))
    return str(placed or f"{region}a")


def _offers(region: str, machine: str) -> list[str]:
    """The zones that have this type."""
    return sorted(
        offer["Location"]
        for offer in INSTANCE_TYPE_OFFERINGS["availability-zone"][region]
        if offer["InstanceType"] == machine
    )


def _check_image(world: World, region: str, given: dict[str, Any], machine: str) -> None:
    image = world.backend(region).amis.get(given.get("ImageId"))
    if image is None:
        raise real("image-absent", image_id=given.get("ImageId"))
    supported = INSTANCE_TYPES[machine]["ProcessorInfo"]["SupportedArchitectures"]
    if image.architecture not in supported:
        raise real("architecture-of-another", wanted=supported[0], architecture=image.architecture)
    for mapping in given.get("BlockDeviceMappings", []):
        size = mapping.get("Ebs", {}).get("VolumeSize", image.gb)
        if mapping.get("DeviceName") == image.root_device_name and size < image.gb:
            raise real(
                "volume-smaller-than-snapshot",
                size=size,
                snapshot=image.ebs_snapshot.id,
                gb=image.gb,
            )


def _check_others(world: World, region: str, given: dict[str, Any], machine: str) -> None:
    try:
        data = base64.b64decode(given.get("UserData", ""), validate=True)
    except binascii.Error:
        raise real("user-data-not-base64") from None
    if len(data) > 16384:
        raise real("user-data-too-large")
    key = given.get("KeyName")
    if key and key not in world.backend(region).key_pairs:
        raise real("key-pair-absent", key=key)
    group = given.get("Placement", {}).get("GroupName")
    if group and (region, group) not in world.placement_groups:
        raise real("placement-group-absent", group=group)
    strategies = INSTANCE_TYPES[machine]["PlacementGroupInfo"]["SupportedStrategies"]
    if group and world.placement_groups[region, group]["Strategy"] not in strategies:
        raise real("type-not-for-placement-groups", machine=machine)
    kinds = {tags["ResourceType"] for tags in given.get("TagSpecifications", [])}
    market = given.get("InstanceMarketOptions", {}).get("MarketType")
    if "spot-instances-request" in kinds and market != "spot":
        raise real("spot-tags-without-spot")


def _check_interfaces(world: World, region: str, given: dict[str, Any], machine: str) -> None:
    """https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html; the cards and
    what each takes are EC2's own figures, as moto has them.
    """
    nics = given.get("NetworkInterfaces", [])
    if len(nics) > 1 and any("AssociatePublicIpAddress" in nic for nic in nics):
        raise real("public-address-with-several-interfaces")
    cards = INSTANCE_TYPES[machine]["NetworkInfo"]["NetworkCards"]
    takes = {card["NetworkCardIndex"]: card.get("InterfaceTypes", ["interface"]) for card in cards}
    places = [(nic.get("NetworkCardIndex", 0), nic.get("DeviceIndex")) for nic in nics]
    if len(set(places)) < len(places):
        raise real("device-index-twice")
    for nic, (card, device) in zip(nics, places, strict=True):
        kind = nic.get("InterfaceType", "interface")
        if kind not in takes.get(card, ()) or (kind == "efa-only" and (card, device) == (0, 0)):
            raise real("interface-type-not-of-card", card=card, machine=machine, kind=kind)
        for group in nic.get("Groups", ()) if kind != "interface" else ():
            _check_efa_group(world, region, group)


def _check_efa_group(world: World, region: str, id: str) -> None:
    """The real EC2 takes any group, and EFA then carries nothing."""
    group = world.backend(region).get_security_group_from_id(id)
    for rules in (group.ingress_rules, group.egress_rules):
        if not any(
            rule.ip_protocol == "-1" and rule.source_group.get("GroupId") == id for rule in rules
        ):
            raise not_acted_out(f"EFA without rules of '{id}' for all traffic from and to itself")


def _within_quota(
    world: World, region: str, machine: str, spot: bool, given: dict[str, Any]
) -> int:
    """How many the quota allows, at most as many as are wanted."""
    code = aws_data.quota_of(machine, spot)
    used = sum(
        _vcpus(one.instance_type)
        for one in world.alive(region)
        if one.state != "stopped"
        and not getattr(one, "capacity_reservation_id", None)
        and aws_data.quota_of(one.instance_type, one.lifecycle == "spot") == code
    )
    used += sum(  # a reservation counts while it is there, whoever uses it
        _vcpus(it["machine"]) * it["count"]
        for id, it in world.reservations.items()
        if it["zone"].startswith(region)
        and not it.get("block")
        and aws_reservations.state_of(world, id) == "active"
        and aws_data.quota_of(it["machine"], False) == code
    )
    allowed = int((world.quotas[code] - used) // _vcpus(machine))
    if allowed < given["MinCount"]:
        if spot:
            raise real("spot-limit")
        raise real("vcpu-limit", limit=f"limit of {world.quotas[code]:.0f}")
    return min(allowed, int(given["MaxCount"]))


def _vcpus(machine: str) -> int:
    return int(INSTANCE_TYPES[machine]["VCpuInfo"]["DefaultVCpus"])
