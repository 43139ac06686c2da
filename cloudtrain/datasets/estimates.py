"""Estimates from the plan: what it costs to read a dataset from its store on the nodes and to land
artifacts, and whether all data fits the disks of the nodes."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import platformdirs

from cloudtrain.catalog import machine_type
from cloudtrain.core.cloud import Cloud, Egress, cloud_of, clouds, facts_of
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.model import ClusterConfig, NodePlan, Plan
from cloudtrain.core.store_kinds import scheme_of
from cloudtrain.datasets.dataset import DataFile

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
class EgressRate:
    """$ for each GB, at least and at most: it is 0 within a region, which may not be known."""

    least: float
    most: float

    def __str__(self) -> str:
        """`0.12 $/GB`, `0 to 0.02 $/GB`."""
        if self.least == self.most:
            return f"{self.most:g} $/GB"
        return f"{self.least:g} to {self.most:g} $/GB"


def reading_rate(config: ClusterConfig) -> EgressRate | None:
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
    return EgressRate(least=min(r.least for r in rates), most=max(r.most for r in rates))


def landing_rate(config: ClusterConfig) -> EgressRate | None:
    """Rate that the nodes' cloud bills for artifacts that leave for their store, if any."""
    own, store = cloud_of(config.provider), config.artifacts.store
    if own is None or own.egress is None:
        return None
    owner = None if store is None or _is_elsewhere(config, store) else _owner(store)
    return _rate(own.egress, within=owner is not None and owner.name == own.name)


def _owner(uri: str) -> Cloud | None:
    return next((cloud for cloud in clouds() if cloud.store_scheme == scheme_of(uri)), None)


def _rate(egress: Egress, *, within: bool) -> EgressRate:
    """Rate for what leaves a cloud, or stays `within` it."""
    if within:
        return EgressRate(least=0.0, most=egress.regions)
    return EgressRate(least=egress.internet, most=egress.internet)


# ── whether all data fits the disks, as far as they are known before ───────────


SYSTEM_GB, GPU_SYSTEM_GB = 6, 25
"""GB that are never free for data, at the least: Ubuntu and TensorFlow for CPUs; with NVIDIA's
driver, TensorFlow with CUDA and its downloads (`playbooks/base.ROOM_GB`)."""

Parts = Mapping[str, Sequence[Sequence[DataFile]]]
"""By dataset: the files of each node, in the plan's order."""


def too_small(plan: Plan, parts: Parts) -> tuple[str, ...]:
    """A sentence for each role, or this machine, whose disk cannot hold its data. Machines of
    `hosts:` are not known here, nor, before `check` or `up` has asked, local disks that a cloud's
    machine may have besides its root disk: nodes look at these before they download."""
    wanted = [
        sum(file.size for split in parts.values() for file in split[number])
        for number in range(len(plan.nodes))
    ]
    if facts_of(plan.config.provider).on_this_machine:
        return _on_this_machine(parts)
    found: dict[str, str] = {}
    for node, size in zip(plan.nodes, wanted, strict=True):
        disk, scratch, system = _disks(plan, node)
        if disk is None or scratch is None or node.role in found:
            continue
        if size > max(disk - system, scratch) * GB:
            local = f", nor its local disks of {scratch} GB" if scratch else ""
            found[node.role] = (
                f"nodes.{node.role}: {size / GB:,.1f} GB of data do not fit its disk of {disk} GB, "
                f"of which the system takes {system} or more{local}: "
                f"set disk_gb to {-(-size // GB) + system + 10:,} or more"
            )
    return tuple(found.values())


def _disks(plan: Plan, node: NodePlan) -> tuple[int | None, int | None, int]:
    """GB of a rented node's disk, of all local disks that images mount, and of what is never free;
    None for what is not known."""
    cloud, machine = cloud_of(plan.config.provider), node.machine or ""
    default = cloud and (cloud.gpu_disk_gb if node.accelerator else cloud.disk_gb)
    local = cloud.scratch_machines if cloud else ""
    scratch: int | None = 0
    if local and re.fullmatch(local, machine, re.IGNORECASE):
        listed = machine_type(plan.config.provider, machine)
        scratch = listed.scratch_gb if listed else None
    system = GPU_SYSTEM_GB if node.accelerator else SYSTEM_GB
    return node.disk_gb or default or None, scratch, system


def _on_this_machine(parts: Parts) -> tuple[str, ...]:
    """Compare all files, which the nodes here share, with the whole disk: how much of the data is
    there already is seen only by a run."""
    files = {(name, each.path): each.size for name, n in parts.items() for p in n for each in p}
    size = sum(files.values())
    folder = Path(os.environ.get("CLOUDTRAIN_CACHE") or platformdirs.user_cache_path("cloudtrain"))
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    disk = shutil.disk_usage(folder).total
    if size <= disk:
        return ()
    return (f"{size / GB:,.1f} GB of data do not fit this machine's disk of {disk / GB:,.1f} GB",)
