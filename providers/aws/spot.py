"""Current prices of spot instances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from cloudtrain.providers.aws import xml
from cloudtrain.providers.aws.client import Ec2Client


@dataclass(frozen=True, kw_only=True, order=True)
class SpotPrice:
    dollars: float
    """Price of one Linux instance, in dollars per hour."""
    machine: str
    zone: str

    def __str__(self) -> str:
        return f"{self.machine} {self.dollars:.4g} $/hour in {self.zone}"


def prices(ec2: Ec2Client, region: str, machines: Sequence[str]) -> list[SpotPrice]:
    """Return the current price of each machine type in each zone that sells it, cheapest first. The
    call is free.

    With the current time as start time, EC2 returns only the current price, without history:
    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeSpotPriceHistory.html
    """
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
