"""Copies the landed checkpoint to every task's node before an attempt starts from it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from posixpath import basename, dirname, normpath
from typing import IO

from cloudtrain import layout
from cloudtrain.artifacts.checkpoint_parts import torn_checkpoint
from cloudtrain.artifacts.download import verified
from cloudtrain.artifacts.inventory import SILENCE, Stop, checksums, failed, take_inventory
from cloudtrain.artifacts.manifest import read_manifest
from cloudtrain.errors import CloudtrainError, NodeError, StoreError
from cloudtrain.model import Artifact, Node
from cloudtrain.node.patterns import literal
from cloudtrain.parallel import fan_out
from cloudtrain.paths import shown
from cloudtrain.protocols import ArtifactStore, Transport
from cloudtrain.run_record import Run
from cloudtrain.shell import script

_CHUNK = 1 << 20
_TOLD_BYTES = 1 << 16
"""Bytes read of a file that says which step a checkpoint is of."""


@dataclass(frozen=True, kw_only=True)
class StoredCheckpoint:
    """A run's last complete checkpoint that landed, in its store."""

    run: str
    store: ArtifactStore
    folder: str
    """`train.checkpoints` of that run."""
    files: Mapping[str, Artifact]
    """By path in the folder; never empty."""


def put_checkpoints(
    run: Run,
    nodes: Mapping[str, Node],
    folder: str,
    transport: Transport,
    store: ArtifactStore,
    *,
    source: StoredCheckpoint | None = None,
) -> str | None:
    """Make `folder` in every task's work folder equal to the landed checkpoint; returns its
    description.

    `source` is used as long as no checkpoint of the run itself has landed. None: nothing has landed
    and there is no source; the folder was deleted everywhere, so that all tasks start alike.
    `nodes` by task; their work folders exist, and no task is running except an evaluator, which
    only reads. Raises StoreError, NodeError, NodesError; each node then has either the old folder
    or the new one.
    """
    folder = normpath(folder)
    own = stored_checkpoint(run.id, store)
    usable = own is not None and own.folder == folder and torn_part(own) is None
    landed = own if usable else source
    stop = Stop()
    with _spooled(landed, moved=landed is source) as spool:

        def work(item: tuple[str, Node]) -> None:
            task, node = item
            target = _Target(node, layout.work_folder(run.cluster, run.id, task), folder, transport)
            if landed is not None:
                target.put(spool.files, spool, stop)
            else:
                target.remove()

        fan_out(list(nodes.items()), work, name=lambda item: item[1].name, on_interrupt=stop.set)
        return describe(folder, spool.files, spool.start_of) if landed is not None else None


def stored_checkpoint(run: str, store: ArtifactStore) -> StoredCheckpoint | None:
    """The last complete checkpoint that landed; None if there is none. Raises StoreError."""
    manifest = read_manifest(store, run)
    if manifest is None or manifest.checkpoint is None or not manifest.checkpoint.paths:
        return None
    prefix = f"{manifest.checkpoint.task}/{manifest.checkpoint.folder}/"
    return StoredCheckpoint(
        run=run,
        store=store,
        folder=manifest.checkpoint.folder,
        files={path[len(prefix) :]: manifest.files[path] for path in manifest.checkpoint.paths},
    )


def landed_checkpoint(run: str, folder: str, store: ArtifactStore) -> Mapping[str, Artifact]:
    """Files of the last complete checkpoint that landed, by path in its folder."""
    landed = stored_checkpoint(run, store)
    return {} if landed is None or landed.folder != folder else landed.files


def step_of(landed: StoredCheckpoint) -> str:
    """Describe a checkpoint by its small files, without downloading the others."""
    return describe(landed.folder, landed.files, _small_files(landed))


def torn_part(landed: StoredCheckpoint) -> str | None:
    """The checkpoint of which parts are missing: those of a ps whose disk nobody could read."""
    return torn_checkpoint(landed.files.keys(), _small_files(landed))


def _small_files(landed: StoredCheckpoint) -> Callable[[str], bytes]:
    def start_of(path: str) -> bytes:
        file = landed.files[path]
        if file.size > _TOLD_BYTES:
            return b""
        return b"".join(verified(file, landed.run, landed.store))

    return start_of


@contextmanager
def _spooled(landed: StoredCheckpoint | None, *, moved: bool) -> Iterator[_Spool]:
    """The checkpoint, downloaded once for any number of nodes; `moved`: to other work folders."""
    try:
        with tempfile.TemporaryFile() as file:
            files, places = pack(landed, file, moved=moved) if landed is not None else ({}, {})
            file.flush()
            yield _Spool(file.fileno(), files, places)
    except OSError as error:
        raise CloudtrainError(
            f"cannot copy the checkpoint to {tempfile.gettempdir()}: {error.strerror or error}",
            hint="free some space there, or set TMPDIR to another folder",
        ) from error


def pack(
    landed: StoredCheckpoint, file: IO[bytes], *, moved: bool = False
) -> tuple[dict[str, Artifact], dict[str, int]]:
    """Pack the files, each checked against the manifest; returns them as packed, and where the
    content of each starts.
    """
    files, places = {}, {}
    for path, each in landed.files.items():
        pieces = _checked(landed, each)
        if moved and basename(path) == "checkpoint" and each.size <= _TOLD_BYTES:
            content = without_folder(b"".join(pieces))
            digest = hashlib.sha256(content).hexdigest()
            each, pieces = replace(each, size=len(content), sha256=digest), iter([content])
        member = tarfile.TarInfo(f"./{path}")
        member.size, member.mtime = each.size, each.mtime // 10**9
        file.write(member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))
        files[path], places[path] = each, file.tell()
        file.writelines(pieces)
        file.write(b"\0" * (-each.size % tarfile.BLOCKSIZE))
    file.write(b"\0" * 2 * tarfile.BLOCKSIZE)
    return files, places


