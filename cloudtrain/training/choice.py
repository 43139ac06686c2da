"""Chooses a strategy for a cluster whose config names none."""

from __future__ import annotations

from cloudtrain.core.task_id import ROLE_ORDER
from cloudtrain.training.custom import CUSTOM
from cloudtrain.training.mirrored import MIRRORED
from cloudtrain.training.multi_worker_mirrored import MULTI_WORKER_MIRRORED
from cloudtrain.training.one_device import ONE_DEVICE
from cloudtrain.training.parameter_server import PARAMETER_SERVER
from cloudtrain.training.strategy import Counts, Strategy


def strategy_for(counts: Counts, gpus: int) -> Strategy:
    """The strategy that these roles are made for; `gpus`: the most that one node has.

    A ps without a chief is TensorFlow 1's between-graph replication, which only `custom` starts:
    ParameterServerStrategy of TensorFlow 2 has a chief.
    """
    has = {role for role, count in counts.items() if count}
    if has - set(ROLE_ORDER) or ("ps" in has and not {"chief", "worker"} <= has):
        return CUSTOM
    if "ps" in has:
        return PARAMETER_SERVER
    if sum(counts.values()) > 1:
        return MULTI_WORKER_MIRRORED
    return MIRRORED if gpus > 1 else ONE_DEVICE
