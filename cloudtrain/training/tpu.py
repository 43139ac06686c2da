"""TPUStrategy: one TPU VM, or a slice whose hosts are the workers 0 … N-1."""

from __future__ import annotations

from collections.abc import Mapping

from cloudtrain.core.cloud import facts_of
from cloudtrain.core.model import Plan
from cloudtrain.core.run_record import Run, Task
from cloudtrain.training.strategy import Strategy, requires

PORT = 8470
"""Port of TensorFlow's server on each host of a slice, which `tpu-vm-tf-…-pod…` software starts:
`_DEFAULT_ENDPOINT_PORT` of tensorflow/python/tpu/client/client.py."""


def variables(plan: Plan, run: Run, task: Task, addresses: Mapping[str, str]) -> Mapping[str, str]:
    """Variables by which TensorFlow finds the TPU without an account on the node.

    TPUClusterResolver takes TPU_NAME where the script names none: `local` is the TPU of this host,
    `grpc://…` all hosts of a slice; a slice's own name would need the Cloud TPU API on the node.
    Empty on this machine, which has none. On a slice TensorFlow's client must not load libtpu,
    which its server has loaded (Google's page "Run TensorFlow code on TPU Pod slices"; not tried).
    The other names are those that libtpu and GKE use.
    """
    hosts = [addresses[each.node] for each in sorted(run.tasks, key=lambda each: each.index)]
    found = {
        "TPU_NAME": "" if facts_of(plan.config.provider).on_this_machine else "local",
        "TPU_WORKER_ID": str(task.index),
        "TPU_WORKER_HOSTNAMES": ",".join(hosts),
        "CLOUDTRAIN_TPU": plan.nodes[0].name,
    }
    if len(hosts) > 1 and found["TPU_NAME"]:
        found["TPU_NAME"] = ",".join(f"grpc://{host}:{PORT}" for host in hosts)
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
    task_environment=variables,
    placeholders={"tpu": "TPU_NAME"},
)
