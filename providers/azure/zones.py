"""Maps the config's placement to Azure's zones and regions."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from cloudtrain.core.errors import CloudConfigError
from cloudtrain.core.model import Plan
from cloudtrain.core.partial_list import SpotEvidence
from cloudtrain.providers.azure import reservations
from cloudtrain.providers.azure.client import ArmClient
from cloudtrain.providers.azure.expiry import LONGEST, refuse_lifetime
from cloudtrain.providers.azure.listing import plain
from cloudtrain.providers.azure.machine_types import Skus
from cloudtrain.providers.azure.resource_providers import DEADLINES, SCHEDULES, ResourceProviders
from cloudtrain.providers.base.driver import Location


def places(
    arm: ArmClient, skus: Skus, services: ResourceProviders, plan: Plan
) -> tuple[Location, ...]:
    """The places of the placement, in its order. Raises CloudConfigError for unknown names.

    A region is replaced by each of its zones that have all machines, followed by the region itself,
    in which Azure chooses the zone. A region that lacks a machine is kept, as Azure's refusal gives
    the reason. A region in which nothing would end the nodes is skipped."""
    refuse_lifetime(plan.config.limits.max_lifetime, far=services.of(DEADLINES) is not None)
    named = [parse_location(text) for text in plan.config.placement]
    if not named:
        raise CloudConfigError(
            "no placement", hint="set it to a region or zone: `placement: [eastus]`"
        )
    known = regions(arm)
    found: list[Location] = []
    for place in named:
        if known and place.region not in known:
            near = difflib.get_close_matches(place.region, known, n=1, cutoff=0.6)
            words = f"Azure has no region {place.region} for this subscription"
            words += f"; did you mean {near[0]}?" if near else ""
            raise CloudConfigError(words, hint="check `placement`")
        found += [place] if place.zone else [*_zones(skus, plan, place.region), place]
        if place.zone:
            _refuse_unknown(skus, place)
    left_out = unserved(services, plan, list(dict.fromkeys(place.region for place in found)))
    kept = tuple(dict.fromkeys(place for place in found if place.region not in left_out))
    if not kept:
        words = "; ".join(f"{region}: {why}" for region, why in left_out.items())
        raise CloudConfigError(words, hint="another region in `placement`, or max_lifetime: off")
    return reservations.fitting(reservations.find(arm, plan), plan, kept)


def unserved(services: ResourceProviders, plan: Plan, regions: Sequence[str]) -> dict[str, str]:
    """The regions in which Azure cannot end a node by itself, each with the reason."""
    lifetime = plan.config.limits.max_lifetime
    schedules = services.of(SCHEDULES) if lifetime is not None else None
    far, found = services.of(DEADLINES), {}
    for region in regions:
        if schedules is not None and not schedules.serves("schedules", region):
            found[region] = "Azure has no shutdown schedules there (Microsoft.DevTestLab/schedules)"
        elif (lifetime or 0.0) > LONGEST and far is not None and not far.is_far(region):
            found[region] = (
                "Azure cannot end a VM there after more than 24 h (Microsoft.ComputeSchedule)"
            )
    return found


def parse_location(text: str) -> Location:
    """Parse an entry of the placement: `eastus-1` is a zone, `eastus` (or `East US`) a region."""
    found = re.fullmatch(r"(.+)-(\d)", plain(text))
    region = found[1] if found else plain(text)
    return Location(region=region, zone=f"{region}-{found[2]}" if found else "")


def regions(arm: ArmClient) -> set[str]:
    """The regions of the subscription; empty if this endpoint does not list them."""
    locations = arm.pages_if_told(f"{arm.path}/locations")
    return {plain(str(region.get("name", ""))) for region in locations} - {""}


def _zones(skus: Skus, plan: Plan, region: str) -> Iterator[Location]:
    known = skus.of(region)
    if known is None:
        return
    wanted = [known.get((node.machine or "").lower()) for node in plan.nodes]
    zones = [sku.zones if sku and not sku.refused else frozenset[str]() for sku in wanted]
    for zone in sorted(frozenset.intersection(*zones)) if zones else ():
        yield Location(region=region, zone=f"{region}-{zone}")


def _refuse_unknown(skus: Skus, place: Location) -> None:
    known = skus.of(place.region)
    zones = {zone for sku in (known or {}).values() for zone in sku.all_zones}
    number = place.zone.rpartition("-")[2]
    if zones and number not in zones:
        there = ", ".join(f"{place.region}-{zone}" for zone in sorted(zones))
        raise CloudConfigError(
            f"no zone {place.zone}; {place.region} has {there}", hint="check `placement`"
        )


# ── Rates at which Azure has evicted spot VMs, as Resource Graph tells them ───────────────────


RESOURCES = "/providers/Microsoft.ResourceGraph/resources"
SOURCE = "evictions of the last 28 days, by Azure Resource Graph"
TRIES = 2
"""Few, as the answer is worth no wait."""


def spot_evidence(
    arm: ArmClient, plan: Plan, places: Sequence[Location]
) -> tuple[SpotEvidence, ...]:
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
    brief = copy.copy(arm)
    brief.timing = replace(arm.timing, calls=replace(arm.timing.calls, tries=TRIES))
    rates = _rates(brief, sorted(sizes), sorted(regions))
    found = []
    for place in dict.fromkeys(places):
        there = [rates.get((size, place.region)) for size in sizes]
        known = [rate for rate in there if rate is not None]
        if len(known) == len(there):
            worst = max(known, key=_lowest)
            text, score = f"{worst} % evicted an hour", -_lowest(worst)
            found.append(SpotEvidence(place=str(place), score=score, text=text, source=SOURCE))
    return tuple(found)


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
