"""Machines with a dedicated network between GPUs, and whether it is connected."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cloudtrain.core.cloud import cloud_of
from cloudtrain.core.model import Plan
from cloudtrain.training.strategies import strategy_of

NO_INFINIBAND: Mapping[str, str] = {"NCCL_IB_DISABLE": "1"}
"""Makes NCCL use Ethernet at once, without trying InfiniBand devices that are not connected:
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-disable"""


def gpu_nodes(plan: Plan) -> int:
    """Number of nodes with GPUs."""
    if strategy_of(plan.config).tpus:
        return 0
    return sum(node.accelerator is not None for node in plan.nodes)


def unconnected(plan: Plan) -> tuple[str, ...]:
    """Machines whose InfiniBand stays unconnected, if several nodes have one."""
    cloud = cloud_of(plan.config.provider)
    if cloud is None or not cloud.infiniband:
        return ()
    machines = (node.machine or "" for node in plan.nodes)
    found = [name for name in machines if re.fullmatch(cloud.infiniband, name, re.IGNORECASE)]
    return tuple(sorted(set(found))) if len(found) > 1 else ()
