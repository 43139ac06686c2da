"""ParameterServerStrategy: the chief hands steps to workers, whose variables are on ps tasks."""

from __future__ import annotations

from cloudtrain.core.task_id import ROLE_ORDER
from cloudtrain.training.strategy import Strategy, requires

PARAMETER_SERVER = Strategy(
    name="parameter_server",
    example={"chief": 1, "worker": 2, "ps": 1},
    roles=ROLE_ORDER,
    missing=requires(
        chief="a parameter_server job cannot start without its chief",
        worker="parameter_server needs at least one worker",
        ps="parameter_server needs at least one ps",
    ),
    tf_config=True,
    serves=("worker", "ps"),
    may_lose=("worker",),
    restarts_alone=("worker",),
    never_exit=("worker", "ps"),
    uses=("tensorflow.*.ParameterServerStrategy", "tensorflow.*.ParameterServerStrategyV2"),
    keras_3="fit_fails",
)
