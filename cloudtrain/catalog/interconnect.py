"""Machines with a dedicated network between GPUs, and whether it is connected."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from cloudtrain import catalog
from cloudtrain.cloud import cloud_of
from cloudtrain.model import ClusterConfig
from cloudtrain.strategies import strategy_of

NO_INFINIBAND: Mapping[str, str] = {"NCCL_IB_DISABLE": "1"}
"""Makes NCCL use Ethernet at once, without trying InfiniBand devices that are not connected:
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-disable"""


def gpu_nodes(config: ClusterConfig) -> int:
    """Number of nodes with GPUs."""
    if strategy_of(config).tpus:
        return 0
    groups = (
        catalog.resolve_group(config.provider, group, config.placement)
        for group in config.nodes.values()
    )
    return sum(group.count for group in groups if group.accelerator)


def unconnected(config: ClusterConfig) -> tuple[str, ...]:
    """Return machines whose InfiniBand stays unconnected, if several nodes have one."""
    cloud = cloud_of(config.provider)
    if cloud is None or not cloud.infiniband:
        return ()
    found: Counter[str] = Counter()
    for group in config.nodes.values():
        machine = catalog.resolve_group(config.provider, group, config.placement).machine or ""
        if re.fullmatch(cloud.infiniband, machine, re.IGNORECASE):
            found[machine] += group.count
    return tuple(sorted(found)) if found.total() > 1 else ()
