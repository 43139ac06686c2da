"""Notes of `plan` and `check` on absolute paths and buckets in a run's command and variables: nodes
have no file of this machine, no folder in common, and no identity of the user's."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from cloudtrain.config.location import place_in_file
from cloudtrain.config.requirements import lines
from cloudtrain.core.cloud import cloud_of, clouds, facts_of, is_cloud
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.store_kinds import BucketUri, uris_of

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
    path = config.train.env.get("PATH")  # no shell fills it in
    if path is not None and not {"/bin", "/usr/bin"} & set(path.split(":")):
        found.append(
            f"{at_field(config, 'train.env.PATH')}replaces the node's own and lacks /usr/bin, so "
            "that programs of the system are not found: begin train.command with "
            "`export PATH=/your/bin:$PATH && ` instead"
        )
    for each in paths_of(config):
        text = _note(config, each)
        if text is not None:
            found.append(f"{at_field(config, each.field)}{each.path}: {text}")
    return tuple(found)


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
    facts = facts_of(config.provider)
    shared = os.environ.get("CLOUDTRAIN_LOCAL_SHARED", "").split(os.pathsep)
    is_shared = any(part and Path(each.path).is_relative_to(part) for part in shared)
    if facts.on_this_machine and is_shared:
        return None  # local nodes see it (docs/local.md)
    if facts.takes_hosts:
        # These may share a disk: only what needs one is said.
        return _written(config) if each.is_written and "ps" in config.nodes else None
    source = _data_of(config, each.path)
    if source is not None:
        return None if facts.on_this_machine else f"{_ONLY_HERE}: write `{{data.{source}}}`"
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
    """True if a line of `setup.run` names the path, or a folder above it, and so may make, mount or
    fill it."""
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


# ── buckets ──────────────────────────────────────────────────────────────────────


READ_BY_TENSORFLOW = ("gs",)
"""Schemes that TensorFlow's wheels open by themselves: those of 2.18 and 2.21 know gs://, but
neither s3:// nor Azure's (tf.io.gfile tried on 2026-11-21)."""
SINCE = (2, 18)
"""First release of which that is known."""

INSTEAD = (
    "list input under `data:` and write `{data.NAME}`, write output to `{output}`, which lands in "
    "artifacts.store"
)


def bucket_notes(config: ClusterConfig) -> tuple[str, ...]:
    """Return a note for each field that names buckets which the nodes may not be able to use. None
    on machines that are not rented: scripts have their own credentials there."""
    cloud = cloud_of(config.provider)
    if cloud is None:
        return ()
    found = []
    for field, group in groupby(uris_of(config), key=lambda each: each.field):
        uris = tuple(group)
        lacking = _unread(config, uris)
        if lacking:
            found.append(f"{at_field(config, field)}{_no_library(lacking)}; or {INSTEAD}")
        rest = [each for each in uris if each not in lacking]
        foreign = [each for each in rest if each.scheme not in cloud.bucket_schemes]
        if config.identity is None and rest:
            own = cloud.identity if len(foreign) < len(rest) else None
            way = f"; or set `identity:` to {own.word}" if own else ""
            found.append(
                f"{at_field(config, field)}{_shown(rest)}: nodes have no identity, so scripts can "
                f"use only public buckets or a key from `secrets:`: {INSTEAD}{way}"
            )
        elif config.identity is not None and foreign:
            schemes = {each.scheme for each in foreign}
            titles = [one.title for one in clouds() if schemes & set(one.bucket_schemes)]
            found.append(
                f"{at_field(config, field)}{_shown(foreign)}: `identity:` is known to "
                f"{cloud.title} alone, not to {' or '.join(titles)}: {INSTEAD}"
            )
    return tuple(found)


def unusable(config: ClusterConfig) -> tuple[str, ...]:
    """Return a text for each field with URIs that nothing on the nodes can open: TensorFlow's
    wheels do not know them, and the config installs nothing else."""
    found = []
    for field, group in groupby(uris_of(config), key=lambda each: each.field):
        lacking = _unread(config, tuple(group))
        if lacking:
            found.append(f"{at_field(config, field)}{_no_library(lacking)}; or {INSTEAD}")
    return tuple(found)


def _unread(config: ClusterConfig, uris: Iterable[BucketUri]) -> tuple[BucketUri, ...]:
    """Those that nothing can open; none if the config installs more than TensorFlow."""
    setup = config.setup
    parts = (setup.tensorflow or "").split(".")[:2]
    release = tuple(int(part) for part in parts if part.isdecimal())
    if cloud_of(config.provider) is None or release < SINCE:
        return ()
    more = config.setup.run or setup.requirements or lines(config)
    if more or not (config.image == "auto" or config.image.startswith("ubuntu-")):
        return ()
    return tuple(each for each in uris if each.scheme not in READ_BY_TENSORFLOW)


def _no_library(uris: Iterable[BucketUri]) -> str:
    schemes = sorted({each.scheme for each in uris})
    return (
        f"{_shown(uris)}: TensorFlow does not know {' or '.join(f'{s}://' for s in schemes)}, and "
        "nothing else is installed: add the script's library to setup.packages (tensorflow-io, "
        "boto3, adlfs, …)"
    )


def _shown(uris: Iterable[BucketUri]) -> str:
    return ", ".join(each.uri for each in uris)


def at_field(config: ClusterConfig, field: str) -> str:
    """Beginning of a note, with the place of its field: `gcp.yaml:9: train.command: `."""
    place = place_in_file(config, field)
    return f"{field}: " if place == "the config" else f"{place}: {field}: "
