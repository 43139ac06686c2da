"""Finds the parts of the chief's checkpoint that ps tasks wrote on their own disks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from posixpath import basename, dirname, join, normpath

from cloudtrain.artifacts.inventory import Answer, Inventory, Wanted, run_checked, take_inventory
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.model import Node
from cloudtrain.core.protocols import Transport
from cloudtrain.core.shell import script
from cloudtrain.node.listing import File, literal

STATE = "checkpoint"
"""Name of the text proto in which TensorFlow lists the checkpoints of a folder, the newest first;
it is written after their files (tensorflow/python/checkpoint/checkpoint_management.py)."""

_STATE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class PartSource:
    """Work folder of a task that may hold parts of the checkpoint."""

    task: str
    node: Node
    folder: str


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Files that belong to the chief's checkpoint, by the task on whose disk they are. `torn`: why
    the newest checkpoint is not complete anywhere. `states`: SHA-256 of the `checkpoint` files by
    which this was decided, by path in the work folder."""

    files: Mapping[str, tuple[PartSource, tuple[File, ...]]] = field(default_factory=dict)
    torn: str | None = None
    states: Mapping[str, str] = field(default_factory=dict)


def find_parts(
    node: Node, work: str, held: Iterable[str], sources: Sequence[PartSource], transport: Transport
) -> Parts:
    """Look on the tasks of `sources` for what the chief's `checkpoint` files name and the chief
    does not have.

    `held`: paths of the chief's checkpoint files in its work folder. TensorFlow's Saver writes the
    part of each ps on that ps's disk; only complete sets are returned: all data files, and the
    index, of one save. Raises NodeError."""
    mine = frozenset(held)
    states = {path: _read(node, work, path, transport) for path in sorted(mine) if _is_state(path)}
    digests = {path: hashlib.sha256(content).hexdigest() for path, content in states.items()}
    wanted: dict[str, bool] = {}
    for path, content in states.items():
        for number, prefix in enumerate(prefixes(path, content)):
            if whole_set(prefix, mine) is None:
                wanted[prefix] = number == 0
    if not wanted:
        return Parts(states=digests)
    folders = sorted({dirname(path) for path in wanted})
    wanted_here = Wanted(patterns=tuple(f"{literal(folder)}/*" for folder in folders))
    listed: dict[str, Inventory] = {
        each.task: take_inventory(each.node, each.folder, wanted_here, transport)
        for each in sources
    }
    chosen: dict[str, list[File]] = {each.task: [] for each in sources}
    torn = None
    for prefix, is_newest in wanted.items():
        found = _chosen(prefix, mine, listed)
        if found is None and is_newest:
            torn = f"{prefix} is not complete on the disks of the chief and the ps"
        for task, file in found or ():
            chosen[task].append(file)
    return Parts(
        files={
            each.task: (each, tuple(chosen[each.task])) for each in sources if chosen[each.task]
        },
        torn=torn,
        states=digests,
    )


def prefixes(state: str, content: bytes) -> tuple[str, ...]:
    """Checkpoints that a `checkpoint` file names, by path in the work folder, the newest first. An
    absolute name is taken as one beside the file: TensorFlow writes both together."""
    text = content.decode("utf-8", "replace")
    newest = re.findall(r'^model_checkpoint_path: "([^"\n]+)"', text, re.MULTILINE)
    others = re.findall(r'^all_model_checkpoint_paths: "([^"\n]+)"', text, re.MULTILINE)
    folder = dirname(state)
    names = (basename(name) if name.startswith("/") else name for name in (*newest, *others))
    paths = (normpath(join(folder, name)) for name in names)
    inside = f"{folder}/" if folder else ""
    return tuple(dict.fromkeys(path for path in paths if path.startswith(inside)))


def whole_set(prefix: str, names: Collection[str]) -> frozenset[str] | None:
    """The files of one complete checkpoint among `names`; None if one is missing. TensorFlow's
    formats: V2 has `P.index` and `P.data-K-of-M`; V1 has `P-K-of-M` or `P` alone
    (tensorflow/core/util/tensor_bundle/naming.cc, tensorflow/python/training/saver.py)."""
    if f"{prefix}.index" in names:
        found = _numbered(f"{prefix}.data", names)
        return None if found is None else found | {f"{prefix}.index"}
    found = _numbered(prefix, names)
    if found is None and prefix in names:
        return frozenset({prefix})
    return found


def torn_checkpoint(files: Collection[str], start_of: Callable[[str], bytes]) -> str | None:
    """The newest checkpoint of a landed folder if some of its files are there, and others not."""
    for state in filter(_is_state, sorted(files)):
        for prefix in prefixes(state, start_of(state))[:1]:
            some = any(path.startswith((f"{prefix}.", f"{prefix}-")) for path in files)
            if some and whole_set(prefix, files) is None:
                return prefix
    return None


def has_torn_set(names: Collection[str]) -> bool:
    """True if some file belongs to a checkpoint of which others are missing, by their names."""
    starts = {name.removesuffix(".index") for name in names if name.endswith(".index")}
    starts |= {found[1] for found in map(_PART.fullmatch, names) if found}
    return any(whole_set(start, names) is None for start in starts)


_PART = re.compile(r"(.+?)(?:\.data)?-\d{5}-of-\d{5}")


def _numbered(start: str, names: Collection[str]) -> frozenset[str] | None:
    """All of `start-00000-of-00002`, …: None if one is missing, or if there are two sets."""
    pattern = re.compile(re.escape(start) + r"-(\d{5})-of-(\d{5})")
    found = [match for match in map(pattern.fullmatch, names) if match]
    counts = {int(match[2]) for match in found}
    if len(counts) != 1 or {int(match[1]) for match in found} != set(range(max(counts))):
        return None
    return frozenset(match[0] for match in found)


def _chosen(
    prefix: str, mine: Collection[str], listed: Mapping[str, Inventory]
) -> list[tuple[str, File]] | None:
    """A complete set: that of one task alone, or with parts of several tasks and the chief."""
    by_task = {
        task: {file.path: file for file in inventory.files} for task, inventory in listed.items()
    }
    for task, files in by_task.items():
        alone = whole_set(prefix, files.keys())
        if alone is not None:
            return [(task, files[path]) for path in sorted(alone)]
    together: dict[str, tuple[str, File]] = {}
    for task, files in by_task.items():
        for path, file in files.items():
            together.setdefault(path, (task, file))
    found = whole_set(prefix, together.keys() | set(mine))
    if found is None:
        return None
    return [together[path] for path in sorted(found) if path in together and path not in mine]


def _is_state(path: str) -> bool:
    return basename(path) == STATE


def _read(node: Node, work: str, path: str, transport: Transport) -> bytes:
    answer = Answer(node, f"its file {path}", _STATE_BYTES)
    what = f"cannot read {path}"
    run_checked(node, script(READ, work, path), transport, what, on_stdout=answer.take)
    return answer.data


READ = """
cd "$1" && exec cat -- "./$2"
"""
