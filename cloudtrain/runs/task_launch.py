"""Builds one task's command, environment and work folder for its node."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from cloudtrain import layout
from cloudtrain.catalog import gpus, interconnect
from cloudtrain.model import ClusterConfig, Plan
from cloudtrain.run_record import Run, Task
from cloudtrain.shell import Command, Secret, script
from cloudtrain.strategies import strategy_of
from cloudtrain.tf_config import tf_config_for


@dataclass(frozen=True, kw_only=True)
class TaskLaunch:
    """A task to start: its shell line and its whole environment."""

    task: Task
    command: str
    environment: Mapping[str, str | Secret]


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    """Cluster facts that a launch needs. Addresses and absolute work folders by node name."""

    addresses: Mapping[str, str]
    work: Mapping[str, str]
    bin_folder: Mapping[str, str | None] = field(default_factory=dict)
    """The folder of the environment's `python` on each node; None where none was installed."""
    extra: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Environment variables that the playbooks set for tasks, by node name."""
    secrets: Mapping[str, Secret] = field(default_factory=dict)


def task_launches(plan: Plan, run: Run, site: ClusterFacts) -> tuple[TaskLaunch, ...]:
    return tuple(task_launch(plan, run, task, site) for task in run.tasks)


def task_launch(plan: Plan, run: Run, task: Task, site: ClusterFacts) -> TaskLaunch:
    """The user's line with its placeholders filled, and the task's variables."""
    config, values = plan.config, placeholders(run, task, site)
    strategy, output = strategy_of(config), values["output"]
    environment: dict[str, str | Secret] = {
        "PYTHONUNBUFFERED": "1",
        **strategy.environment(config),
        **gpu_environment(plan, task.node),
        **(interconnect.NO_INFINIBAND if interconnect.unconnected(config) else {}),
        **site.extra.get(task.node, {}),
        "CLOUDTRAIN_RUN": run.id,
        "CLOUDTRAIN_ROLE": task.role,
        "CLOUDTRAIN_INDEX": str(task.index),
        "CLOUDTRAIN_OUTPUT": output,
        **{name: fill(value, values) for name, value in config.train.env.items()},
        **site.secrets,
    }
    text = tf_config_for(config, run.tasks, site.addresses, task)
    if text is not None:
        environment["TF_CONFIG"] = text
    quoted = {name: shlex.quote(value) for name, value in values.items()}
    bin_folder = site.bin_folder.get(task.node)
    line = fill(run.command, quoted)
    if strategy.wrap:
        python = "python" if bin_folder else "python3"
        line = strategy.wrap(plan, run, task, site.addresses, python, line)
    return TaskLaunch(task=task, command=path_prefix(bin_folder) + line, environment=environment)


def gpu_environment(plan: Plan, node: str) -> Mapping[str, str]:
    """Compile cache large enough for a whole TensorFlow on a GPU that it has no code for.

    CUDA's own 256 MB (1 GB from 12.0 on) would evict it, so that every attempt compiled again.
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars
    """
    has, version = plan.accelerator(node), plan.config.setup.tensorflow
    if has is None or version is None or gpus.fit(has.kind, version) in (None, "own"):
        return {}
    return {"CUDA_CACHE_MAXSIZE": str(4 * 1024**3)}


def placeholders(run: Run, task: Task, site: ClusterFacts) -> dict[str, str]:
    values = {
        "output": f"{site.work[task.node]}/output",
        "role": task.role,
        "index": str(task.index),
        "run": run.id,
    }
    for other in run.tasks:
        if other.role == "chief":
            values["chief.ip"] = site.addresses[other.node]
    return values


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace placeholders such as `{output}` by their values; other braces are unchanged.

    One pass, so that a value that looks like a placeholder is not filled again.
    """
    return re.sub(r"\{([a-z.]+)\}", lambda match: values.get(match.group(1), match.group(0)), text)


def path_prefix(bin_folder: str | None) -> str:
    """Shell line that puts the environment's `python` first; the folder is relative to the home
    on the node.
    """
    if bin_folder is None:
        return ""
    folder, environment = with_path(bin_folder), with_path(str(PurePosixPath(bin_folder).parent))
    return f'export PATH={folder}:"$PATH" VIRTUAL_ENV={environment}\n'


def with_path(path: str) -> str:
    return shlex.quote(path) if path.startswith("/") else f'"$HOME"/{shlex.quote(path)}'


def prepare_work(config: ClusterConfig, run: Run, task: Task) -> Command:
    """Copy the delivered code to the task's own folder, once, and print the absolute path.

    `work` is a link to `train.dir` inside that copy, created last: an interrupted copy has none.
    """
    source = layout.code_folder(config.name, run.code) if run.code != NO_CODE else ""
    work = layout.work_folder(config.name, run.id, task.name)
    return script(PREPARE, work, source, config.train.dir)


def set_work_aside(run: Run, task: Task) -> Command:
    """Move the last attempt's work folder out of the way; prepare_work then creates a new one."""
    work = layout.work_folder(run.cluster, run.id, task.name)
    return script(SET_ASIDE, work, f"code.attempt-{task.attempt - 1}")


NO_CODE = "none"
"""`Run.code` if the config has no `code:`."""

PREPARE = """
set -eu
work=$1 source=$2 dir=$3
task=$(dirname "$work")
if ! [ -e "$work" ]; then
    mkdir -p "$task"
    rm -rf "$task/code"
    if [ -n "$source" ]; then cp -a "$source" "$task/code"; else mkdir "$task/code"; fi
    if ! [ -d "$task/code/$dir" ]; then
        echo "train.dir: no folder $dir in the code" >&2
        exit 3
    fi
    ln -sfn "code/$dir" "$work"
fi
mkdir -p "$work/output"
cd "$work" && pwd -P
"""

SET_ASIDE = """
set -eu
work=$1 aside=$2
cd "$(dirname "$work")" 2>/dev/null || exit 0
# In this order: if interrupted, it leaves no folder that PREPARE would take for its own.
if [ -e code ] && ! [ -e "$aside" ]; then mv code "$aside"; fi
rm -f work
"""
