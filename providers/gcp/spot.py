"""Places where Google expects to have spot VMs: its capacity advice.

`advice.capacity` is in the discovery document of compute v1, revision 20261106, and in version 1.57
of google-cloud-compute's stable client. Google's page on it
(https://cloud.google.com/compute/docs/instances/view-vm-availability) had it as a Preview in July
2026: VMs of one machine type, 1 to 1000 of them, without attached GPUs, and no TPUs. Its
"obtainability" is how likely it is to get all of them, 0 to 1; it needs the permission
compute.advice.capacity. Nobody has tried it here on a real project.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from cloudtrain.core.model import Plan
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.partial_list import SpotEvidence
from cloudtrain.providers.base.driver import Location
from cloudtrain.providers.gcp.client import GcpClient, Json
from cloudtrain.providers.gcp.machine_types import shape

SOURCE = "Google's capacity advice: obtainability from 0 to 1"
MOST = 1000
"""VMs of one question."""
WITHIN = 20.0
"""Seconds for the retries of a question: nothing depends on its answer."""


def evidence(api: GcpClient, plan: Plan, places: Sequence[Location]) -> tuple[SpotEvidence, ...]:
    """The lowest obtainability of the plan's spot machines in each place. Zones about which Google
    says nothing are left out; so are all of them if GPUs are attached to a spot node.

    One question for each zone and machine type: a question about a region scores only the zone
    that Google would take. The first is asked alone, so that a refusal costs one call.
    """
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
        body=question(place, machine, count),
    )
    scores: Mapping[str, float] = next(
        (each.get("scores") or {} for each in answer.get("recommendations") or ()), {}
    )
    return scores.get("obtainability")


def question(place: Location, machine: str, count: int) -> Json:
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