def _checked(landed: StoredCheckpoint, each: Artifact) -> Iterator[bytes]:
    """The file's bytes; raises StoreError after the last of them if they are not what landed."""
    try:
        yield from verified(each, landed.run, landed.store)
    except StoreError as error:
        raise error.copy_with(
            hint="the checkpoint was changed or damaged in the store: start without it (remove "
            "train.checkpoints, or --resume)"
        ) from error


@dataclass(frozen=True)
class _Spool:
    """The archive on disk, for many readers at once."""

    descriptor: int
    files: Mapping[str, Artifact]
    places: Mapping[str, int]

    def pieces(self) -> Iterator[bytes]:
        offset = 0
        while piece := os.pread(self.descriptor, _CHUNK, offset):
            offset += len(piece)
            yield piece

    def start_of(self, path: str) -> bytes:
        size = min(self.files[path].size, _TOLD_BYTES)
        return os.pread(self.descriptor, size, self.places[path])


@dataclass(frozen=True)
class _Target:
    """The checkpoint folder in the work folder of one task."""

    node: Node
    work: str
    folder: str
    transport: Transport

    def put(self, landed: Mapping[str, Artifact], spool: _Spool, stop: Stop) -> None:
        if self._holds(self.folder, landed, stop):
            return
        new = f"{dirname(self.folder) or '.'}/.{basename(self.folder)}.new"
        self._run("unpack", UNPACK, new, stdin=spool.pieces())
        if not self._holds(new, landed, stop):
            raise NodeError(
                self.node.name,
                f"the checkpoint {self.folder} was damaged on its way to the node",
                hint="check with `cloudtrain ssh` whether the node's disk is full or broken",
            )
        self._run("replace", SWAP, self.folder, new)

    def remove(self) -> None:
        self._run("remove", REMOVE, self.folder)

    def _holds(self, folder: str, landed: Mapping[str, Artifact], stop: Stop) -> bool:
        """True if the folder has exactly these files."""
        folder = normpath(folder)
        inside = f"{literal(folder)}/**"
        there = take_inventory(self.node, self.work, (inside,), self.transport)
        sizes = {f"{folder}/{path}": each.size for path, each in landed.items()}
        if {file.path: file.size for file in there.files} != sizes or there.warnings:
            return False
        sums = checksums(self.node, self.work, sizes, self.transport, stop)
        return sums == {f"{folder}/{path}": each.sha256 for path, each in landed.items()}

    def _run(
        self, what: str, text: str, *folders: str, stdin: bytes | Iterator[bytes] = b""
    ) -> None:
        done = self.transport.run(
            self.node, script(text, self.work, *folders), stdin=stdin, timeout=SILENCE
        )
        if done.exit_code != 0:
            raise failed(self.node, f"cannot {what} the checkpoint {self.folder}", done)


UNPACK = r"""
set -eu
cd "$1"
rm -rf "./$2"
mkdir -p "./$2"
LC_ALL=C exec tar --extract --file=- --directory="./$2" --no-same-owner
"""

SWAP = r"""
set -eu
cd "$1"
old=$3.old
rm -rf "./$old"
if [ -e "./$2" ] || [ -L "./$2" ]; then mv "./$2" "./$old"; fi
mv "./$3" "./$2"
rm -rf "./$old"
"""

REMOVE = r"""
cd "$1" && rm -rf "./$2"
"""


def describe(folder: str, landed: Mapping[str, Artifact], start_of: Callable[[str], bytes]) -> str:
    """Name of the newest checkpoint in the folder, as TensorFlow or Keras names it."""
    for path in sorted(landed, key=lambda path: (path.count("/"), path)):
        if basename(path) == "checkpoint":
            name = tensorflow_checkpoint(start_of(path))
            if name:
                return normpath(f"{folder}/{dirname(path)}/{name}")
        if basename(path) == "training_metadata.json":
            step = keras_step(start_of(path))
            if step:
                return f"{step} in {normpath(f'{folder}/{dirname(path)}')}"
    files = "file" if len(landed) == 1 else "files"
    return f"the checkpoint in {folder} ({len(landed)} {files})"


def tensorflow_checkpoint(content: bytes) -> str | None:
    """`ckpt-120` from the `checkpoint` file that tf.train.CheckpointManager keeps (a text proto,
    tensorflow/python/training/checkpoint_state.proto)."""
    text = content.decode("utf-8", "replace")
    found = re.search(r'^model_checkpoint_path: "([^"\n]+)"', text, re.MULTILINE)
    return shown(basename(found[1])) if found else None


_PATHS = re.compile(rb'^((?:all_)?model_checkpoint_paths?: )"(/[^"\n]*)/([^/"\n]+)"', re.MULTILINE)


def without_folder(content: bytes) -> bytes:
    """A `checkpoint` file that names its checkpoints relative to its own folder.

    A script that saves below an absolute path makes TensorFlow write absolute paths into it
    (tensorflow/python/checkpoint/checkpoint_management.py, generate_checkpoint_state_proto); in
    another run's work folder they lead nowhere, and `latest_checkpoint` would find nothing.
    """
    folders = {found[2] for found in _PATHS.finditer(content)}
    return _PATHS.sub(rb'\1"\3"', content) if len(folders) == 1 else content


def keras_step(content: bytes) -> str | None:
    """`epoch 3, batch 0` from what Keras 3's BackupAndRestore writes
    (keras/src/callbacks/backup_and_restore.py)."""
    try:
        facts = json.loads(content)
        return f"epoch {int(facts['epoch'])}, batch {int(facts['batch'])}"
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
