"""Checks whether a region name is possible, by each cloud's naming scheme.

The price table lacks some regions: a new one has a known direction or continent and another number.
Other names are typing errors, found before any cloud is queried."""

from __future__ import annotations

import difflib
import re

from cloudtrain.catalog import table
from cloudtrain.core.cloud import cloud_of, clouds


def invalid_region(provider: str, place: str) -> str | None:
    """Error text for an impossible zone or region, with the nearest known one; None if it may
    exist."""
    cloud = cloud_of(provider)
    if cloud is None:
        return None
    region = cloud.region_of(place)
    known = sorted({name for row in table.packaged(provider).rows for name in row.prices})
    is_region = region in known or bool(cloud.region and re.fullmatch(cloud.region, region))
    if is_region and place != region and not re.fullmatch(cloud.zone_names or ".*", place):
        return f"{provider} has no zone {place!r}: {region!r} tries each of the region"
    if is_region:
        return None
    alike = (c for c in clouds() if c.region and re.fullmatch(c.region, c.region_of(place)))
    owner = next((each.name for each in alike if each != cloud), None)
    near = difflib.get_close_matches(region, known, n=3, cutoff=cloud.region_likeness)
    another = not near or near[0].rstrip("0123456789") == region.rstrip("0123456789")
    if not cloud.region and another and owner is None:
        return None
    near.sort(key=lambda name: similarity(name, region))
    meant = f": did you mean {place.replace(region, near[-1], 1)!r}?" if near else ""
    whose = f", which is one of {owner}" if owner else ""
    return f"{provider} has no region or zone {place!r}{whose}{meant}"


def similarity(one: str, other: str) -> tuple[float, int]:
    """Of two equally near names, prefer the one that begins alike: `us-esat4` is `us-east4`."""
    same = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
    return difflib.SequenceMatcher(None, one, other).ratio(), same
