"""CentralStorageStrategy: the variables on one device of a machine, the work on all of them."""

from __future__ import annotations

from cloudtrain.training.strategy import Strategy

CENTRAL_STORAGE = Strategy(
    name="central_storage",
    example={"chief": 1},
    single_node=True,
    uses=("tensorflow.*.CentralStorageStrategy",),
    keras_3="fails",  # it trains, with wrong numbers
)
