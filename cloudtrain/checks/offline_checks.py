"""Offline checks of `plan` and `check`: what would fail on the nodes, and every note."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Literal

from cloudtrain.catalog.region_names import invalid_region
from cloudtrain.checks.commands import marked, placeholder_notes
from cloudtrain.checks.import_notes import import_notes
from cloudtrain.checks.path_notes import bucket_notes, path_notes
from cloudtrain.checks.script_code import program_notes
from cloudtrain.checks.script_notes import PARTS, script_notes
from cloudtrain.checks.setup import setup_notes
from cloudtrain.cluster.plan import open_ports_note, tasks
from cloudtrain.cluster.task_launch import LaunchInputs, TaskLaunch, task_launches
from cloudtrain.config import with_candidate
from cloudtrain.config.env_file import environment_of
from cloudtrain.config.location import placed
from cloudtrain.core.cloud import facts_of, is_cloud
from cloudtrain.core.model import ClusterConfig, Plan, Problem
from cloudtrain.core.run_record import Run
from cloudtrain.datasets.dataset import is_for
from cloudtrain.playbooks import code_packages, tensorflow
from cloudtrain.trust.consent import fact_lines
from cloudtrain.trust.file_facts import file_facts

LONGEST = 128 * 1024 - 1_024
"""Bytes of a task's command line, and of each of its variables with its name: Linux's limit for one
string (MAX_ARG_STRLEN, 32 pages), less room for what the launch puts before the command."""


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
    tasks."""
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


def data_notes(config: ClusterConfig) -> tuple[str, ...]:
    """Notes on `data:` that need no query."""
    found = []
    for name, source in config.data.items():
        if not source.shard:
            continue
        roles = (source.role,) if source.role else ("chief", "worker")
        ranks = sum(config.nodes[role].count for role in roles if role in config.nodes)
        others = [role for role in config.nodes if role not in roles]
        alone = f"; {', '.join(others)} get none of it" if others else ""
        found.append(
            f"data.{name}: each of {ranks} nodes ({', '.join(roles)}) gets 1 of every {ranks} files"
            f"{alone}: the script must not shard it again (AutoShardPolicy.OFF)"
        )
    if config.data:
        names = ", ".join(config.data)
        found.append(f"data ({names}): size and transfer cost are known after `check`")
    return tuple(found)


WIDE = {4: 16, 6: 48}
"""Bits of the widest range that is one network of a company or a site: 65,536 addresses, and the
/48 of a site (RFC 6177)."""


def rights_notes(config: ClusterConfig) -> tuple[str, ...]:
    return (*fact_lines(config, file_facts(config)), *open_notes(config))


def open_notes(config: ClusterConfig) -> tuple[str, ...]:
    """Notes on who may try to log in, if that is more than one network; each note once."""
    readings = [with_candidate(config, each) for each in config.candidates] or [config]
    return tuple(dict.fromkeys(note for each in readings for note in _open(each)))


def _open(config: ClusterConfig) -> Iterator[str]:
    source = config.network.ssh_from
    if not is_cloud(config.provider) or config.network.firewall is not None:
        return  # nothing is opened here
    if source in ("auto", "none"):
        return
    network = ipaddress.ip_network(source)
    bits, version = network.prefixlen, network.version
    if network.version == 6 and network.network_address.ipv4_mapped and bits >= 96:
        bits, version = bits - 96, 4
    if bits < WIDE[version]:
        count = f"{network.num_addresses:,}" if version == 4 else f"2^{128 - bits}"
        yield (
            f"network.ssh_from: port 22 is open to {count} addresses ({source}); `auto` opens it "
            "to yours alone"
        )


# ── every note ───────────────────────────────────────────────────────────────────────────────


def _of_hosts(config: ClusterConfig) -> str | None:
    return open_ports_note(config) if facts_of(config.provider).takes_hosts else None


def _of_the_script(config: ClusterConfig) -> tuple[str, ...]:
    """Notes on the script; that on a ps in general only if none names the line that saves."""
    found = script_notes(config)
    general = None if any(PARTS in note for note in found) else part_note(config)
    return found if general is None else (general, *found)


_NOTES: tuple[tuple[str, Callable[[ClusterConfig], str | Iterable[str] | None]], ...] = (
    ("check", rights_notes),
    ("plan", tensorflow.newer_note),
    ("plan", tensorflow.python_note),
    ("plan", tensorflow.keras_note),
    ("plan check", tensorflow.keras_warning),
    ("plan", code_packages.note),
    ("plan check", access_note),
    ("plan", _of_hosts),
    ("check", open_ports_note),
    ("plan check", evaluator_note),
    ("plan check", setup_notes),
    ("plan check", marked),
    ("plan check", placeholder_notes),
    ("plan", _of_the_script),
    ("check", script_notes),
    ("plan check", import_notes),
    ("check", program_notes),
    ("plan check", bucket_notes),
    ("plan check", path_notes),
    ("plan", _unset_secrets),
)
"""The commands that show a note, and what makes it."""


def notes(config: ClusterConfig, command: Literal["plan", "check"] = "plan") -> tuple[str, ...]:
    """Notes on configs that work, but hardly as intended."""
    found = (ask(config) or () for commands, ask in _NOTES if command in commands.split())
    return tuple(chain.from_iterable((each,) if isinstance(each, str) else each for each in found))
