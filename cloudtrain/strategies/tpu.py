"""TPUStrategy: known by name, and refused."""

from __future__ import annotations

from cloudtrain.strategies.strategy import Strategy

TPU = Strategy(
    name="tpu",
    example={"chief": 1},
    single_node=True,
    tpus=True,
    launched=False,
    gpus=False,
    uses=("tensorflow.*.TPUStrategy",),
)
