"""Offline checks of `plan` and `check`: what would fail on the nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cloudtrain.catalog.region_names import invalid_region
from cloudtrain.checks.bucket_notes import bucket_notes
from cloudtrain.checks.commands import placeholder_notes
from cloudtrain.checks.fill_in import marked
from cloudtrain.checks.import_notes import import_notes
from cloudtrain.checks.path_notes import path_notes
from cloudtrain.checks.script_notes import PARTS, script_notes
from cloudtrain.checks.setup import setup_notes
from cloudtrain.cluster.open_ports import open_ports_note
from cloudtrain.cluster.plan import tasks
from cloudtrain.cluster.task_launch import LaunchInputs, TaskLaunch, task_launches
from cloudtrain.config.env_file import environment_of
from cloudtrain.config.location import placed
from cloudtrain.core.cloud import facts_of, is_cloud
from cloudtrain.core.model import ClusterConfig, Plan, Problem
from cloudtrain.core.run_record import Run
from cloudtrain.datasets.dataset import is_for
from cloudtrain.playbooks import code_packages, tensorflow

LONGEST = 128 * 1024 - 1_024
"""Bytes of a task's command line, and of each of its variables with its name: Linux's limit for one
string (MAX_ARG_STRLEN, 32 pages), less room for what the launch puts before the command.
"""


def unknown_places(config: ClusterConfig) -> tuple[Problem, ...]:
    """Impossible regions and zones; not checked for a custom endpoint."""
    if not is_cloud(config.provider) or config.endpoints.compute:
        return ()
    wrong = (invalid_region(config.provider, place) for place in config.placement)
    found = Problem(file=config.source, line=None, field="placement", text="")
    return tuple(placed(config, replace(found, text=text)) for text in wrong if text)


def launched(plan: Plan, work: str = "<work of {}>") -> tuple[TaskLaunch, ...]:
    """Each task as it would be launched, with `<node name>` for addresses that only `up` knows."""
    run = Run(
        id="RUN",
        cluster=plan.config.name,
        command=plan.config.train.command,
        commands=plan.config.train.commands,
        tasks=tasks(plan),
        state="starting",
        created=0.0,
    )
    inputs = LaunchInputs(
        addresses={node.name: f"<{node.name}>" for node in plan.nodes},
        work={node.name: work.format(node.name) for node in plan.nodes},
        data={
            node.name: {
                name: f"<data.{name}>"
                for name, source in plan.config.data.items()
                if is_for(source, node.role)
            }
            for node in plan.nodes
        },
    )
    return task_launches(plan, run, inputs)


def too_long(config: ClusterConfig, started: Sequence[TaskLaunch]) -> tuple[Problem, ...]:
    """Command lines and variables that no node can start a program with; each once, for all
    tasks.
    """
    found: dict[str, Problem] = {}
    for launch in started:
        role = launch.task.role
        own = f".{role}" if role in config.train.commands else ""
        values = {f"train.command{own}": launch.command}
        for name, value in launch.environment.items():
            if isinstance(value, str):
                values[f"train.env.{name}"] = f"{name}={value}"
        for field, value in values.items():
            size = len(value.encode("utf-8", "surrogateescape"))
            if size > LONGEST and field not in found:
                text = (
                    f"is {size:,} bytes long; one argument or variable takes at most "
                    f"{LONGEST:,}: put it in a file that `code:` delivers"
                )
                problem = Problem(file=config.source, line=None, field=field, text=text)
                found[field] = placed(config, problem)
    return tuple(found.values())


def notes(config: ClusterConfig) -> tuple[str, ...]:
    """Notes on configs that work, but hardly as intended."""
    found = (
        tensorflow.newer_note(config),
        tensorflow.python_note(config),
        tensorflow.keras_note(config),
        tensorflow.keras_warning(config),
        code_packages.note(config),
        access_note(config),
        open_ports_note(config) if facts_of(config.provider).takes_hosts else None,
        evaluator_note(config),
        *setup_notes(config),
        *marked(config),
        *placeholder_notes(config),
    )
    of_script = script_notes(config)
    saves = any(PARTS in note for note in of_script)
    about_run = (*of_script, *import_notes(config), *bucket_notes(config), *path_notes(config))
    parts = () if saves else filter(None, [part_note(config)])
    return (*filter(None, found), *parts, *about_run, *_unset_secrets(config))


def evaluator_note(config: ClusterConfig) -> str | None:
    if "evaluator" not in config.nodes or config.train.checkpoints is not None:
        return None
    return (
        "evaluator: without train.checkpoints it gets no checkpoints from the chief, so it "
        "evaluates none"
    )


def part_note(config: ClusterConfig) -> str | None:
    """Note that each ps saves on its own disk (docs/artifacts.md has what was run)."""
    if "ps" not in config.nodes or config.train.checkpoints is None:
        return None
    return (
        f"train.checkpoints: {PARTS}: save with "
        "tf.train.CheckpointOptions(experimental_io_device='/job:chief/task:0/device:CPU:0'), in "
        "TensorFlow 1 with Saver(sharded=False) unless there is one ps, or to a folder that all "
        "nodes share or, with `identity`, a bucket"
    )


def _unset_secrets(config: ClusterConfig) -> Iterator[str]:
    environ = environment_of(config) if config.secrets else {}
    for name, variable in config.secrets.items():
        if not environ.get(variable):
            yield f"secrets.{name}: the environment variable {variable} is not set"


def access_note(config: ClusterConfig) -> str | None:
    network = config.network
    if not is_cloud(config.provider) or not network.private or network.ssh_proxy is not None:
        return None
    return (
        "network.private: SSH goes straight to the nodes' internal addresses, so this machine must "
        "be in their network, by a VPN for example; otherwise set network.ssh_proxy"
    )
