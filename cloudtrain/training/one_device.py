"""OneDeviceStrategy, or no strategy at all: one machine, one device."""

from __future__ import annotations

from cloudtrain.training.strategy import Strategy

ONE_DEVICE = Strategy(
    name="one_device",
    example={"chief": 1},
    single_node=True,
    uses=("tensorflow.*.OneDeviceStrategy",),
)
