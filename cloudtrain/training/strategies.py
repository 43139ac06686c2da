"""All strategies, each one value. To add one: a value here, its line in STRATEGIES, a row in
docs/config.md, a section in docs/strategies.md, and its nodes in tools/tensorflow_matrix.py (a
training that needs its own script: tools/matrix_training.py). A class that some releases of
TensorFlow lack is also in script/releases.py."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from cloudtrain.core.cloud import facts_of
from cloudtrain.core.errors import UsageError
from cloudtrain.core.model import ClusterConfig, Plan
from cloudtrain.core.run_record import Run, Task
from cloudtrain.core.task_id import ROLE_ORDER
from cloudtrain.training.horovod import HOROVOD
from cloudtrain.training.strategy import Counts, Strategy, requires


def _chief_or_worker(counts: Counts, named: Collection[str]) -> Iterator[tuple[str, str]]:
    if "chief" not in named:
        text = "one node must be the chief, which saves the model (`chief: false`: worker 0 does)"
        yield "chief", text
    elif not counts.get("chief") and not counts.get("worker"):
        yield "worker", "without a chief, at least one worker is needed"


MULTI_WORKER_MIRRORED = Strategy(
    name="multi_worker_mirrored",
    example={"chief": 1, "worker": 2},
    roles=("chief", "worker", "evaluator"),
    missing=_chief_or_worker,
    misplaced={"ps": "with a ps, the chief would wait forever (ps is for parameter_server)"},
    tf_config=True,
    serves=("chief", "worker"),
    all_reduces=True,
    # Only the chief has BackupAndRestore's file: the others would start at another epoch and fail.
    restart="all_anew",
    uses=("tensorflow.*.MultiWorkerMirroredStrategy", "tensorflow.*.CollectiveAllReduceStrategy"),
    keras_3="fit_fails",
)
"""All tasks train in step, each on its part of every batch."""

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
"""The chief hands steps to workers, whose variables are on ps tasks."""

MIRRORED = Strategy(
    name="mirrored", example={"chief": 1}, single_node=True, uses=("tensorflow.*.MirroredStrategy",)
)
"""All devices of one machine train in step."""

CENTRAL_STORAGE = Strategy(
    name="central_storage",
    example={"chief": 1},
    single_node=True,
    uses=("tensorflow.*.CentralStorageStrategy",),
    keras_3="fails",  # it trains, with wrong numbers
)
"""The variables on one device of a machine, the work on all of them."""

ONE_DEVICE = Strategy(
    name="one_device",
    example={"chief": 1},
    single_node=True,
    uses=("tensorflow.*.OneDeviceStrategy",),
)
"""One machine, one device."""

TPU_PORT = 8470
"""Port of TensorFlow's server on each host of a slice, which `tpu-vm-tf-…-pod…` software starts:
`_DEFAULT_ENDPOINT_PORT` of tensorflow/python/tpu/client/client.py."""


def _tpu_variables(
    plan: Plan, run: Run, task: Task, addresses: Mapping[str, str]
) -> Mapping[str, str]:
    """Variables by which TensorFlow finds the TPU without an account on the node.

    TPUClusterResolver takes TPU_NAME where the script names none: `local` is the TPU of this host,
    `grpc://…` all hosts of a slice; a slice's own name would need the Cloud TPU API on the node.
    Empty on this machine, which has none. On a slice TensorFlow's client must not load libtpu,
    which its server has loaded (Google's page "Run TensorFlow code on TPU Pod slices"; not tried).
    The other names are those that libtpu and GKE use."""
    hosts = [addresses[each.node] for each in sorted(run.tasks, key=lambda each: each.index)]
    found = {
        "TPU_NAME": "" if facts_of(plan.config.provider).on_this_machine else "local",
        "TPU_WORKER_ID": str(task.index),
        "TPU_WORKER_HOSTNAMES": ",".join(hosts),
        "CLOUDTRAIN_TPU": plan.nodes[0].name,
    }
    if len(hosts) > 1 and found["TPU_NAME"]:
        found["TPU_NAME"] = ",".join(f"grpc://{host}:{TPU_PORT}" for host in hosts)
        found["TPU_LOAD_LIBRARY"] = "0"
    return found


TPU = Strategy(
    name="tpu",
    example={"worker": 1},
    roles=("worker",),
    missing=requires(worker="each host of the TPU is a worker"),
    misplaced={"chief": "the hosts of a TPU are `worker`; worker 0 comes first"},
    tpus=True,
    gpus=False,
    uses=("tensorflow.*.TPUStrategy",),
    deciders="all",
    task_environment=_tpu_variables,
    placeholders={"tpu": "TPU_NAME"},
)
"""One TPU VM, or a slice whose hosts are the workers 0 … N-1."""

CUSTOM = Strategy(
    name="custom",
    example={"reader": 1, "trainer": 2},
    deciders="all",
    uses=("tensorflow.*.replica_device_setter",),  # roles and addresses from its own flags
)
"""Tasks of any roles, which find each other in their own way."""

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
    """The config's strategy. Raises UsageError for a name that this version does not know."""
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
    """Seconds after which the cloud ends the nodes; None if nothing does. The Cloud TPU API has no
    lifetime for nodes: https://cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.nodes
    (tpu.v2.json)."""
    return None if strategy_of(config).tpus else config.limits.max_lifetime


def strategy_for(counts: Counts, gpus: int) -> Strategy:
    """The strategy that these roles are made for; `gpus`: the most that one node has. A ps without
    a chief is TensorFlow 1's between-graph replication, which only `custom` starts:
    ParameterServerStrategy of TensorFlow 2 has a chief."""
    has = {role for role, count in counts.items() if count}
    if has - set(ROLE_ORDER) or ("ps" in has and not {"chief", "worker"} <= has):
        return CUSTOM
    if "ps" in has:
        return PARAMETER_SERVER
    if sum(counts.values()) > 1:
        return MULTI_WORKER_MIRRORED
    return MIRRORED if gpus > 1 else ONE_DEVICE
