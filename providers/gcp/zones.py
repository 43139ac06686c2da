"""Finds the zones of a placement, those that offer the machines of a plan, and have spot VMs."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence

from cloudtrain.core.errors import CloudConfigError, NotFoundError
from cloudtrain.core.model import Plan
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.partial_list import SpotEvidence
from cloudtrain.providers.base.driver import Location
from cloudtrain.providers.gcp import faults, reservations
from cloudtrain.providers.gcp.client import GcpClient, Json
from cloudtrain.providers.gcp.listing import last
from cloudtrain.providers.gcp.machine_types import mismatch, shape


def places(api: GcpClient, plan: Plan) -> tuple[Location, ...]:
    """The places of the placement, in its order: of a region, its zones with the machines. Raises
    CloudConfigError for a place that does not exist or lacks what the plan needs."""
    entries = zones(api, plan)
    all_places = [place for found in entries.values() for place in found]
    lacks = lacking(api, all_places, plan)
    kept = [place for place in dict.fromkeys(all_places) if not lacks[place]]
    lacks = {**lacks, **reservations.lacking(api, kept, plan)}
    wanted: dict[Location, None] = {}
    for entry, found in entries.items():
        good = [place for place in found if not lacks[place]]
        if not good:
            missing = sorted({what for place in found for what in lacks[place]})
            raise CloudConfigError(
                f"placement {entry} has no {', '.join(missing)}",
                hint="see https://cloud.google.com/compute/docs/regions-zones for zones that do",
            )
        wanted.update(dict.fromkeys(good))
    return tuple(wanted)


def zones(api: GcpClient, plan: Plan) -> dict[str, tuple[Location, ...]]:
    """The zones of each placement entry, without zones that are down."""
    known: list[Location] = []
    for page in api.pages("zones", "zones"):
        for zone in page.get("items") or ():
            if zone.get("status", "UP") == "UP":
                region = last(zone.get("region")) or str(zone["name"]).rpartition("-")[0]
                known.append(Location(region=region, zone=str(zone["name"])))
    known.sort()
    found = {}
    for entry in plan.config.placement:
        found[entry] = tuple(place for place in known if entry in (place.zone, place.region))
        if not found[entry]:
            names = sorted({p.zone for p in known} | {p.region for p in known})
            near = difflib.get_close_matches(entry, names, n=3)
            raise CloudConfigError(
                f"no zone or region {entry}, or it is down",
                hint=f"did you mean {' or '.join(near)}?" if near else None,
            )
    return found


def lacking(
    api: GcpClient, zones: Sequence[Location], plan: Plan
) -> Mapping[Location, tuple[str, ...]]:
    """The plan's machines and accelerators that each zone lacks, as far as it is reported."""
    shapes = [shape(node) for node in plan.nodes]
    kinds = {
        "machineTypes": sorted({each.machine for each in shapes}),
        "acceleratorTypes": sorted({each.attached for each in shapes if each.attached}),
    }
    questions = [
        (place, collection, name)
        for place in dict.fromkeys(zones)
        for collection, names in kinds.items()
        for name in names
    ]
    answers = fan_out(questions, lambda q: _told(api, *q), name=lambda q: f"{q[2]} in {q[0]}")
    _refuse_mismatches(plan, dict(zip(questions, answers, strict=True)))
    absent = {q for q, answer in zip(questions, answers, strict=True) if answer is None}
    for collection, names in kinds.items():
        for name in names:
            of_it = [q for q in questions if q[1:] == (collection, name)]
            if set(of_it) <= absent and _reports_none(api, of_it[0][0], collection):
                absent -= set(of_it)
    return {
        place: tuple(q[2] for q in questions if q in absent and q[0] == place) for place in zones
    }


def _told(api: GcpClient, place: Location, collection: str, name: str) -> Json | None:
    """The resource; None if it does not exist, empty if this endpoint does not report it."""
    try:
        found = api.get(f"{name} in {place}", f"zones/{place.zone}/{collection}/{name}")
        if collection == "machineTypes":
            api.described.setdefault(name, found)
        return found
    except NotFoundError as error:
        return {} if faults.is_unknown_question(error) else None


