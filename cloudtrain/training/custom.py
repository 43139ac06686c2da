"""Tasks of any roles, which find each other in their own way."""

from __future__ import annotations

from cloudtrain.training.strategy import Strategy

CUSTOM = Strategy(
    name="custom",
    example={"reader": 1, "trainer": 2},
    deciders="all",
    uses=("tensorflow.*.replica_device_setter",),  # roles and addresses from its own flags
)
