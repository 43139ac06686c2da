"""Copies the landed checkpoint to every task's node before an attempt starts from it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from posixpath import basename, dirname, normpath
from typing import IO

from cloudtrain import layout
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


def put_checkpoints(
    run: Run, nodes: Mapping[str, Node], folder: str, transport: Transport, store: ArtifactStore
) -> str | None:
    """Make `folder` in every task's work folder equal to the landed checkpoint; returns its
    description.

    None: nothing has landed, and the folder was deleted everywhere, so that all tasks start alike.
    `nodes` by task; their work folders exist, and no task is running except an evaluator, which
    only reads. Raises StoreError, NodeError, NodesError; each node then has either the old folder
    or the new one.
    """
    folder = normpath(folder)
    landed = landed_checkpoint(run.id, folder, store)
    stop = Stop()
    with _spooled(run.id, landed, store) as spool:

        def work(item: tuple[str, Node]) -> None:
            task, node = item
            target = _Target(node, layout.work_folder(run.cluster, run.id, task), folder, transport)
            if landed:
                target.put(landed, spool, stop)
            else:
                target.remove()

        fan_out(list(nodes.items()), work, name=lambda item: item[1].name, on_interrupt=stop.set)
        return describe(folder, landed, spool) if landed else None


def landed_checkpoint(run: str, folder: str, store: ArtifactStore) -> dict[str, Artifact]:
    """Files of the last complete checkpoint that landed, by path in its folder."""
    manifest = read_manifest(store, run)
    if manifest is None or manifest.checkpoint is None or manifest.checkpoint.folder != folder:
        return {}
    prefix = f"{manifest.checkpoint.task}/{folder}/"
    return {path[len(prefix) :]: manifest.files[path] for path in manifest.checkpoint.paths}


@contextmanager
def _spooled(run: str, landed: Mapping[str, Artifact], store: ArtifactStore) -> Iterator[_Spool]:
    """The checkpoint, downloaded once for any number of nodes."""
    try:
        with tempfile.TemporaryFile() as file:
            places = pack(run, landed, store, file)
            file.flush()
            yield _Spool(file.fileno(), places)
    except OSError as error:
        raise CloudtrainError(
            f"cannot copy the checkpoint to {tempfile.gettempdir()}: {error.strerror or error}",
            hint="free some space there, or set TMPDIR to another folder",
        ) from error


def pack(
    run: str, landed: Mapping[str, Artifact], store: ArtifactStore, file: IO[bytes]
) -> dict[str, int]:
    """Pack the files, each checked against the manifest; returns where the content of each
    starts.
    """
    places = {}
    for path, each in landed.items():
        member = tarfile.TarInfo(f"./{path}")
        member.size, member.mtime = each.size, each.mtime // 10**9
        file.write(member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))
        places[path] = file.tell()
        digest, size = hashlib.sha256(), 0
        for piece in store.download(f"{run}/{each.at}"):
            file.write(piece)
            digest.update(piece)
            size += len(piece)
        if (size, digest.hexdigest()) != (each.size, each.sha256):
            raise StoreError(
                f"{store.uri}: {shown(each.path)} of run {run} differs from what landed",
                hint="remove train.checkpoints to start from the beginning",
            )
        file.write(b"\0" * (-size % tarfile.BLOCKSIZE))
    file.write(b"\0" * 2 * tarfile.BLOCKSIZE)
    return places


@dataclass(frozen=True)
class _Spool:
    """The archive on disk, for many readers at once."""

    descriptor: int
    places: Mapping[str, int]

    def pieces(self) -> Iterator[bytes]:
        offset = 0
        while piece := os.pread(self.descriptor, _CHUNK, offset):
            offset += len(piece)
            yield piece

    def start_of(self, path: str, size: int) -> bytes:
        return os.pread(self.descriptor, min(size, _TOLD_BYTES), self.places[path])


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


def describe(folder: str, landed: Mapping[str, Artifact], spool: _Spool) -> str:
    """Name of the newest checkpoint in the folder, as TensorFlow or Keras names it."""
    for path in sorted(landed, key=lambda path: (path.count("/"), path)):
        content = spool.start_of(path, landed[path].size)
        if basename(path) == "checkpoint":
            name = tensorflow_checkpoint(content)
            if name:
                return normpath(f"{folder}/{dirname(path)}/{name}")
        if basename(path) == "training_metadata.json":
            step = keras_step(content)
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


def keras_step(content: bytes) -> str | None:
    """`epoch 3, batch 0` from what Keras 3's BackupAndRestore writes
    (keras/src/callbacks/backup_and_restore.py)."""
    try:
        facts = json.loads(content)
        return f"epoch {int(facts['epoch'])}, batch {int(facts['batch'])}"
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
