"""TPUStrategy: known by name, and refused."""

from __future__ import annotations

from cloudtrain.strategies.strategy import Strategy

TPU = Strategy(
    name="tpu",
    example={"chief": 1},
    single_node=True,
    only_on=("gcp",),
    only_on_reason="the others have no TPUs (and is not supported yet)",
    launched=False,
    gpus=False,
)
