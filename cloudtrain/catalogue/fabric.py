"""Machines with a dedicated network between GPUs, and whether it is connected."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from cloudtrain import catalogue
from cloudtrain.model import ClusterConfig

NO_INFINIBAND: Mapping[str, str] = {"NCCL_IB_DISABLE": "1"}
"""NCCL takes the Ethernet card at once, and does not try InfiniBand devices that reach nobody:
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-disable"""


def unconnected(config: ClusterConfig) -> tuple[str, ...]:
    """Return Azure machines whose InfiniBand stays unconnected, if several nodes have one.

    Azure connects it only between VMs of one scale set or one availability set, and these are
    single VMs: https://learn.microsoft.com/azure/virtual-machines/setup-infiniband
    """
    if config.provider != "azure":
        return ()
    found: Counter[str] = Counter()
    for group in config.nodes.values():
        machine = catalogue.resolved(config.provider, group, config.placement).machine or ""
        if has_infiniband(machine):
            found[machine] += group.count
    return tuple(sorted(found)) if found.total() > 1 else ()


def has_infiniband(machine: str) -> bool:
    """True for names with an `r`:
    https://learn.microsoft.com/azure/virtual-machines/vm-naming-conventions
    """
    return bool(re.match(r"standard_(n[cd]|h[bc])\d+[a-z]*r[a-z]*(_|$)", machine.lower()))
