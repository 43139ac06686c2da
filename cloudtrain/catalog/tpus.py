"""TPU types of the clouds: chips, hosts, and the price of each host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date

from cloudtrain.core.cloud import TpuFamily, cloud_of
from cloudtrain.core.dataclass import dataclass

HOSTS = 64
"""Most hosts of a slice: one request has the first-boot data of all, 3 KB each, and the metadata of
a Google VM has at most 512 KB: https://cloud.google.com/compute/docs/metadata/overview"""


@dataclass(frozen=True, kw_only=True)
class TpuType:
    name: str
    family: TpuFamily
    chips: int
    hosts: int

    @property
    def chips_per_host(self) -> int:
        return self.chips // self.hosts


def tpu_type(provider: str | None, machine: str | None) -> TpuType | None:
    """Look up a TPU type such as `v5litepod-16`; None if it is of no known generation, or of a size
    that no slice has."""
    cloud, found = cloud_of(provider), re.fullmatch(r"(\w+)-(\d+)", machine or "")
    if cloud is None or found is None:
        return None
    family = next((each for each in cloud.tpus if each.prefix == found[1]), None)
    if family is None:
        return None
    size = int(found[2])
    chips, rest = divmod(size, family.cores_per_chip)
    if rest or not 0 < chips <= family.most:
        return None
    hosts, rest = divmod(chips, family.per_host)
    if chips <= family.one_host:
        hosts, rest = 1, 0
    if rest:
        return None
    return TpuType(name=f"{family.prefix}-{size}", family=family, chips=chips, hosts=hosts)


def refusal(provider: str | None, machine: str | None) -> str | None:
    """Reason why this is no TPU that can be created; None if it is one."""
    cloud = cloud_of(provider)
    if cloud is None:
        return None
    kinds = ", ".join(f"{family.prefix}-N" for family in cloud.tpus)
    if machine is None:
        return f"is missing: name the TPU type: {kinds}; for example {cloud.tpus[0].prefix}-8"
    kind = tpu_type(provider, machine)
    if kind is None:
        return f"{machine} is no TPU type of {provider}: use {kinds}"
    if kind.hosts > HOSTS:
        return f"{machine} has {kind.hosts} hosts; cloudtrain creates slices of at most {HOSTS}"
    return None


def host_price(provider: str, machine: str, region: str, *, spot: bool) -> float | None:
    """$/hour of one host of the slice; None if not known."""
    kind = tpu_type(provider, machine)
    if kind is None or region not in kind.family.prices:
        return None
    price = kind.family.prices[region][1 if spot else 0]
    return None if price is None else price * kind.chips_per_host


def as_of(provider: str, machine: str) -> date | None:
    """Day of the prices of this type."""
    kind = tpu_type(provider, machine)
    return kind.family.priced if kind else None


def notes(provider: str, machine: str, spot: bool) -> Iterator[str]:
    """Lines about one slice for `plan`."""
    kind, cloud = tpu_type(provider, machine), cloud_of(provider)
    if kind is None or cloud is None:
        return
    hosts = "1 host" if kind.hosts == 1 else f"{kind.hosts} hosts, a node each"
    market = "spot" if spot else "on demand"
    yield f"{machine}: one TPU {market} with {kind.chips} chips on {hosts}"
    if cloud.tpu_end:
        yield (
            f"{machine}: it does not end by itself: {cloud.tpu_end}. After limits.max_lifetime it "
            "is billed until `cloudtrain down` or `gc` deletes it; limits.idle works while this "
            "machine is on"
        )


def wrong_zone(provider: str, machine: str, place: str) -> str | None:
    """Text if no zone of `place` is known to have this TPU type."""
    kind = tpu_type(provider, machine)
    zones = kind.family.zones if kind else ()
    if kind is None or any(zone == place or zone.startswith(f"{place}-") for zone in zones):
        return None
    known = ", ".join(zones)
    return f"{place} is not known to have {kind.family.prefix}: as of {kind.family.read}, {known}"
