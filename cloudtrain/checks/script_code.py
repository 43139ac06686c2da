"""Finds the script that a config's command starts, in the code that would be delivered."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from cloudtrain.checks.delivered_code import DeliveredCode, delivered_code
from cloudtrain.core.model import ClusterConfig
from cloudtrain.script.facts import ScriptFacts, together
from cloudtrain.script.program import Entry, read_program
from cloudtrain.script.shell_line import Started, started_by


@dataclass(frozen=True)
class StartedScript:
    """A command that starts Python code, and the code that is delivered."""

    config: ClusterConfig
    started: Started
    code: DeliveredCode

    @property
    def inside(self) -> PurePosixPath:
        """The folder of the code in which it starts."""
        place = PurePosixPath(self.config.train.dir) / self.started.folder
        return PurePosixPath(os.path.normpath(place))

    @cached_property
    def entry(self) -> Entry | None:
        """The file to read; None if it is missing or not part of the code."""
        if self.started.file is not None:
            path = os.path.normpath(self.inside / self.started.file)
            root = str(PurePosixPath(path).parent)
            readable = path in self.code.paths and path.endswith(".py")
            return Entry(path=path, root=root) if readable else None
        module = self.started.module or ""
        path = os.path.normpath(self.inside / module.replace(".", "/"))
        whole = {f"{path}/__main__.py": f"{module}.__main__", f"{path}.py": module}
        for candidate, name in whole.items():
            if candidate in self.code.paths:
                return Entry(path=candidate, root=str(self.inside), module=name)
        return None

    @cached_property
    def facts(self) -> ScriptFacts | None:
        return read_program(self.entry, self.code.read) if self.entry else None


def scripts_of(config: ClusterConfig) -> dict[str, StartedScript | None]:
    """Each different line's script, by field; None for a line that does not begin with Python code
    of a file or module. Empty if the code is not on this machine.
    """
    lines = {field: started_by(line) for field, line in command_lines(config).items()}
    code = delivered_code(config) if any(lines.values()) else None
    if code is None:
        return {}
    return {
        field: StartedScript(config, started, code) if started else None
        for field, started in lines.items()
    }


def facts_in(scripts: Iterable[StartedScript | None]) -> ScriptFacts | None:
    """Facts of all scripts that can be read, together; None if none can be read."""
    facts = [script.facts for script in scripts if script and script.facts]
    return together(facts) if facts else None


def command_lines(config: ClusterConfig) -> dict[str, str]:
    """Each different line of the roles that have nodes: field (`train.command.worker`) → line."""
    found: dict[str, str] = {}
    for role in config.nodes:
        line = config.train.line(role)
        field = f"train.command.{role}" if role in config.train.commands else "train.command"
        if line and line not in found.values():
            found[field] = line
    return found


def missing_script(config: ClusterConfig) -> str | None:
    """Error if a command is `python FILE` or `python -m MODULE` and the delivered code lacks it.

    Not checked for code of a git server, or for a line that does something else first.
    """
    found = (_missing(config, field, line) for field, line in command_lines(config).items())
    return next(filter(None, found), None)


def _missing(config: ClusterConfig, field: str, command: str) -> str | None:
    started = started_by(command)
    if started is None or config.code.git is not None:
        return None
    text = f"{field}: {started.words}"
    if config.code.path is None:
        if started.file is None:
            return None
        return f"{text} is not delivered: there is no `code:` (`code: {{path: .}}` is this folder)"
    code = delivered_code(config)
    return explain_missing(StartedScript(config, started, code), text) if code else None


_CONVERTS = "name the script that is written by `jupyter nbconvert --to script"


def explain_missing(script: StartedScript, text: str) -> str | None:
    """Error, which begins with `text`, if the delivered code lacks the script."""
    inside, there = script.inside, script.code.paths
    if script.started.file is not None and script.started.file.endswith(".ipynb"):
        return f"{text} is a notebook, which Python cannot run: {_CONVERTS} {script.started.file}`"
    if script.started.file is None:
        return _missing_module(text, script.started.module or "", inside, there)
    path = os.path.normpath(inside / script.started.file)
    if path in there or path.startswith("../") or _behind_a_link(path, there):
        return None
    excluded = script.code.excluded(path)
    if excluded:
        return f"{text} is not delivered: {excluded}"
    near = difflib.get_close_matches(path, [name for name in there if name.endswith(".py")], n=1)
    where = "" if str(inside) == "." else f", train.dir {inside}"
    meant = f": did you mean {os.path.relpath(near[0], inside)!r}?" if near else ""
    return f"{text} does not exist in {script.code.shown}{where}{meant}"


def _missing_module(
    text: str, module: str, inside: PurePosixPath, there: frozenset[str]
) -> str | None:
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


def _behind_a_link(path: str, there: frozenset[str]) -> bool:
    """True for a path behind a link, which is delivered as a link: its target is not listed."""
    return any(str(parent) in there for parent in PurePosixPath(path).parents)
