"""All strategies. To add one: a file here, a line below and a row in docs/config.md."""

from __future__ import annotations

from cloudtrain.core.errors import UsageError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.training.central_storage import CENTRAL_STORAGE
from cloudtrain.training.custom import CUSTOM
from cloudtrain.training.horovod import HOROVOD
from cloudtrain.training.mirrored import MIRRORED
from cloudtrain.training.multi_worker_mirrored import MULTI_WORKER_MIRRORED
from cloudtrain.training.one_device import ONE_DEVICE
from cloudtrain.training.parameter_server import PARAMETER_SERVER
from cloudtrain.training.strategy import Strategy
from cloudtrain.training.tpu import TPU

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        MULTI_WORKER_MIRRORED,
        PARAMETER_SERVER,
        MIRRORED,
        CENTRAL_STORAGE,
        ONE_DEVICE,
        TPU,
        HOROVOD,
        CUSTOM,
    )
}
"""By name, in the order shown to users."""


def strategy_of(config: ClusterConfig) -> Strategy:
    """Raises UsageError for a name that only another version of cloudtrain knows."""
    try:
        return STRATEGIES[config.strategy]
    except KeyError:
        raise not_launched(config.strategy) from None


def not_launched(name: str) -> UsageError:
    launched = sorted(strategy.name for strategy in STRATEGIES.values() if strategy.launched)
    return UsageError(
        f"strategy {name} is not supported by this version of cloudtrain",
        hint=f"use one of {', '.join(launched)}",
    )


def enforced_lifetime(config: ClusterConfig) -> float | None:
    """Seconds after which the cloud ends the nodes; None if nothing does.

    The Cloud TPU API has no lifetime for nodes:
    https://cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.nodes (tpu.v2.json).
    """
    return None if strategy_of(config).tpus else config.limits.max_lifetime
