"""Quotas of a subscription in each region: limits, usage, and what nodes need of them.

https://learn.microsoft.com/rest/api/compute/usage/list"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.model import MachineType, NodePlan
from cloudtrain.core.partial_list import PartialList
from cloudtrain.core.protocols import Allowance
from cloudtrain.providers.azure import zones
from cloudtrain.providers.azure.client import ArmClient, side_by_side
from cloudtrain.providers.azure.facts import FACTS
from cloudtrain.providers.azure.listing import plain
from cloudtrain.providers.azure.machine_types import Sku, Skus
from cloudtrain.providers.base.quota import Quotas, allowance, allowances_in


@dataclass(frozen=True, kw_only=True)
class Quota:
    name: str
    limit: int
    """Limit of the quota; -1 means unlimited."""
    used: int


def left(
    arm: ArmClient,
    region: str,
    namespaces: Sequence[str] = ("Microsoft.Compute", "Microsoft.Network"),
) -> dict[str, Quota]:
    """The remaining quota by `key` of its name, of these namespaces together."""
    paths = [f"{arm.path}/providers/{name}/locations/{region}/usages" for name in namespaces]
    lists = side_by_side(*(partial(arm.pages_if_told, path) for path in paths))
    found = {}
    for usage in itertools.chain.from_iterable(lists):
        name = str((usage.get("name") or {}).get("value", ""))
        limit, used = usage.get("limit"), usage.get("currentValue")
        if isinstance(limit, int | float) and isinstance(used, int | float):
            found[key(name)] = Quota(name=name, limit=int(limit), used=int(used))
    return found


def key(name: str) -> str:
    """A quota name in lower case without spaces, as SKUs and usages differ in these:
    https://github.com/skypilot-org/skypilot/issues/10120"""
    return re.sub(r"[^a-z0-9]", "", name.lower())


ADDRESSES = "IPv4StandardSkuPublicIpAddresses"
"""Quota of public addresses by its current name in `az network list-usages`; older answers lack
`IPv4`."""


def keys(name: str) -> tuple[str, ...]:
    older = (key(name.removeprefix("IPv4")),) if name == ADDRESSES else ()
    return (key(name), *older)


def need(
    nodes: Sequence[NodePlan], known: Mapping[str, Sku], *, public: bool
) -> tuple[dict[str, int], tuple[str, ...]]:
    """The amount that all roles together need of each quota, and the machine types whose number of
    cores is unknown.

    Spot nodes count against `lowPriorityCores` only; a capacity reservation took its cores when it
    was made, so its nodes need none.
    https://learn.microsoft.com/azure/virtual-machines/spot-vms#pricing"""
    needs: Counter[str] = Counter()
    unknown = {}
    for node in nodes:
        sku = known.get((node.machine or "").lower())
        reserved = bool(node.provisioning.name)
        if not reserved and (sku is None or sku.cores is None or not (node.spot or sku.family)):
            unknown[str(node.machine)] = True
        if sku is not None and sku.cores is not None and not reserved:
            own = ["lowPriorityCores"] if node.spot else ["cores", sku.family]
            for name in filter(None, own):
                needs[name] += sku.cores
        if public:
            needs[ADDRESSES] += 1
    return dict(needs), tuple(unknown)


FAMILIES_IN = 6
"""Most regions whose machine types are listed for the names of their quotas, 1 MB each; a type has
the same family everywhere."""


def allowances(
    arm: ArmClient, skus: Skus, machines: Sequence[MachineType], regions: Sequence[str]
) -> PartialList[Allowance]:
    """Room that the quotas of cores leave in these regions, or in all of the subscription."""
    where = list(dict.fromkeys(map(plain, regions))) or sorted(zones.regions(arm))
    names = {machine.name.lower() for machine in machines}
    sizes: dict[str, Sku] = {}  # by name in lower case, from the first regions that have them
    for region in sorted(where, key=lambda region: region != FACTS.first_region)[:FAMILIES_IN]:
        known = skus.of(region) or {}
        sizes |= {name: known[name] for name in names - sizes.keys() if name in known}
        if sizes.keys() >= names:
            break

    def ask(region: str) -> list[Allowance]:
        found = left(arm, region, ("Microsoft.Compute",))
        return [
            _allowance(machine, sizes.get(machine.name.lower()), region, found, spot=spot)
            for machine in machines
            for spot in (False, True)
        ]

    return allowances_in(where, ask)


def _allowance(
    machine: MachineType,
    sku: Sku | None,
    region: str,
    found: Mapping[str, Quota],
    *,
    spot: bool,
) -> Allowance:
    family = sku.family if sku is not None and sku.family else f"family of {machine.name}"
    cores = sku.cores if sku is not None and sku.cores is not None else machine.vcpus
    names = ["lowPriorityCores"] if spot else ["cores", family]
    own = {name: found.get(key(name)) for name in names}
    reported: Quotas = {
        name: (math.inf if quota.limit < 0 else quota.limit, quota.used)
        for name, quota in own.items()
        if quota is not None
    }
    return allowance(machine, region, dict.fromkeys(names, cores), reported, spot=spot)
