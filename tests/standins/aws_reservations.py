"""Capacity Reservations, Capacity Blocks and Spot placement scores, which moto lacks.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-reservations-launch.html,
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/cr-groups-launch.html and
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html, read 2026-11-24. What
EC2 answers a launch into a block that is not active, no page says.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any

from werkzeug.wrappers import Request

from tests.standins.aws_query import not_acted_out, real
from tests.standins.aws_world import World

CLEARED = 1800.0
"""Seconds before a block's end at which its instances are terminated."""


def target_of(world: World, given: dict[str, Any]) -> tuple[str, ...]:
    """Ids of the reservations that the launch targets; empty if none."""
    wish = given.get("CapacityReservationSpecification", {})
    target, only = wish.get("CapacityReservationTarget"), wish.get("CapacityReservationPreference")
    if target and only not in (None, "capacity-reservations-only"):
        raise real("reservation-preference-and-target")
    if not target:
        return ()
    if len(target) != 1:
        raise real("reservation-id-and-group")
    if "CapacityReservationId" in target:
        return (_known(world, target["CapacityReservationId"]),)
    return tuple(world.reservation_groups.get(target["CapacityReservationResourceGroupArn"], ()))


def _known(world: World, id: str) -> str:
    if not re.fullmatch(r"cr-[0-9a-f]{8,17}", id):
        raise real("reservation-id-malformed", id=id)
    if id not in world.reservations:
        raise real("reservation-absent", id=id)
    return id


def place(world: World, region: str, given: dict[str, Any], machine: str, zone: str) -> str:
    """Id of the reservation in which the instance will be; "" on demand or as spot."""
    market = given.get("InstanceMarketOptions", {}).get("MarketType")
    ids = target_of(world, given)
    wish = given.get("CapacityReservationSpecification", {})
    by_group = "CapacityReservationResourceGroupArn" in wish.get("CapacityReservationTarget", {})
    if market == "capacity-block" and not ids:
        raise real("block-needs-its-reservation")
    if market == "spot" and ids:
        raise real("no-spot-in-reservation")
    if market == "spot":
        return ""
    if not ids and not by_group:
        return _open(world, region, machine, zone)
    fits = [id for id in ids if _fits(world, id, given, machine, zone, firmly=not by_group)]
    if fits:
        return fits[0]
    if by_group and wish.get("CapacityReservationPreference") is None and not market:
        return ""  # it runs on demand
    raise real("reservation-full")


def _fits(
    world: World, id: str, given: dict[str, Any], machine: str, zone: str, *, firmly: bool
) -> bool:
    it = world.reservations[id]
    block = given.get("InstanceMarketOptions", {}).get("MarketType") == "capacity-block"
    if firmly and bool(it.get("block")) != block:
        raise real("market-type-invalid")
    group = given.get("Placement", {}).get("GroupName", "")
    if block and group:
        raise real("no-placement-group-in-block")
    same = (it["machine"], it["zone"], it.get("tenancy", "default")) == (machine, zone, "default")
    same = same and it.get("placement_group", group) == group
    return same and state_of(world, id) == "active" and _left(world, id) > 0


def _open(world: World, region: str, machine: str, zone: str) -> str:
    """An instance on demand uses an open reservation that matches by itself."""
    for id, it in world.reservations.items():
        there = (it["machine"], it["zone"]) == (machine, zone) and not it.get("block")
        if it.get("open") and there and state_of(world, id) == "active" and _left(world, id):
            return id
    return ""


def state_of(world: World, id: str) -> str:
    it = world.reservations[id]
    if it.get("state", "active") != "active":
        return str(it["state"])
    if world.now() < it.get("starts", 0.0):
        return "scheduled"
    return "expired" if world.now() >= it.get("ends", float("inf")) else "active"


def _left(world: World, id: str) -> int:
    used = [
        one
        for one in world.alive(_region(world.reservations[id]["zone"]))
        if getattr(one, "capacity_reservation_id", None) == id and one.state != "stopped"
    ]
    return int(world.reservations[id]["count"]) - len(used)


def _region(zone: str) -> str:
    return zone.rstrip("abcdefgh")


class Reservations(World):
    def _describe_capacity_reservations(
        self, region: str, given: dict[str, Any], request: Request
    ) -> Any:
        wanted = [_known(self, id) for id in given.get("CapacityReservationIds", ())]
        for id in wanted:
            if _region(self.reservations[id]["zone"]) != region:
                raise real("reservation-absent", id=id)
        here = [id for id, it in self.reservations.items() if _region(it["zone"]) == region]
        return {"CapacityReservations": [self._told(id) for id in wanted or here]}

    def _told(self, id: str) -> dict[str, Any]:
        it = self.reservations[id]
        told: dict[str, Any] = {
            "CapacityReservationId": id,
            "OwnerId": self.account,
            "InstanceType": it["machine"],
            "InstancePlatform": "Linux/UNIX",
            "AvailabilityZone": it["zone"],
            "Tenancy": it.get("tenancy", "default"),
            "TotalInstanceCount": it["count"],
            "AvailableInstanceCount": _left(self, id) if state_of(self, id) == "active" else 0,
            "State": state_of(self, id),
            "EndDateType": "limited" if "ends" in it else "unlimited",
            "InstanceMatchCriteria": "open" if it.get("open") else "targeted",
            "ReservationType": "capacity-block" if it.get("block") else "default",
        }
        for key, name in (("starts", "StartDate"), ("ends", "EndDate")):
            if key in it:
                told[name] = datetime.fromtimestamp(it[key], timezone.utc)
        if it.get("placement_group"):
            told["PlacementGroupArn"] = (
                f"arn:aws:ec2:{_region(it['zone'])}:{self.account}:placement-group/"
                f"{it['placement_group']}"
            )
        return told

    def _get_spot_placement_scores(
        self, region: str, given: dict[str, Any], request: Request
    ) -> Any:
        if not given.get("InstanceTypes") or given.get("TargetCapacity", 0) < 1:
            raise real("score-without-capacity")
        if given.get("MaxResults", 10) < 10:
            raise real("maxresults-too-small")
        wanted = given.get("RegionNames") or self.regions
        if not given.get("SingleAvailabilityZone"):
            raise not_acted_out("scores of whole regions")
        return {
            "SpotPlacementScores": [
                {"Region": _region(zone), "AvailabilityZoneId": self.zone_id(zone), "Score": score}
                for zone, score in self.spot_scores.items()
                if _region(zone) in wanted
            ][:10]
        }

    def zone_id(self, zone: str) -> str:
        zones = self.backend(_region(zone)).describe_availability_zones()
        return str(next(each.zone_id for each in zones if each.name == zone))
