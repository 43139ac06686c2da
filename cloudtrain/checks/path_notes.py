"""Notes of `plan` and `check` on absolute paths in a run's command and variables: nodes have no
file of this machine, and no folder in common.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from cloudtrain.checks.bucket_notes import at_field
from cloudtrain.core.cloud import facts_of, is_cloud
from cloudtrain.core.model import ClusterConfig

SYSTEM = frozenset(
    (
        *("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "opt", "var", "run"),
        *("proc", "sys", "dev", "boot", "nix", "gnu", "snap", "cvmfs"),
    )
)
"""Folders of `/` that a node's own system has."""
TEMPORARY = ("/tmp/", "/var/tmp/", "/dev/shm/")
"""Folders that every node has, each its own: fit for scratch files alone."""

_PATH = re.compile(
    r"(?:(?P<name>--?[\w-]+|\b[A-Za-z_]\w*)(?:=|\s+)['\"]?)?"
    r"(?<![\w.{}~$/+*-])(?P<path>/[\w.][^\s'\"`;|&<>(),:\\{}]*)(?!\{)"
)
"""With the option or variable before it: not `gs://b/x`, `{output}/x`, `$HOME/x`, `a/b`."""
_WRITTEN = re.compile(
    r"(?i)ck?pt|checkpoint|model|out|log|save|export|job|backup|result|tensorboard|summar"
)
_READ = re.compile(r"(?i)pre_?-?train|input|init|load|restore|from|vocab|data")
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")


@dataclass(frozen=True, kw_only=True)
class AbsolutePath:
    """One path, the config field that has it, and the option or variable that takes it."""

    field: str
    option: str
    path: str

    @property
    def is_written(self) -> bool:
        return says_written(self.option)


def says_written(option: str) -> bool:
    """True if the name of an option or variable says that the script writes to its path."""
    return bool(_WRITTEN.search(option)) and not _READ.search(option)


def path_notes(config: ClusterConfig) -> tuple[str, ...]:
    """A note for each path that only one machine has, or that each node has for itself. Offline."""
    found = []
    for each in paths_of(config):
        text = _note(config, each)
        if text is not None:
            found.append(f"{at_field(config, each.field)}{each.path}: {text}")
    return (*_without_system(config), *found)


def _without_system(config: ClusterConfig) -> Iterator[str]:
    """A PATH of the run without the folders of the system's programs: no shell fills it in."""
    path = config.train.env.get("PATH")
    if path is not None and not {"/bin", "/usr/bin"} & set(path.split(":")):
        yield (
            f"{at_field(config, 'train.env.PATH')}replaces the node's own and lacks /usr/bin, so "
            "that programs of the system are not found: begin train.command with "
            "`export PATH=/your/bin:$PATH && ` instead"
        )


def paths_of(config: ClusterConfig) -> Iterator[AbsolutePath]:
    """Each absolute path of `train.command`, then those of `train.env`, once."""
    seen = set()
    lines = [(field, "", line) for field, line in config.train.lines().items()]
    lines += [
        (f"train.env.{name}", name, value)
        for name, value in config.train.env.items()
        if name != "PATH"
    ]
    for field, name, text in lines:
        for found in _PATH.finditer(text):
            path = found["path"].rstrip("/.")
            if found["name"] == "PATH":
                continue  # folders that may be missing
            if path and (field, path) not in seen:
                seen.add((field, path))
                yield AbsolutePath(field=field, option=found["name"] or name, path=path)


def _note(config: ClusterConfig, each: AbsolutePath) -> str | None:
    """Note on a wrong path: the reason, and what to write instead; None if it may be right."""
    if _shared_here(config, each.path):
        return None
    if facts_of(config.provider).takes_hosts:
        # These may share a disk: only what needs one is said.
        return _written(config) if each.is_written and "ps" in config.nodes else None
    source = _data_of(config, each.path)
    if source is not None:
        here = facts_of(config.provider).on_this_machine
        return None if here else f"{_ONLY_HERE}: write `{{data.{source}}}`"
    inside = _inside_code(config, each.path)
    if inside is not None:
        return f"{_ONLY_HERE}: write `{inside}`, as it is delivered with the code"
    kind = _kind_here(each.path)
    if f"{each.path}/".startswith(TEMPORARY):
        if kind == "file":
            return f"{_ONLY_HERE}: {_DELIVER}"
        several = sum(group.count for group in config.nodes.values()) > 1
        is_lost = several or is_cloud(config.provider)
        return _written(config) if each.is_written and is_lost else None
    if each.path.split("/")[1] in SYSTEM or _made_by_setup(config, each.path):
        return None
    if _PYTHON.fullmatch(Path(each.path).name):
        return f"{_ONLY_HERE}: write `python`, and choose its version by `setup.python`"
    if each.is_written and kind != "file":
        return _written(config)
    if kind is not None:
        return f"{_ONLY_HERE}: {_DELIVER}"
    return None if config.image != "auto" else f"nothing puts it on the nodes: {_DELIVER}"


_ONLY_HERE = "only this machine has it"
_DELIVER = (
    "list it under `data:` and write `{data.NAME}`, or put it in `code.path` and write its "
    "relative path"
)


def _written(config: ClusterConfig) -> str:
    where = "write to `{output}`, or to the relative path that `train.checkpoints` names"
    if "ps" in config.nodes:
        return f"each ps writes its part of a checkpoint there to its own disk: {where}"
    return f"each node has its own, and nothing of it is kept: {where}"


def _kind_here(path: str) -> Literal["file", "folder"] | None:
    """Kind of file at this path on this machine; None if this user can see none."""
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return None
    return "folder" if stat.S_ISDIR(mode) else "file"


def _made_by_setup(config: ClusterConfig, path: str) -> bool:
    """True if a line of `setup.run` names the path, or a folder above it, and so may make, mount
    or fill it.
    """
    above = [str(each) for each in (Path(path), *Path(path).parents) if str(each) != "/"]
    return any(
        re.search(rf"{re.escape(place)}(?![\w.-])", line)
        for line in config.setup.run
        for place in above
    )


def _data_of(config: ClusterConfig, path: str) -> str | None:
    """Name of the data that has this path as its source."""
    for name, data in config.data.items():
        source = unquote(data.source.removeprefix("file://"))
        if data.source.startswith("file://") and Path(path).is_relative_to(source):
            return name
    return None


def _inside_code(config: ClusterConfig, path: str) -> str | None:
    """The path relative to the folder in which the command starts, if it is in `code.path`."""
    if config.code.path is None:
        return None
    code = (config.folder / Path(config.code.path).expanduser()).resolve()
    real = Path(path).resolve()
    if not real.is_relative_to(code) or _kind_here(path) is None:
        return None
    return os.path.relpath(real, code / config.train.dir)


def _shared_here(config: ClusterConfig, path: str) -> bool:
    """True if local nodes see the path, by CLOUDTRAIN_LOCAL_SHARED (docs/local.md)."""
    shared = os.environ.get("CLOUDTRAIN_LOCAL_SHARED", "").split(os.pathsep)
    return facts_of(config.provider).on_this_machine and any(
        each and Path(path).is_relative_to(each) for each in shared
    )
