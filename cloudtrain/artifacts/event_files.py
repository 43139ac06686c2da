"""Copies a run's TensorBoard event files here: from the store, or from the nodes while it runs.
Only TensorBoard reads them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cloudtrain.artifacts.download import verified
from cloudtrain.artifacts.inventory import Wanted, run_checked, take_inventory
from cloudtrain.core import paths
from cloudtrain.core.errors import NodeError
from cloudtrain.core.model import Artifact, Node
from cloudtrain.core.protocols import ArtifactStore, Transport
from cloudtrain.core.shell import script

MARK = ".tfevents."
"""In the name of every event file: `events.out.tfevents.1795460000.host.123.0.v2`
(tensorboard/summary/writer/event_file_writer.py, read in 2.21's source; TensorFlow's writers too).
"""

PATTERN = f"**/*{MARK}*"

LARGEST = 1 << 30
"""Limit in bytes of one task's event files; those with images or embeddings are large."""

PIECE = 64 << 20
"""Limit in bytes of what one look copies of a file."""


def event_files(files: Iterable[Artifact]) -> tuple[Artifact, ...]:
    """The event files among landed files, by path."""
    found = [each for each in files if MARK in each.path.rpartition("/")[2]]
    return tuple(sorted(found, key=lambda each: each.path))


def copy_landed(
    run: str, files: Iterable[Artifact], store: ArtifactStore, folder: Path
) -> tuple[str, ...]:
    """Copy landed event files to `folder`, as `<task>/<path>`; returns what was left out. A copy
    that is not shorter than the landed file stays: event files only grow. Raises StoreError."""
    room, left_out = LARGEST, []
    for file in files:
        target = folder / file.path
        if target.exists() and target.stat().st_size >= file.size:
            continue
        if file.size > room:
            left_out.append(file.path)
            continue
        room -= file.size
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + ".partial-copy")
        with partial.open("wb") as copy:
            copy.writelines(verified(file, run, store))
        partial.replace(target)
    return tuple(left_out)


def copy_from_node(
    cluster: str, run: str, task: str, node: Node, transport: Transport, folder: Path
) -> tuple[str, ...]:
    """Copy what is new in the event files of a task that runs; returns what was left out. Raises
    NodeError, NodeUnreachable."""
    work = paths.work_folder(cluster, run, task)
    room, left_out = LARGEST, []
    for file in take_inventory(node, work, Wanted(patterns=(PATTERN,)), transport).files:
        if MARK not in file.path.rpartition("/")[2]:
            continue
        target = folder / task / file.path
        have = target.stat().st_size if target.exists() else 0
        if have > file.size:  # another file of that name
            target.unlink()
            have = 0
        room -= file.size
        if room < 0:
            left_out.append(f"{task}/{file.path}")
        elif have < file.size:
            target.parent.mkdir(parents=True, exist_ok=True)
            append_from_node(node, f"{work}/{file.source}", have, transport, target)
    return tuple(left_out)


def append_from_node(node: Node, path: str, have: int, transport: Transport, target: Path) -> None:
    """Append the bytes after the first `have`, up to `PIECE`."""
    left = PIECE
    with target.open("ab") as copy:

        def write(data: bytes) -> None:
            nonlocal left
            if len(data) > left:
                raise NodeError(node.name, f"{path}: it sends more than {PIECE >> 20} MB")
            left -= len(data)
            copy.write(data)

        command = script(READING, f"./{path}", str(have + 1), str(PIECE))
        run_checked(node, command, transport, f"cannot send {path}", on_stdout=write)


READING = """\
[ -r "$1" ] || { echo "$1 cannot be read" >&2; exit 1; }
tail -c "+$2" -- "$1" | head -c "$3"
"""
