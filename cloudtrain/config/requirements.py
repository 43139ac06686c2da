"""The user's requirements: `setup.packages`, and the file that `setup.requirements` names with all
that it includes."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from pathlib import Path

from cloudtrain.config import project_files
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.model import ClusterConfig, Problem
from cloudtrain.node.requirement_lines import decoded, numbered, other_file
from cloudtrain.node.requirement_lines import package as package

CODE = "code:"
"""Prefix of a file in the delivered code."""


@dataclass(frozen=True, kw_only=True)
class RequirementLine:
    """A logical line without its comment. `last`: the number of its last physical line."""

    number: int
    last: int
    text: str


@dataclass(frozen=True, kw_only=True)
class RequirementFile:
    """One file of this machine, in plain text."""

    path: Path
    name: str
    """Path from the config's folder, as messages have it."""
    text: str = field(repr=False)
    bounds_only: bool = False
    """Named by `-c`: what it lists is not installed."""

    @cached_property
    def lines(self) -> tuple[RequirementLine, ...]:
        return tuple(
            RequirementLine(number=first, last=last, text=text)
            for first, last, text in numbered(self.text)
        )

    def without(self, packages: Collection[str]) -> str:
        """Its text with `#` in the place of lines that name one of them: the others keep their
        numbers, and pip names them by these."""
        kept = self.text.splitlines()
        for line in self.lines:
            if package(line.text) in packages:
                kept[line.number - 1 : line.last] = ["#"] * (line.last - line.number + 1)
        return "".join(f"{line}\n" for line in kept)


def lines(config: ClusterConfig) -> tuple[str, ...]:
    """Lines of `setup.packages` and `setup.requirements`, with included files. Raises ConfigError
    for an unreadable file."""
    listed = [file for file in files(config) if not file.bounds_only]
    return (
        *config.setup.packages,
        *(
            line.text
            for file in listed
            for line in file.lines
            if line.text and other_file(line.text) is None
        ),
    )


def named(config: ClusterConfig) -> frozenset[str]:
    """Every package that the user lists, to install or to bound it. Raises ConfigError."""
    bounded = (line.text for file in files(config) if file.bounds_only for line in file.lines)
    return frozenset(package(line) for line in (*lines(config), *bounded))


def of_code(config: ClusterConfig) -> str | None:
    """The file in the delivered code that `setup.requirements: code:FILE` names; None for a file of
    this machine."""
    value = config.setup.requirements
    return value[len(CODE) :] if value is not None and value.startswith(CODE) else None


def without(wanted: Iterable[str], packages: Iterable[str]) -> tuple[str, ...]:
    """Lines that name none of `packages`."""
    left_out = set(packages)
    return tuple(line for line in wanted if package(line) not in left_out)


def files(config: ClusterConfig) -> tuple[RequirementFile, ...]:
    """The file of `setup.requirements` and all that it names, itself first; none if it is not of
    this machine. Raises ConfigError for an unreadable one."""
    if config.setup.requirements is None or of_code(config) is not None:
        return ()
    return tuple(_read(config, config.folder / config.setup.requirements).values())


def of_folder(config: ClusterConfig, root: Path, name: str) -> tuple[RequirementFile, ...]:
    """The same for a file of the code. Raises ConfigError."""
    return tuple(_read(config, root / name).values())


@dataclass(frozen=True)
class Delivered:
    """Files for a node, by their paths in one folder there."""

    main: str = ""
    texts: tuple[tuple[str, str], ...] = ()
    apart: str = ""
    """Why pip gets them alone: "hashes", which every other line would need too, or "index", where
    TensorFlow may not be. Empty if they are installed with the rest."""


def delivered(config: ClusterConfig, left_out: Collection[str]) -> Delivered:
    """The files as pip gets them, without lines that name `left_out`."""
    found = files(config)
    if not found:
        return Delivered()
    folders = [str(file.path.parent) for file in found]
    if all(file.path.is_relative_to(_top(config)) for file in found):
        folders = [_top(config)]
    top = os.path.commonpath(folders)
    texts: dict[str, str] = {}
    for file in found:  # the paths of other files are relative to its own folder
        text = file.without(left_out)
        for other in filter(None, (other_file(line.text) for line in file.lines)):
            if Path(other[1]).is_absolute():
                text = text.replace(other[1], os.path.relpath(other[1], file.path.parent))
        name = os.path.relpath(file.path, top)
        if not texts and file.path.name in project_files.FORMS:
            name += ".txt"  # uv, and a controller, would read it as what its name says
        texts[name] = text
    every = [line.text for file in found for line in file.lines]
    apart = ""
    if any(re.search(r"\s--hash[=\s]|^--require-hashes\b", line) for line in every):
        apart = "hashes"
    elif any(re.match(r"(-i\b|--index-url\b|--pypi-url\b|--no-index\b)", line) for line in every):
        apart = "index"
    return Delivered(next(iter(texts)), tuple(texts.items()), apart)


