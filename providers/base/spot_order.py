"""Order the zones of a region by what the cloud says of spot capacity there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cloudtrain.core.errors import if_told
from cloudtrain.core.events import SpotOrderChosen
from cloudtrain.core.model import Plan
from cloudtrain.core.partial_list import SpotEvidence, evidence_text
from cloudtrain.core.protocols import Journal
from cloudtrain.providers.base.driver import CloudDriver, Location


def evidence(
    account: CloudDriver[Any], plan: Plan, places: Sequence[Location]
) -> tuple[SpotEvidence, ...]:
    """The evidence on these places, in their order. Raises CloudError."""
    if not any(node.spot for node in plan.nodes):
        return ()
    found = {each.place: each for each in account.spot_evidence(plan, places)}
    return tuple(found[str(place)] for place in places if str(place) in found)


def by_evidence(
    account: CloudDriver[Any], plan: Plan, places: Sequence[Location], journal: Journal
) -> tuple[Location, ...]:
    """The places with the zones of each region of the placement ordered by evidence.

    The order of what the placement names stays as written. Zones without evidence come last, in
    their order. Without any evidence, and if it cannot be had, nothing is reordered.
    """
    groups = _groups(plan.config.placement, places)
    open_to_choice = [place for group in groups if len(group) > 1 for place in group]
    if not open_to_choice:
        return tuple(places)
    found: tuple[SpotEvidence, ...] = if_told(lambda: evidence(account, plan, open_to_choice), ())
    scores = {each.place: each.score for each in found}
    ordered = tuple(
        place
        for group in groups
        for place in sorted(group, key=lambda p: -scores.get(str(p), float("-inf")))
    )
    if ordered != tuple(places):
        journal(SpotOrderChosen(places=tuple(map(str, ordered)), text=evidence_text(found)))
    return ordered


def _groups(placement: Sequence[str], places: Sequence[Location]) -> list[list[Location]]:
    """Places by the entry of the placement that names them, each at its first."""
    left = dict.fromkeys(places)
    groups = []
    for entry in placement:
        group = [place for place in left if entry in (place.zone, place.region)]
        left = {place: None for place in left if place not in group}
        groups.append(group)
    return [*filter(None, groups), *([place] for place in left)]
