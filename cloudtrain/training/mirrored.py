"""MirroredStrategy: all devices of one machine train in step."""

from __future__ import annotations

from cloudtrain.training.strategy import Strategy

MIRRORED = Strategy(
    name="mirrored",
    example={"chief": 1},
    single_node=True,
    uses=("tensorflow.*.MirroredStrategy",),
)
