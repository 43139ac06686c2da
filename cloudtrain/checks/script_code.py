"""Finds the script that a config's command starts, in the code that would be delivered."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.playbooks import folder
from cloudtrain.script.facts import ScriptFacts, strategy_in, together
from cloudtrain.script.module import LARGEST
from cloudtrain.script.program import ModuleEntry, read_program
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
    def entry(self) -> ModuleEntry | None:
        """The file to read; None if it is missing or not part of the code."""
        if self.started.file is not None:
            path = os.path.normpath(self.inside / self.started.file)
            root = str(PurePosixPath(path).parent)
            readable = path in self.code.paths and path.endswith(".py")
            return ModuleEntry(path=path, root=root) if readable else None
        module = self.started.module or ""
        path = os.path.normpath(self.inside / module.replace(".", "/"))
        whole = {f"{path}/__main__.py": f"{module}.__main__", f"{path}.py": module}
        for candidate, name in whole.items():
            if candidate in self.code.paths:
                return ModuleEntry(path=candidate, root=str(self.inside), module=name)
        return None

    @cached_property
    def facts(self) -> ScriptFacts | None:
        return read_program(self.entry, self.code.read) if self.entry else None


def scripts_of(config: ClusterConfig) -> dict[str, StartedScript | None]:
    """Each different line's script, by field; None for a line that does not begin with Python code
    of a file or module. Empty if the code is not on this machine."""
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


def strategy_in_code(config: ClusterConfig) -> str | None:
    """The strategy that the config's script uses, if its code is in a folder here."""
    try:
        facts = facts_in(scripts_of(config).values())
    except CloudtrainError:
        return None
    return strategy_in(facts) if facts else None


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
    Not checked for code of a git server, or for a line that does something else first."""
    for field, line in command_lines(config).items():
        started = started_by(line)
        if started is None or config.code.git is not None:
            continue
        text, missing = f"{field}: {started.words}", None
        if config.code.path is not None:
            code = delivered_code(config)
            missing = explain_missing(StartedScript(config, started, code), text) if code else None
        elif started.file is not None:
            here = "`code: {path: .}` is this folder"
            missing = f"{text} is not delivered: there is no `code:` ({here})"
        if missing is not None:
            return missing
    return None


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


# ── the code that a config would deliver ───────────────────────────────────────


GIT_SECONDS = 5.0
"""Time for a git command on a local repository."""


class DeliveredCode:
    """Paths of all files that would be delivered, and their contents."""

    def __init__(self, shown: str, paths: frozenset[str]) -> None:
        self.shown, self.paths = shown, paths
        self._contents: dict[str, bytes | None] = {}

    def read(self, path: str) -> bytes | None:
        """At most LARGEST bytes and one more; None if it is not delivered or cannot be read."""
        if path in self.paths and path not in self._contents:
            self._contents[path] = self._content(path)
        return self._contents.get(path)

    def excluded(self, path: str) -> str | None:
        """Reason for which an existing file is not delivered; None if there is no such file."""
        raise NotImplementedError

    def executable(self, path: str) -> bool | None:
        """True if a file may be run as a program; None if that is not known."""
        return None

    def _content(self, path: str) -> bytes | None:
        raise NotImplementedError


class DeliveredFolder(DeliveredCode):
    """`code.path`, without files that are ignored. Raises CloudtrainError if it cannot be
    delivered."""

    def __init__(self, config: ClusterConfig, root: Path) -> None:
        self.listing = folder.listing(config, root)
        super().__init__(str(root), frozenset(each.path for each in self.listing.entries))
        self.root = root

    def excluded(self, path: str) -> str | None:
        if not (self.root / path).exists():
            return None
        left_out = self.listing.without(path)
        if left_out is None:
            return None
        way = f": {left_out.way}" if left_out.way else ""
        return f"left out ({left_out.why}){way}"

    def executable(self, path: str) -> bool | None:
        entry = next((each for each in self.listing.entries if each.path == path), None)
        return None if entry is None or entry.link is not None else entry.executable

    def _content(self, path: str) -> bytes | None:
        try:
            with (self.root / path).open("rb") as file:
                return file.read(LARGEST + 1)
        except OSError:
            return None


class DeliveredRepository(DeliveredCode):
    """`code.git` on this machine, at `code.ref`. Raises CloudtrainError if git cannot read it."""

    def __init__(self, root: str, ref: str) -> None:
        self.root, self.ref = root, ref
        listed = self._git("ls-tree", "-r", "-z", "-l", ref).split("\0")
        entries = (line.partition("\t") for line in listed if line)
        self.sizes = {path: entry.split()[-1] for entry, _, path in entries}
        super().__init__(f"{root} at {ref}", frozenset(self.sizes))

    def excluded(self, path: str) -> str | None:
        if (Path(self.root) / path).is_file():
            return f"it is not committed, or not in {self.ref}"
        return None

    def _content(self, path: str) -> bytes | None:
        size = self.sizes[path]
        if not size.isdecimal() or int(size) > LARGEST:
            return None  # a submodule, or hardly written by hand
        try:
            return self._git("cat-file", "blob", f"{self.ref}:{path}").encode()
        except CloudtrainError:
            return None

    def _git(self, *command: str) -> str:
        """Output of a git command. Raises CloudtrainError."""
        from cloudtrain.playbooks import git

        access = git.of_a_folder()
        try:
            done = git.run(access, "git", "-C", self.root, *command, timeout=GIT_SECONDS)
        except TimeoutError as error:
            raise CloudtrainError(f"{self.root}: {error}") from None
        if done.returncode:
            raise CloudtrainError(f"{self.root}: {done.stderr.strip()}")
        return done.stdout


def delivered_code(config: ClusterConfig) -> DeliveredCode | None:
    """None without `code:`, for a git server, and for what cannot be delivered, which the check of
    `code:` reports."""
    try:
        if config.code.git is not None:
            from cloudtrain.playbooks import git

            url = git.url(config)
            ref = config.code.ref or "HEAD"
            if not git.is_local(url) or ref.startswith("-"):
                return None
            path = unquote(urlsplit(url).path) if url.startswith("file://") else url
            return DeliveredRepository(path, ref)
        if config.code.path is not None:
            return DeliveredFolder(config, config.folder / Path(config.code.path).expanduser())
    except CloudtrainError:
        pass
    return None


# ── a program of the code that the command starts by its own name ──────────────


_STARTED = re.compile(
    r"\s*(?:exec\s+)?(?:(?P<shell>bash|sh|/bin/bash|/bin/sh)\s+(?:-\w+\s+)*)?"
    r"(?P<path>(?:\./)?[\w.][\w./+@-]*)(?=\s|;|$)"
)


def program_notes(config: ClusterConfig) -> tuple[str, ...]:
    """A note for `./run.sh` and `bash run.sh` that no node can start as they are. Offline."""
    started = {field: _STARTED.match(line) for field, line in command_lines(config).items()}
    own = {
        field: found
        for field, found in started.items()
        if found and (found["shell"] is not None or "/" in found["path"])
    }
    code = delivered_code(config) if own else None
    if code is None:
        return ()
    notes = []
    for field, found in own.items():
        path, by_itself = found["path"], found["shell"] is None
        inside = os.path.normpath(PurePosixPath(config.train.dir) / path)
        if inside not in code.paths:
            continue
        text = code.read(inside) or b""
        first, named = text.partition(b"\n")[0], f"{field}: {inside}"
        is_script = first.startswith(b"#!")
        if is_script and first.endswith(b"\r") if by_itself else b"\r\n" in text:
            notes.append(
                f"{named} has line ends of Windows, which a shell takes for a part of its words: "
                "save it with those of Linux (`dos2unix`, or `*.sh text eol=lf` in .gitattributes)"
            )
        elif by_itself and code.executable(inside) is False:
            way = f"`chmod +x` it, or name what runs it (`bash {path}`)"
            notes.append(f"{named} is not executable: {way}")
    return tuple(notes)
