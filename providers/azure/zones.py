"""Maps the config's placement to Azure's zones and regions."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Sequence

from cloudtrain.core.errors import CloudConfigError
from cloudtrain.core.model import Plan
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
    the reason. A region in which nothing would end the nodes is skipped.
    """
    refuse_lifetime(plan.config.limits.max_lifetime, far=services.of(DEADLINES) is not None)
    named = [parse_location(text) for text in plan.config.placement]
    if not named:
        raise CloudConfigError(
            "no placement", hint="set it to a region or zone: `placement: [eastus]`"
        )
    regions = _regions(arm)
    found: list[Location] = []
    for place in named:
        if regions is not None and place.region not in regions:
            raise CloudConfigError(_no_such(place.region, regions), hint="check `placement`")
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


def _regions(arm: ArmClient) -> Collection[str] | None:
    """The regions of the subscription; None if this endpoint does not list them."""
    locations = arm.pages_if_told(f"{arm.path}/locations")
    names = {plain(str(region.get("name", ""))) for region in locations}
    return names or None


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


def _no_such(region: str, regions: Collection[str]) -> str:
    near = difflib.get_close_matches(region, regions, n=1, cutoff=0.6)
    words = f"Azure has no region {region} for this subscription"
    return f"{words}; did you mean {near[0]}?" if near else words
