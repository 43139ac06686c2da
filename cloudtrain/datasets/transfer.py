"""Estimates what it costs to read a dataset from its store on the nodes, and to land artifacts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cloudtrain.core.cloud import Cloud, Egress, cloud_of, clouds
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.store_kinds import scheme_of

GB = 10**9


def transfer_cost(config: ClusterConfig, uri: str, location: str, size: int) -> str:
    """Text on what the store's cloud bills for `size` bytes read on nodes; "" if nobody bills.
    `location` is the region of the data, "" if not known. List prices, not a quote: without free
    allowances, discounts and requests, and more between some continents."""
    owner = _owner(uri)
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
    alike = rates.areas.get(location, "(?!)")
    free = [place for place in places if place == location or re.fullmatch(alike, place)]
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


def _dollars(gb_price: float) -> str:
    amount = gb_price / GB
    return "0.01 $" if amount < 0.01 else f"{amount:,.2f} $"


@dataclass(frozen=True, kw_only=True)
class Rate:
    """$ for each GB, at least and at most: it is 0 within a region, which may not be known."""

    least: float
    most: float

    def __str__(self) -> str:
        """`0.12 $/GB`, `0 to 0.02 $/GB`."""
        if self.least == self.most:
            return f"{self.most:g} $/GB"
        return f"{self.least:g} to {self.most:g} $/GB"


def reading_rate(config: ClusterConfig) -> Rate | None:
    """Rate that clouds bill for what these nodes read of `data:`; None if nobody bills."""
    uris = [each.source for each in config.data.values()]
    owners = [_owner(uri) for uri in uris if not _is_elsewhere(config, uri)]
    rates = [
        _rate(owner.egress, within=owner.name == config.provider)
        for owner in owners
        if owner is not None and owner.egress is not None
    ]
    if not rates:
        return None
    return Rate(least=min(r.least for r in rates), most=max(r.most for r in rates))


def landing_rate(config: ClusterConfig) -> Rate | None:
    """Rate that the nodes' cloud bills for artifacts that leave for their store, if any."""
    own, store = cloud_of(config.provider), config.artifacts.store
    if own is None or own.egress is None:
        return None
    owner = None if store is None or _is_elsewhere(config, store) else _owner(store)
    return _rate(own.egress, within=owner is not None and owner.name == own.name)


def _owner(uri: str) -> Cloud | None:
    return next((cloud for cloud in clouds() if cloud.store_scheme == scheme_of(uri)), None)


def _rate(egress: Egress, *, within: bool) -> Rate:
    """Rate for what leaves a cloud, or stays `within` it."""
    if within:
        return Rate(least=0.0, most=egress.regions)
    return Rate(least=egress.internet, most=egress.internet)
