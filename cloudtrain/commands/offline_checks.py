"""Offline checks of `plan` and `check`: what would fail on the nodes."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from cloudtrain.catalog.region_names import invalid_region
from cloudtrain.cloud import facts_of, is_cloud
from cloudtrain.cluster.plan import tasks
from cloudtrain.config.location import location_of
from cloudtrain.errors import CloudtrainError, ConfigError
from cloudtrain.model import ClusterConfig, Plan, Problem
from cloudtrain.playbooks import folder, horovod, requirements, tensorflow
from cloudtrain.run_record import Run
from cloudtrain.runs.task_launch import LaunchInputs, TaskLaunch, task_launches

LONGEST = 128 * 1024 - 1_024
"""Bytes of a task's command line, and of each of its variables with its name: Linux's limit for one
string (MAX_ARG_STRLEN, 32 pages), less room for what the launch puts before the command.
"""


def setup_problems(config: ClusterConfig) -> tuple[Problem, ...]:
    """Versions that cannot be installed, alone or together, and unreadable requirements."""
    found = [*tensorflow.problems(config), *horovod.problems(config)]
    try:
        requirements.lines(config)
    except ConfigError as error:
        found += error.problems
    return tuple(_placed(config, problem) for problem in found)


def _placed(config: ClusterConfig, problem: Problem) -> Problem:
    place = location_of(config, problem.field)
    return replace(problem, file=place.file, line=place.line) if place else problem


def unknown_places(config: ClusterConfig) -> tuple[Problem, ...]:
    """Impossible regions and zones; not checked for a custom endpoint."""
    if not is_cloud(config.provider) or config.endpoints.compute:
        return ()
    wrong = (invalid_region(config.provider, place) for place in config.placement)
    found = Problem(file=config.source, line=None, field="placement", text="")
    return tuple(_placed(config, replace(found, text=text)) for text in wrong if text)


def launched(plan: Plan, work: str = "<work of {}>") -> tuple[TaskLaunch, ...]:
    """Each task as it would be launched, with `<node name>` for addresses that only `up` knows."""
    run = Run(
        id="RUN",
        cluster=plan.config.name,
        command=plan.config.train.command,
        tasks=tasks(plan),
        state="starting",
        created=0.0,
    )
    inputs = LaunchInputs(
        addresses={node.name: f"<{node.name}>" for node in plan.nodes},
        work={node.name: work.format(node.name) for node in plan.nodes},
    )
    return task_launches(plan, run, inputs)


def too_long(config: ClusterConfig, started: Sequence[TaskLaunch]) -> tuple[Problem, ...]:
    """Command lines and variables that no node can start a program with; each once, for all
    tasks.
    """
    found: dict[str, Problem] = {}
    for launch in started:
        values = {"train.command": launch.command}
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
                found[field] = _placed(config, problem)
    return tuple(found.values())


def notes(config: ClusterConfig) -> tuple[str, ...]:
    """Notes on configs that work, but hardly as intended."""
    found = (
        tensorflow.keras_note(config),
        tensorflow.keras_warning(config),
        evaluator_note(config),
        missing_script(config) if config.code.path is not None else None,
    )
    return (*filter(None, found), *_unset_secrets(config))


def evaluator_note(config: ClusterConfig) -> str | None:
    if "evaluator" not in config.nodes or config.train.checkpoints is not None:
        return None
    text = "evaluator: without train.checkpoints it gets no checkpoints from the chief"
    if facts_of(config.provider).on_this_machine:
        return f"{text}: on this machine it finds them by path, but not on separate nodes"
    return f"{text}, so it evaluates none"


def _unset_secrets(config: ClusterConfig) -> Iterator[str]:
    for name, variable in config.secrets.items():
        if not os.environ.get(variable):
            yield f"secrets.{name}: the environment variable {variable} is not set"


# ── the script ───────────────────────────────────────────────────────────────


def missing_script(config: ClusterConfig) -> str | None:
    """Error if the command is `python FILE` or `python -m MODULE` and the delivered code lacks it.

    Not checked for code of a git server, or for a line that does something else first.
    """
    wanted = _script(config.train.command)
    if wanted is None or config.code.git is not None:
        return None
    text = f"train.command: {' '.join(wanted)}"
    if config.code.path is None:
        if wanted[0] == "-m":
            return None
        return f"{text} is not delivered: there is no `code:` (`code: {{path: .}}` is this folder)"
    root = config.folder / Path(config.code.path).expanduser()
    inside = PurePosixPath(os.path.normpath(config.train.dir))
    try:
        there = {entry.path for entry in folder.entries(config, root)}
    except CloudtrainError:
        return None  # reported by the check of `code:`
    if wanted[0] == "-m":
        return _missing_module(text, wanted[1], inside, there)
    path = os.path.normpath(inside / wanted[0])
    if path in there or path.startswith("../") or _behind_a_link(path, there):
        return None
    if (root / path).is_file():
        return f"{text} is not delivered: .gitignore or .cloudtrainignore excludes it"
    near = difflib.get_close_matches(path, [name for name in there if name.endswith(".py")], n=1)
    where = "" if str(inside) == "." else f", train.dir {inside}"
    meant = f": did you mean {os.path.relpath(near[0], inside)!r}?" if near else ""
    return f"{text} does not exist in {root}{where}{meant}"


def _script(command: str) -> tuple[str, ...] | None:
    """`("train.py",)` or `("-m", "pkg.task")`; None if the line begins in any other way."""
    first = re.split(r"[;&|\n]", command, maxsplit=1)[0]
    try:
        words = shlex.split(first)
    except ValueError:
        return None
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        if words[0].startswith(("PATH=", "PYTHONPATH=")):
            return None
        words.pop(0)
    if not words or not re.fullmatch(r"python[0-9.]*", words[0]):
        return None
    rest = words[1:]
    while rest and re.fullmatch(r"-[uOBEIsS]+", rest[0]):
        rest.pop(0)
    if len(rest) > 1 and rest[0] == "-m" and re.fullmatch(r"[A-Za-z_][\w.]*", rest[1]):
        return ("-m", rest[1])
    if rest and re.fullmatch(r"(?!/|-)[\w./ -]+\.py", rest[0]):
        return (rest[0],)
    return None


def _missing_module(text: str, module: str, inside: PurePosixPath, there: set[str]) -> str | None:
    """Error for a module whose package is delivered; any other may be installed."""
    package, _, _ = module.partition(".")
    if not any(name.startswith(f"{os.path.normpath(inside / package)}/") for name in there):
        return None
    path = os.path.normpath(inside / module.replace(".", "/"))
    if path == os.path.normpath(inside / package):
        return None if f"{path}/__main__.py" in there else f"{text}: {package} has no __main__.py"
    if {f"{path}.py", f"{path}/__main__.py"} & there or _behind_a_link(path, there):
        return None
    near = difflib.get_close_matches(f"{path}.py", sorted(there), n=1)
    meant = os.path.relpath(near[0], inside).removesuffix(".py").replace("/", ".") if near else ""
    return f"{text} does not exist in the code" + (f": did you mean {meant!r}?" if meant else "")


def _behind_a_link(path: str, there: set[str]) -> bool:
    """True for a path behind a link, which is delivered as a link: its target is not listed."""
    return any(str(parent) in there for parent in PurePosixPath(path).parents)
