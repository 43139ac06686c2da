"""Chooses a strategy for a cluster whose config names none."""

from __future__ import annotations

from cloudtrain.strategies.custom import CUSTOM
from cloudtrain.strategies.mirrored import MIRRORED
from cloudtrain.strategies.multi_worker_mirrored import MULTI_WORKER_MIRRORED
from cloudtrain.strategies.one_device import ONE_DEVICE
from cloudtrain.strategies.parameter_server import PARAMETER_SERVER
from cloudtrain.strategies.strategy import Counts, Strategy
from cloudtrain.task_id import ROLE_ORDER


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
