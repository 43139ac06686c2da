"""Command lines that no shell or node could start, misspelt placeholders, and values to fill in."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path, PurePosixPath

from cloudtrain.cluster.plan import tasks
from cloudtrain.cluster.task_launch import LaunchInputs, TaskLaunch, task_launches
from cloudtrain.config.location import placed
from cloudtrain.core.model import ClusterConfig, Plan, Problem
from cloudtrain.core.run_record import Run
from cloudtrain.core.store_kinds import KINDS
from cloudtrain.datasets.dataset import is_for
from cloudtrain.training.strategies import strategy_of

_PART = (
    r"(?:[\w@%+=:,./{}\[\]-]|'[^']*'|\"(?:[^\"$`\\]|\$\w+|\$\{\w+\})*\""
    r"|\$\w+|\$\{\w+(?::-[\w./-]*)?\}|\\[\s\S])"
)
_SIMPLE = re.compile(rf"\s*{_PART}(?:\s|{_PART})*(?:\s(?:&&|\|\||\||;)\s+{_PART}(?:\s|{_PART})*)*")
"""Lines that a shell can parse for certain: words, quotes, variables and whole commands."""
_KEYWORDS = frozenset(
    ("if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac")
) | frozenset(("select", "function", "time", "{", "}", "[["))
_SECONDS = 10.0


def command_problems(config: ClusterConfig) -> tuple[Problem, ...]:
    """Each line of `train.command` and `setup.run` that bash cannot parse, each `{word}` in a
    command that looks like a placeholder, but is none, and a `shared` folder that the code has."""
    lines = config.train.lines()
    setup = {f"setup.run[{at}]": line for at, line in enumerate(config.setup.run)}
    found: list[Problem] = []
    for field, line in (*lines.items(), *setup.items()):
        why = syntax_error(line)
        if why:
            found.append(Problem(file=config.source, line=None, field=field, text=why))
    for field, line in lines.items():
        for word, meant in misspelt(config, line):
            text = (
                f"{{{word}}} is no placeholder: did you mean {{{meant}}}? (\\{{{word}}} keeps it)"
            )
            found.append(Problem(file=config.source, line=None, field=field, text=text))
    return (*found, *_shared_in_code(config))


def _shared_in_code(config: ClusterConfig) -> Iterator[Problem]:
    """Find what a node would refuse in its code: a folder that an earlier run made here."""
    if config.shared is None:
        return
    from cloudtrain.checks.script_code import delivered_code  # rarely needed

    code = delivered_code(config)
    wanted = os.path.normpath(PurePosixPath(config.train.dir, config.shared.folder))
    own = sorted(path for path in code.paths if f"{path}/".startswith(f"{wanted}/")) if code else ()
    if own:
        text = f"the code has {own[0]}: choose another name, or list it in .cloudtrainignore"
        yield Problem(file=config.source, line=None, field="shared", text=text)


def placeholder_notes(config: ClusterConfig) -> tuple[str, ...]:
    """A note for each misspelt placeholder in `train.env`, where no shell could keep the braces."""
    known = placeholders(config)
    return tuple(
        f"train.env.{name}: {{{word}}} is no placeholder: did you mean {{{meant}}}?"
        for name, value in config.train.env.items()
        for word, meant in _misspelt_in(value, known)
    )


def syntax_error(line: str) -> str | None:
    """Bash's error on a line that it cannot parse; None if it can, or is not on this machine."""
    if not line.strip() or (_SIMPLE.fullmatch(line) and not _KEYWORDS & set(line.split())):
        return None
    import subprocess  # slow: most lines need none

    try:
        done = subprocess.run(
            ["bash", "-n", "-c", line],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_SECONDS,
            env={"LC_ALL": "C", "PATH": os.defpath},
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    if done.returncode == 0:
        return None
    said = [re.sub(r"^bash: (-c: )?", "", each) for each in done.stderr.splitlines()]
    return f"bash cannot parse it: {said[0] if said else 'syntax error'}"


_WORD = re.compile(r"(?<![\\${])\{([A-Za-z][A-Za-z0-9_.-]*)\}")
_PLAIN = re.compile(r"[\w./:=@%+{}\\-]+")
"""An argument that is hardly a program or a template of another tool."""
_PROGRAMS = frozenset(("awk", "gawk", "mawk", "jq", "sed", "perl", "-c", "-e", "find", "xargs"))
_NEAR = 0.8


def misspelt(config: ClusterConfig, line: str) -> Iterator[tuple[str, str]]:
    """Each `{word}` in a plain argument that is nearly a placeholder, and the one that is meant."""
    known = placeholders(config)
    try:
        words = shlex.split(line.replace("\\{", "\\\\{"))
    except ValueError:
        return
    for before, word in zip(["", *words], words, strict=False):
        if before not in _PROGRAMS:
            yield from _misspelt_in(word, known)


def _misspelt_in(word: str, known: frozenset[str]) -> Iterator[tuple[str, str]]:
    if _PLAIN.fullmatch(word):
        for name in _WORD.findall(word):
            meant = _meant(name, known)
            if meant is not None:
                yield name, meant


def placeholders(config: ClusterConfig) -> frozenset[str]:
    """Names that `cluster/task_launch.placeholders` fills in for the tasks of a config."""
    own = strategy_of(config).placeholders
    roles = {f"{role}.hosts" for role in config.nodes}
    chief = {"chief.ip"} if "chief" in config.nodes else set()
    data = {f"data.{name}" for name in config.data}
    shared = {"shared"} if config.shared else set()
    return frozenset({"output", "role", "index", "run", *own, *roles, *chief, *data, *shared})


def _meant(name: str, known: frozenset[str]) -> str | None:
    if name in known:
        return None
    plain = {re.sub(r"[._-]", "", each).lower(): each for each in sorted(known)}
    bare = re.sub(r"[._-]", "", name).lower()
    near = difflib.get_close_matches(bare, plain, n=1, cutoff=_NEAR)
    if near:
        return plain[near[0]]
    head = re.fullmatch(r"(\w+?)[_.-](?:dir|path|folder|directory)", name)
    return head[1] if head and head[1] in known else None


# ── what `init` and `import` left to fill in ───────────────────────────────────


_MARK = re.compile(r"^(?P<value>[^#]*\S)\s+# FILL IN(?:: (?P<what>.*))?$")
_FILL_IN = re.compile(r"FILL_IN(?:_\w+)?")
_EXAMPLES = "|".join(f"{kind.scheme}://{kind.example}" for kind in KINDS if kind.example)
_BUCKET = re.compile(rf"(?:{_EXAMPLES})(?![\w-])")
_NOBODYS = re.compile(rf"(?:{_BUCKET.pattern})(?:/.*)?")
"""Buckets of our templates. The names are other people's."""
_NOT_WRITTEN = frozenset(("source", "folder", "defaults", "candidates", "overrides", "environment"))


def unfilled(config: ClusterConfig) -> tuple[Problem, ...]:
    """Values that are placeholders for the user's own."""
    found = []
    for field, value in _texts(config, ""):
        left = _FILL_IN.search(value)
        if left is not None:
            text = f"{left[0]} is still to be filled in"
        elif _NOBODYS.fullmatch(value) and config.endpoints.storage is None:
            text = f"{value} is the template's: put a bucket of yours"
        else:
            continue
        at = field.removesuffix(".source")  # of `data:`, whose short form has no key of its own
        found.append(Problem(file=config.source, line=None, field=at, text=text))
    return tuple(found)


def marked(config: ClusterConfig) -> tuple[str, ...]:
    """A note for each line of the file with the mark, whether it was changed or not; `unfilled`
    names those that hold a placeholder."""
    path = Path(config.source)
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ()
    found = []
    for number, line in enumerate(lines, 1):
        mark = _MARK.match(line)
        if mark and not _FILL_IN.search(mark["value"]) and not _BUCKET.search(mark["value"]):
            place = f"{path.name}:{number}: `{mark['value'].strip()}`"
            what = f" ({mark['what']})" if mark["what"] else ""
            found.append(f"{place} is marked FILL IN{what}: put your own, or remove the mark")
    return tuple(found)


def _texts(value: object, path: str) -> Iterator[tuple[str, str]]:
    """Every text of a config with its field."""
    if isinstance(value, str):
        yield path, value
    elif is_dataclass(value):
        for each in fields(value):
            if path or each.name not in _NOT_WRITTEN:
                name = f"{path}.{each.name}" if path else each.name
                yield from _texts(getattr(value, each.name), name)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _texts(each, f"{path}.{key}")
    elif isinstance(value, tuple):
        for number, each in enumerate(value):
            yield from _texts(each, f"{path}[{number}]")


# ── too long for a node ────────────────────────────────────────────────────────


LONGEST = 128 * 1024 - 1_024
"""Bytes of a task's command line, and of each of its variables with its name: Linux's limit for one
string (MAX_ARG_STRLEN, 32 pages), less room for what the launch puts before the command."""


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
        shared="<shared folder>" if plan.config.shared else "",
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
