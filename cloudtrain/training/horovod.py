"""Horovod: one task per node starts the node's ranks, which train in step."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from cloudtrain.core import ship
from cloudtrain.core.cloud import facts_of
from cloudtrain.core.model import ClusterConfig, Plan
from cloudtrain.core.run_record import Run, Task
from cloudtrain.training.strategy import Library, Strategy, requires

RANKS = "CLOUDTRAIN_HOROVOD"
"""The environment variable that carries horovod_ranks.py to the node."""


def line(
    plan: Plan, run: Run, task: Task, addresses: Mapping[str, str], python: str, own: str
) -> str:
    """Shell line of one node, which runs the user's line `own` for each rank. Node 0 has rank 0,
    and the rendezvous on its task's port."""
    first, others = run.tasks[0], [other for other in run.tasks if other is not task]
    hosts = ",".join(f"{other.node}:{slots(plan, other.node)}" for other in run.tasks)
    return "exec " + shlex.join(
        [
            *(python, "-c", ship.from_variable(RANKS)),
            *(hosts, task.node, addresses[first.node], str(first.port)),
            *(addresses[(others or [task])[0].node], own),
        ]
    )


def environment(config: ClusterConfig) -> dict[str, str]:
    """Raise Horovod's 30 s limit for ranks to find each other: some load all their data first."""
    return {
        RANKS: ship.text("horovod_ranks.py"),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": f"{config.train.start_timeout:.0f}",
    }


def slots(plan: Plan, node: str) -> int:
    """Ranks on a node: one for each accelerator, at least one."""
    if facts_of(plan.config.provider).on_this_machine:
        return 1
    gpus = plan.accelerator(node)
    return gpus.count if gpus else 1


LIBRARY = Library(
    package="horovod",
    version="0.28.1",  # the last release
    tensorflow=((2, 13), (2, 18)),  # unpatched
    advised="2.15.1",  # the last with the Keras it trains with; from 2.16 on that is tf_keras
    python="3.11",  # the last that has distutils, which its launcher imports
    needs=("cloudpickle", "packaging", "psutil", "pyyaml", "setuptools", "wheel"),
)

HOROVOD = Strategy(
    name="horovod",
    example={"worker": 2},
    roles=("worker",),
    missing=requires(worker="horovod needs at least one worker"),
    deciders="all",
    all_reduces=True,
    environment=environment,
    wrap=line,
    uses=("horovod.*init",),
    keras_3="fails",
    library=LIBRARY,
)