def _refuse_mismatches(
    plan: Plan, answers: Mapping[tuple[Location, str, str], Json | None]
) -> None:
    """Raise CloudConfigError if the zones report machines that do not match the plan."""
    by_name = {q[2]: answer for q, answer in answers.items() if q[1] == "machineTypes" and answer}
    found = [mismatch(node, by_name.get(shape(node).machine) or {}) for node in plan.nodes]
    if wrong := dict.fromkeys(text for text in found if text):
        raise CloudConfigError("; ".join(wrong), hint="check nodes.….machine and accelerator")


def _reports_none(api: GcpClient, place: Location, collection: str) -> bool:
    """True if this endpoint lists nothing in `collection`."""
    try:
        what = f"{collection} in {place}"
        pages = api.pages(what, f"zones/{place.zone}/{collection}")
        return not any(page.get("items") for page in pages)
    except NotFoundError:
        return True


# ── Places where Google expects to have spot VMs: its capacity advice ─────────────────────────
# `advice.capacity` is in the discovery document of compute v1, revision 20261106, and in version
# 1.57 of google-cloud-compute's stable client. Google's page on it
# (https://cloud.google.com/compute/docs/instances/view-vm-availability) had it as a Preview in July
# 2026: VMs of one machine type, 1 to 1000 of them, without attached GPUs, and no TPUs. Its
# "obtainability" is how likely it is to get all of them, 0 to 1; it needs the permission
# compute.advice.capacity. Nobody has tried it here on a real project.


SOURCE = "Google's capacity advice: obtainability from 0 to 1"
MOST = 1000
"""VMs of one question."""
WITHIN = 20.0
"""Seconds for the retries of a question: nothing depends on its answer."""


def spot_evidence(
    api: GcpClient, plan: Plan, places: Sequence[Location]
) -> tuple[SpotEvidence, ...]:
    """The lowest obtainability of the plan's spot machines in each place. Zones about which Google
    says nothing are left out; so are all of them if GPUs are attached to a spot node.

    One question for each zone and machine type: a question about a region scores only the zone
    that Google would take. The first is asked alone, so that a refusal costs one call."""
    kinds = [shape(node) for node in plan.nodes if node.spot]
    if not kinds or any(kind.attached for kind in kinds):
        return ()
    brief = api.brief(WITHIN)
    counts = Counter(kind.machine for kind in kinds)
    questions = [(place, machine, n) for place in places for machine, n in counts.items()]
    first = [_obtainability(brief, *question) for question in questions[:1]]
    rest = fan_out(
        questions[1:], lambda q: _obtainability(brief, *q), name=lambda q: f"{q[1]} in {q[0]}"
    )
    scores: dict[Location, list[float | None]] = {}
    for (place, _, _), score in zip(questions, [*first, *rest], strict=True):
        scores.setdefault(place, []).append(score)
    lowest = {
        place: min(known)
        for place, found in scores.items()
        if len(known := [score for score in found if score is not None]) == len(found)
    }
    return tuple(
        SpotEvidence(place=str(place), score=score, text=f"{score:g}", source=SOURCE)
        for place, score in lowest.items()
    )


def _obtainability(api: GcpClient, place: Location, machine: str, count: int) -> float | None:
    answer = api.call(
        f"capacity advice on {machine} in {place}",
        "POST",
        f"regions/{place.region}/advice/capacity",
        body=advice_request(place, machine, count),
    )
    scores: Mapping[str, float] = next(
        (each.get("scores") or {} for each in answer.get("recommendations") or ()), {}
    )
    return scores.get("obtainability")


def advice_request(place: Location, machine: str, count: int) -> Json:
    """The request about VMs in a single zone."""
    return {
        "instanceProperties": {"scheduling": {"provisioningModel": "SPOT"}},
        "instanceFlexibilityPolicy": {"instanceSelections": {"nodes": {"machineTypes": [machine]}}},
        "distributionPolicy": {
            "targetShape": "ANY_SINGLE_ZONE",
            "zones": [{"zone": f"zones/{place.zone}"}],
        },
        "size": min(count, MOST),
    }
