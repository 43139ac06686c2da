"""A config of Horovod."""

from __future__ import annotations

from typing import Any

from cloudtrain.core.model import Accelerator, ClusterConfig, NodeGroup, Setup


def config(
    provider: Any = "gcp", strategy: Any = "horovod", gpus: int = 0, **setup: Any
) -> ClusterConfig:
    accelerator = Accelerator(kind="T4", count=gpus) if gpus else None
    return ClusterConfig(
        name="mnist",
        provider=provider,
        strategy=strategy,
        placement=("us-central1-a",),
        nodes={"chief": NodeGroup(accelerator=accelerator)},
        setup=Setup(**{"tensorflow": "2.15.1", **setup}),
        source="/x/mnist.yaml",
    )
