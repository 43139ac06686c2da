"""Builds one task's command and environment for its node."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import PurePosixPath

from cloudtrain.catalog import gpus
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.model import Plan
from cloudtrain.core.run_record import Run, Task
from cloudtrain.core.shell import Secret
from cloudtrain.ssh import node_proxy
from cloudtrain.training import interconnect
from cloudtrain.training.strategies import strategy_of
from cloudtrain.training.tf_config import target, tf_config_for


@dataclass(frozen=True, kw_only=True)
class TaskLaunch:
    """A task to start: its shell line and its whole environment."""

    task: Task
    command: str
    environment: Mapping[str, str | Secret]
    nccl_address: str | None = None
    """The node's address, on whose interface NCCL is to communicate; None without need."""
    folders: tuple[str, ...] = ()
    """Absolute folders outside its work folder that it uses."""


@dataclass(frozen=True, kw_only=True)
class LaunchInputs:
    """Facts on the nodes that launches need. Addresses and absolute work folders by node name."""

    addresses: Mapping[str, str]
    work: Mapping[str, str]
    bin_folder: Mapping[str, str | None] = field(default_factory=dict)
    """The folder of the environment's `python` on each node; None where none was installed."""
    extra: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Environment variables that the playbooks set for tasks, by node name."""
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    data: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Absolute folders of datasets, by node name and dataset name."""
    shared: str = ""
    """Absolute path of the run's part of the shared folder; "" without `shared:`."""


def task_launches(plan: Plan, run: Run, inputs: LaunchInputs) -> tuple[TaskLaunch, ...]:
    return tuple(task_launch(plan, run, task, inputs) for task in run.tasks)


def task_launch(plan: Plan, run: Run, task: Task, inputs: LaunchInputs) -> TaskLaunch:
    """The user's line with its placeholders filled, and the task's variables."""
    config, values = plan.config, placeholders(run, task, inputs)
    strategy, output = strategy_of(config), values["output"]
    own = strategy.task_environment(plan, run, task, inputs.addresses)
    values |= {name: own[variable] for name, variable in strategy.placeholders.items()}
    environment: dict[str, str | Secret] = {
        "PYTHONUNBUFFERED": "1",
        **strategy.environment(config),
        **own,
        **gpu_environment(plan, task.node),
        **(interconnect.NO_INFINIBAND if interconnect.unconnected(plan) else {}),
        **node_proxy.variables(config.network, inputs.addresses.values()),
        **inputs.extra.get(task.node, {}),
        "CLOUDTRAIN_RUN": run.id,
        "CLOUDTRAIN_ROLE": task.role,
        "CLOUDTRAIN_INDEX": str(task.index),
        "CLOUDTRAIN_OUTPUT": output,
        **{
            f"CLOUDTRAIN_DATA_{name.upper()}": folder
            for name, folder in inputs.data.get(task.node, {}).items()
        },
        **({"CLOUDTRAIN_SHARED": inputs.shared} if inputs.shared else {}),
        **{name: fill(value, values) for name, value in config.train.env.items()},
        **inputs.secrets,
    }
    text = tf_config_for(config, run.tasks, inputs.addresses, task)
    if text is not None:
        environment["TF_CONFIG"] = text
    quoted = {name: shlex.quote(value) for name, value in values.items()}
    bin_folder = inputs.bin_folder.get(task.node)
    line = fill(run.line(task.role), quoted)
    if strategy.wrap:
        python = "python" if bin_folder else "python3"
        line = strategy.wrap(plan, run, task, inputs.addresses, python, line)
    return TaskLaunch(
        task=task,
        command=path_prefix(bin_folder) + line,
        environment=environment,
        nccl_address=nccl_address(plan, task.node, inputs.addresses[task.node]),
        folders=(*inputs.data.get(task.node, {}).values(), *filter(None, [inputs.shared])),
    )


def nccl_address(plan: Plan, node: str, address: str) -> str | None:
    """The address by which the node finds NCCL's interface, if it has GPUs and others too. None for
    a name: on the node itself it often stands for the loopback."""
    if plan.accelerator(node) is None or interconnect.gpu_nodes(plan) < 2:
        return None
    try:
        return str(ip_address(address))
    except ValueError:
        return None


def gpu_environment(plan: Plan, node: str) -> Mapping[str, str]:
    """Compile cache large enough for a whole TensorFlow on a GPU that it has no code for.

    CUDA's own 256 MB (1 GB from 12.0 on) would evict it, so that every attempt compiled again.
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars"""
    has, version = plan.accelerator(node), plan.config.setup.tensorflow
    if has is None or version is None or gpus.fit(has.kind, version) in (None, "own"):
        return {}
    return {"CUDA_CACHE_MAXSIZE": str(4 * 1024**3)}


def placeholders(run: Run, task: Task, inputs: LaunchInputs) -> dict[str, str]:
    values = {
        "output": f"{inputs.work[task.node]}/output",
        "role": task.role,
        "index": str(task.index),
        "run": run.id,
    }
    hosts: dict[str, list[str]] = {}
    for other in sorted(run.tasks, key=lambda each: each.rank):
        address = inputs.addresses[other.node]
        if other.role == "chief":
            values["chief.ip"] = address
        hosts.setdefault(other.role, []).append(target(address, other.port))
    values |= {"shared": inputs.shared} if inputs.shared else {}
    values |= {f"{role}.hosts": ",".join(each) for role, each in hosts.items()}
    return values | {f"data.{name}": at for name, at in inputs.data.get(task.node, {}).items()}


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace placeholders such as `{output}` by their values; other braces are unchanged. One
    pass, so that a value that looks like a placeholder is not filled again."""
    return re.sub(
        r"\{([A-Za-z0-9_.-]+)\}", lambda match: values.get(match.group(1), match.group(0)), text
    )


def path_prefix(bin_folder: str | None) -> str:
    """Shell line that puts the environment's `python` first; its folder is relative to the home."""
    if bin_folder is None:
        return ""
    folder, environment = with_path(bin_folder), with_path(str(PurePosixPath(bin_folder).parent))
    return f'export PATH={folder}:"$PATH" VIRTUAL_ENV={environment}\n'


def with_path(path: str) -> str:
    return shlex.quote(path) if path.startswith("/") else f'"$HOME"/{shlex.quote(path)}'