def _top(config: ClusterConfig) -> str:
    return os.path.normpath(config.folder.absolute())


def _read(config: ClusterConfig, path: Path) -> Mapping[Path, RequirementFile]:
    found: dict[Path, RequirementFile] = {}
    todo = [(Path(os.path.normpath(path.absolute())), False)]
    while todo:
        one, bounds_only = todo.pop(0)
        if one in found:
            continue
        found[one] = file = _read_one(config, one, bounds_only)
        others = (other_file(line.text) for line in file.lines)
        todo[:0] = [
            (Path(os.path.normpath(one.parent / other[1])), bounds_only or other[0] == "-c")
            for other in others
            if other is not None
        ]
    return found


def _read_one(config: ClusterConfig, path: Path, bounds_only: bool) -> RequirementFile:
    try:
        text = decoded(path.read_bytes())
    except OSError as error:
        why = f"{path} cannot be read: {error.strerror or error}; "
        why += "the path is relative to the config file, `code:PATH` to the delivered code"
        at = "setup.requirements"
        raise ConfigError([Problem(file=config.source, line=None, field=at, text=why)]) from None
    if path.name in project_files.FORMS:
        text = project_files.as_requirements(path.name, text) or ""
    names = (os.path.relpath(path, config.folder.absolute()), str(path))
    return RequirementFile(path=path, name=min(names, key=len), text=text, bounds_only=bounds_only)


def left_out_notes(config: ClusterConfig) -> tuple[str, ...]:
    """A note for each line on a TensorFlow that `setup.tensorflow` contradicts. Raises
    ConfigError."""
    version = config.setup.tensorflow
    if version is None:
        return ()
    every = [("setup.packages", line) for line in config.setup.packages]
    every += [
        (f"{file.name}:{line.number}", line.text) for file in files(config) for line in file.lines
    ]
    return tuple(
        f'{place}: {line} is left out: `setup.tensorflow: "{version}"` decides'
        for place, line in every
        if package(line) in TENSORFLOW and excludes(line, version)
    )


_PIP_SAYS = re.compile(
    r"No matching distribution found for (\S+)|satisfies the requirement (\S+)"
    r"|Cannot install (?:-r \S+ \(line \d+\) and )?(\S+)"
    r"|Failed (?:to build|building wheel for) (\S+)"
    r"|Invalid requirement: '([^']+)'"
)


def line_named(config: ClusterConfig, said: str) -> str | None:
    """`needs.txt:3: more==9`: the user's line that an error of pip is about; None if it is none of
    theirs. Raises ConfigError."""
    about = {package(next(filter(None, found.groups()))) for found in _PIP_SAYS.finditer(said)}
    for file in files(config):
        for line in file.lines:
            if package(line.text) in about - {""}:
                return f"{file.name}:{line.number}: {line.text}"
    named = (line for line in config.setup.packages if package(line) in about - {""})
    return next((f"setup.packages: {line}" for line in named), None)


TENSORFLOW = frozenset({"tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-tpu"})
"""Packages that `setup.tensorflow` decides on, not a requirements file: two builds in one
environment mix files."""


def excludes(line: str, version: str) -> bool:
    """True if the line's bounds certainly exclude a version, `2.21` being any 2.21."""
    bounds = line.partition(";")[0]
    return any(
        _excludes(operator, bound, version)
        for operator, bound in re.findall(r"(===?|~=|!=|<=|>=|<|>)\s*([\w.*+!-]+)", bounds)
    )


def _excludes(operator: str, bound: str, version: str) -> bool:
    wanted, given = _numbers(bound), _numbers(version)
    if not wanted or not given:
        return False
    length = min(len(wanted), len(given))
    wanted_start, given_start = wanted[:length], given[:length]
    if operator in ("==", "==="):
        return wanted_start != given_start
    if operator == "~=":
        prefix = wanted[:-1][:length]
        return given_start < wanted_start or given[: len(prefix)] != prefix
    if operator in (">=", ">"):
        return given_start < wanted_start
    if operator in ("<", "<="):
        return given_start > wanted_start or (operator == "<" and given >= wanted)
    return False


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
