"""Rules on `nodes.ROLE.provisioning`."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.catalog import tpus
from cloudtrain.config.sections import ConfigFile
from cloudtrain.config.yaml_source import Path
from cloudtrain.core.cloud import EVERYWHERE, Cloud, cloud_of
from cloudtrain.core.model import Limits, Market

Found = Iterator[tuple[Path, str]]


def broken_provisioning_rules(file: ConfigFile) -> Found:
    """Rules on how machines are bought. What a cloud does not sell is refused by `plan`."""
    cloud = cloud_of(file.provider)
    for role, group in (file.nodes or {}).items():
        bought = group.provisioning if group is not None else None
        if group is None or bought is None:
            continue
        at: Path = ("nodes", role, "provisioning")
        if group.spot is not None:
            yield at, "conflicts with `spot`, which is short for it: use one of the two"
        if cloud is None:
            continue
        if bought.market not in cloud.markets:
            known = ", ".join(cloud.markets)
            yield at, f"{bought.market} is not known on {cloud.title}: it has {known}"
        elif bought.market not in EVERYWHERE and tpus.tpu_type(cloud.name, group.machine):
            yield at, f"{bought.market} is not for TPUs: use on-demand or spot"
        name = cloud.reservations.get(bought.market)
        if name is not None and not name.accepts(bought.name):
            yield at, f"{bought.name!r} is not {name.word}, such as {name.example}"
        yield from _run_time(file, cloud, role, bought.market)


def _run_time(file: ConfigFile, cloud: Cloud, role: str, market: Market) -> Found:
    """Rule on the lifetime of machines that a cloud sells for a limited time."""
    if market not in cloud.run_times:
        return
    shortest, longest = cloud.run_times[market]
    limits, given = file.limits, "max_lifetime"
    lifetime = Limits().max_lifetime
    if limits is not None and given in limits.model_fields_set:
        lifetime = limits.max_lifetime
    if lifetime is None or not shortest <= lifetime <= longest:
        yield (
            ("limits", given),
            f"must be between {shortest / 60:g}m and {longest / 86400:g}d: {cloud.vendor} sells "
            f"machines by {market} for no other time (nodes.{role})",
        )
