"""Rates at which Azure has evicted spot VMs, as Resource Graph tells them."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cloudtrain.core.model import Plan
from cloudtrain.core.partial_list import SpotEvidence
from cloudtrain.providers.azure.client import ArmClient
from cloudtrain.providers.azure.listing import plain
from cloudtrain.providers.base.driver import Location

RESOURCES = "/providers/Microsoft.ResourceGraph/resources"
SOURCE = "evictions of the last 28 days, by Azure Resource Graph"
TRIES = 2


def evidence(arm: ArmClient, plan: Plan, places: Sequence[Location]) -> tuple[SpotEvidence, ...]:
    """The eviction rate of the plan's spot machines for each place, which is that of its region:
    Azure has none for zones.

    The query needs no right beyond reading the subscription. It is not limited to a subscription,
    as the table belongs to the tenant. https://learn.microsoft.com/azure/virtual-machines/spot-vms
    ("eviction data for the last 28 trailing days"); https://caleta.io/blog (2026-11) on the tenant.
    """
    sizes = {str(node.machine).lower() for node in plan.nodes if node.spot}
    regions = {place.region for place in places}
    if not sizes or not all(re.fullmatch(r"[a-z0-9_-]+", name) for name in (*sizes, *regions)):
        return ()
    rates = _rates(_briefly(arm), sorted(sizes), sorted(regions))
    found = []
    for place in dict.fromkeys(places):
        there = [rates.get((size, place.region)) for size in sizes]
        known = [rate for rate in there if rate is not None]
        if len(known) == len(there):
            worst = max(known, key=_lowest)
            text = f"{worst} % evicted an hour"
            score = -_lowest(worst)
            found.append(SpotEvidence(place=str(place), score=score, text=text, source=SOURCE))
    return tuple(found)


def _briefly(arm: ArmClient) -> ArmClient:
    """A client with few retries: the answer is worth no wait."""
    other = copy.copy(arm)
    other.timing = replace(arm.timing, calls=replace(arm.timing.calls, tries=TRIES))
    return other


def _rates(
    arm: ArmClient, sizes: Sequence[str], regions: Sequence[str]
) -> Mapping[tuple[str, str], str]:
    """The rate, such as `5-10` or `20+`, by machine type in lower case and region."""
    names, where = (", ".join(f"'{one}'" for one in each) for each in (sizes, regions))
    query = (
        "SpotResources | where type =~ 'microsoft.compute/skuspotevictionrate/location' "
        f"| where sku.name in~ ({names}) | where location in~ ({where}) "
        "| project size = tostring(sku.name), location, "
        "rate = tostring(properties.evictionRate)"
    )
    body = {"query": query, "options": {"resultFormat": "objectArray"}}
    answer = arm.call("POST", RESOURCES, body).body
    rows = answer.get("data") if isinstance(answer, dict) else None
    return {
        (str(row.get("size", "")).lower(), plain(str(row.get("location", "")))): str(row["rate"])
        for row in rows or ()
        if re.match(r"\d", str(row.get("rate", "")))
    }


def _lowest(rate: str) -> float:
    return float(re.split(r"[-+]", rate)[0])
