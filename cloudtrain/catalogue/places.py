"""Checks whether a region name is possible, by how each cloud builds its names.

The price table does not have every region: a new one has a known direction or continent and another
number. Other names are typing errors, found before any cloud is asked. Sources (2026-11-22):
cloud.google.com/compute/docs/regions-zones,
docs.aws.amazon.com/global-infrastructure/latest/regions/aws-regions.html.
"""

from __future__ import annotations

import difflib
import re

from cloudtrain.catalogue import region_of, table

_DIRECTION = "(?:north|south|east|west|central|northeast|northwest|southeast|southwest)"
_NAMES = {
    "gcp": rf"(?:africa|asia|australia|europe|me|northamerica|southamerica|us)-{_DIRECTION}\d\d?",
    "aws": rf"(?:af|ap|ca|cn|eu|eusc|il|me|mx|sa|us|us-gov|eu-iso[a-z]|us-iso[a-z]?)-"
    rf"(?:[a-z]{{2}}-)?{_DIRECTION}-\d\d?(?:-[a-z]+-\d)?",
}
_ALIKE = {"gcp": 0.6, "aws": 0.6, "azure": 0.9}
"""So much of a known region's name must be there for it to have been meant."""


def misspelt(provider: str, place: str) -> str | None:
    """Error text for an impossible zone or region, with the nearest known one; None if it may
    exist.
    """
    if provider not in _ALIKE:
        return None
    region = region_of(provider, place)
    known = sorted({name for row in table.packaged(provider).rows for name in row.prices})
    if region in known:
        return None
    built = _NAMES.get(provider)
    if built and re.fullmatch(built, region):
        return None
    if any(re.fullmatch(name, region_of(cloud, place)) for cloud, name in _NAMES.items()):
        return None  # another cloud's: no slip of the pen, and its own words are better
    near = difflib.get_close_matches(region, known, n=3, cutoff=_ALIKE[provider])
    if not built and (not near or near[0].rstrip("0123456789") == region.rstrip("0123456789")):
        return None
    near.sort(key=lambda name: _alike(name, region))
    meant = f": did you mean {place.replace(region, near[-1], 1)!r}?" if near else ""
    return f"{provider} has no region or zone {place!r}{meant}"


def _alike(one: str, other: str) -> tuple[float, int]:
    """Of two equally near names, prefer the one that begins alike: `us-esat4` is `us-east4`."""
    same = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
    return difflib.SequenceMatcher(None, one, other).ratio(), same
