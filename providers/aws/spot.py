"""Current prices of spot instances, and where EC2 expects to have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import partial

from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CloudError, CloudtrainError, if_told
from cloudtrain.core.model import Plan
from cloudtrain.core.partial_list import SpotEvidence
from cloudtrain.providers.aws import xml
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.base.driver import Location

SCORES = "Spot placement scores, which EC2 keeps low for fewer than three machine types"
PRICES = "spot price of now"
REGIONS = 10
"""Most regions of one GetSpotPlacementScores (botocore's model)."""


@dataclass(frozen=True, kw_only=True, order=True)
class SpotPrice:
    dollars: float
    """Price of one Linux instance, in dollars per hour."""
    machine: str
    zone: str

    def __str__(self) -> str:
        return f"{self.machine} {self.dollars:.4g} $/hour in {self.zone}"


def prices(ec2: Ec2Client, region: str, machines: Sequence[str]) -> list[SpotPrice]:
    """The current price of each machine type in each zone that sells it, cheapest first. The call
    is free.

    With the current time as start time, EC2 returns only the current price, without history:
    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeSpotPriceHistory.html"""
    now = datetime.fromtimestamp(ec2.timing.clock.now(), timezone.utc)
    asked = {
        "InstanceType": list(machines),
        "ProductDescription": ["Linux/UNIX"],
        "StartTime": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    found: dict[tuple[str, str], SpotPrice] = {}
    key = "spotPriceHistorySet"
    for each in ec2.pages(region, "DescribeSpotPriceHistory", key, asked):
        machine, zone = xml.text(each, "instanceType"), xml.text(each, "availabilityZone")
        if machine in machines:
            dollars = float(xml.text(each, "spotPrice") or 0)
            found.setdefault(
                (machine, zone), SpotPrice(dollars=dollars, machine=machine, zone=zone)
            )
    return sorted(price for price in found.values() if price.dollars > 0)


def evidence(ec2: Ec2Client, plan: Plan, places: Sequence[Location]) -> tuple[SpotEvidence, ...]:
    """The Spot placement score and the current price of the plan's spot nodes in each zone.

    The score counts first, then the lower price. Without the permission for scores, the price
    alone counts: less asked for is cheaper. Raises CloudError if neither is to be had."""
    wanted = Counter(node.machine for node in plan.nodes if node.spot and node.machine)
    regions = list(dict.fromkeys(place.region for place in places))
    brief = ec2.briefly()
    scores, why = if_told(
        lambda: (_scores(brief, regions[:REGIONS], wanted), ""),
        lambda error: ({}, f"; no Spot placement scores: {_code(error)}"),
    )
    dollars = _dollars(brief, regions, wanted, needed=not scores)
    most = max(dollars.values(), default=1.0)
    found = []
    for zone in dict.fromkeys(place.zone for place in places):
        price = f"{dollars[zone]:.4g} $/hour" if zone in dollars else ""
        cheap = 1.0 - dollars[zone] / most if zone in dollars else 0.0  # below the next score
        if zone in scores:
            text = ", ".join(filter(None, [f"{scores[zone]}/10", price]))
            made = SpotEvidence(
                place=zone, score=scores[zone] + cheap * 0.9, text=text, source=SCORES
            )
        elif price and not scores:
            made = SpotEvidence(place=zone, score=cheap, text=price, source=f"{PRICES}{why}")
        else:
            continue
        found.append(made)
    return tuple(found)


def _code(error: CloudtrainError) -> str:
    return (isinstance(error, CloudError) and error.code) or error.message


def _scores(ec2: Ec2Client, regions: Sequence[str], wanted: Mapping[str, int]) -> dict[str, int]:
    """The score of each zone that has one for every machine type: the lowest counts.

    EC2 names the ten best zones, by IDs that are the same for all accounts.
    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_GetSpotPlacementScores.html"""
    zones = {
        xml.text(each, "zoneId"): xml.text(each, "zoneName")
        for region in regions
        for each in xml.items(ec2.ask(region, "DescribeAvailabilityZones"), "availabilityZoneInfo")
    }
    answers: list[dict[str, int]] = []
    for machine, count in wanted.items():
        asked = {
            "InstanceType": [machine],
            "TargetCapacity": count,
            "TargetCapacityUnitType": "units",
            "SingleAvailabilityZone": True,
            "RegionName": list(regions),
        }
        key = "spotPlacementScoreSet"
        told = ec2.pages(regions[0], "GetSpotPlacementScores", key, asked)
        answers.append(
            {
                zones[xml.text(each, "availabilityZoneId")]: int(xml.text(each, "score") or 0)
                for each in told
                if xml.text(each, "availabilityZoneId") in zones
            }
        )
    everywhere = set.intersection(*(set(each) for each in answers)) if answers else set()
    return {zone: min(answer[zone] for answer in answers) for zone in everywhere}


def _dollars(
    ec2: Ec2Client, regions: Sequence[str], wanted: Mapping[str, int], *, needed: bool
) -> dict[str, float]:
    """The price of all spot nodes by zone, where that of each machine type is known."""
    found: dict[str, dict[str, float]] = {}
    for region in regions:
        ask = partial(prices, ec2, region, list(wanted))
        for price in ask() if needed else if_told(ask, []):
            found.setdefault(price.zone, {})[price.machine] = price.dollars
    return {
        zone: sum(count * known[machine] for machine, count in wanted.items())
        for zone, known in found.items()
        if known.keys() >= wanted.keys()
    }
