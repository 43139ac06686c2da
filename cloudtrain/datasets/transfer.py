"""Estimates what it costs to read a dataset from its store on the nodes."""

from __future__ import annotations

import re

from cloudtrain.cloud import Egress, cloud_of, clouds
from cloudtrain.model import ClusterConfig
from cloudtrain.stores import scheme_of

GB = 10**9


def transfer_cost(config: ClusterConfig, uri: str, location: str, size: int) -> str:
    """What the store's cloud bills for `size` bytes read on nodes, in words; "" if nobody bills.

    `location` is the region of the data, "" if not known. List prices, not a quote: without free
    allowances, discounts and requests, and more between some continents.
    """
    owner = next((cloud for cloud in clouds() if cloud.store_scheme == scheme_of(uri)), None)
    rates = owner.egress if owner else None
    if owner is None or rates is None or _is_elsewhere(config, uri):
        return ""
    own = cloud_of(config.provider)
    if own is None or own.name != owner.name:
        return f"about {_dollars(size * rates.internet)} for egress from {owner.title} (estimate)"
    between = _dollars(size * rates.regions)
    if not location:
        return f"egress is free within one region, else about {between} (estimate)"
    places = list(dict.fromkeys(own.region_of(place) for place in config.placement))
    free = [place for place in places if _is_free(rates, location, place)]
    if len(free) == len(places):
        return f"egress is free within {location}"
    if not free:
        return f"about {between} for egress from {location} (estimate)"
    return f"egress is free in {', '.join(free)}, else about {between} (estimate)"


def _is_elsewhere(config: ClusterConfig, uri: str) -> bool:
    """True for a store behind an address of the user's own."""
    return config.endpoints.storage is not None and scheme_of(uri) == scheme_of(
        config.artifacts.store or uri
    )


def _is_free(rates: Egress, location: str, region: str) -> bool:
    return region == location or bool(re.fullmatch(rates.areas.get(location, "(?!)"), region))


def _dollars(gb_price: float) -> str:
    amount = gb_price / GB
    return "0.01 $" if amount < 0.01 else f"{amount:,.2f} $"
