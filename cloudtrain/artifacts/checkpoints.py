"""Copies the landed checkpoint to every task's node before an attempt starts from it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from posixpath import basename, dirname, normpath

from cloudtrain.artifacts.checkpoint_content import (
    CheckpointContent,
    StoredCheckpoint,
    small_files,
)
from cloudtrain.artifacts.checkpoint_parts import torn_checkpoint
from cloudtrain.artifacts.inventory import SILENCE, Stop, Wanted, checksums, failed, take_inventory
from cloudtrain.artifacts.manifest import read_manifest
from cloudtrain.core import paths, ship
from cloudtrain.core.errors import NodeError
from cloudtrain.core.model import Artifact, Node
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.paths import shown
from cloudtrain.core.protocols import ArtifactStore, Transport
from cloudtrain.core.run_record import Run
from cloudtrain.core.shell import script
from cloudtrain.node.listing import literal


def put_checkpoints(
    run: Run,
    nodes: Mapping[str, Node],
    folder: str,
    transport: Transport,
    store: ArtifactStore,
    *,
    source: StoredCheckpoint | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> str | None:
    """Make `folder` in every task's work folder equal to the landed checkpoint; returns its
    description.

    `source` is used as long as no checkpoint of the run itself has landed. None: nothing has landed
    and there is no source; the folder was deleted everywhere, so that all tasks start alike.
    `nodes` by task; their work folders exist, and no task is running except an evaluator, which
    only reads. The nodes download the files themselves if the store signs requests and they reach
    it; otherwise the files go through this machine, and `say` gets the reason. Raises StoreError,
    NodeError, NodesError; each node then has either the old folder or the new one.
    """
    folder = normpath(folder)
    own = stored_checkpoint(run.id, store)
    usable = own is not None and own.folder == folder and torn_part(own) is None
    landed = own if usable else source
    stop = Stop()

    def target(task: str, node: Node) -> _Target:
        work = paths.work_folder(run.cluster, run.id, task)
        return _Target(node, work, folder, transport, is_first=task == run.tasks[0].name)

    def on_all(work: Callable[[_Target], None]) -> None:
        targets = [target(task, node) for task, node in nodes.items()]
        fan_out(targets, work, name=lambda each: each.node.name, on_interrupt=stop.set)

    if landed is None:
        on_all(_Target.remove)
        return None
    with CheckpointContent(landed, moved=landed is source, say=say) as content:
        if landed.store.presigner is None:
            content.prepare()
        on_all(lambda each: each.put(content, stop))
        return describe(folder, content.files, content.small)


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
    return describe(landed.folder, landed.files, small_files(landed))


def torn_part(landed: StoredCheckpoint) -> str | None:
    """The checkpoint of which parts are missing: those of a ps whose disk nobody could read."""
    return torn_checkpoint(landed.files.keys(), small_files(landed))


@dataclass(frozen=True)
class _Target:
    """The checkpoint folder in the work folder of one task."""

    node: Node
    work: str
    folder: str
    transport: Transport
    is_first: bool
    """Whether the checkpoint is this task's own, and lands from it."""

    def put(self, content: CheckpointContent, stop: Stop) -> None:
        if self._holds(self.folder, content.files, stop):
            self._record()
            return
        new = normpath(f"{dirname(self.folder) or '.'}/.{basename(self.folder)}.new")
        if not content.download_on(self.node, self.work, new, self.transport):
            self._run("unpack", UNPACK, new, stdin=content.pieces())
        if not self._holds(new, content.files, stop):
            raise NodeError(
                self.node.name,
                f"the checkpoint {self.folder} was damaged on its way to the node",
                hint="check with `cloudtrain ssh` whether the node's disk is full or broken",
            )
        self._run("replace", SWAP, self.folder, new)
        self._record()

    def _record(self) -> None:
        """Record the folder as it is: what another task has not changed is none of its files."""
        if self.is_first:
            return
        task = dirname(self.work)
        record = script(ship.START, ship.inline("changes"), "restored", task, self.folder)
        done = self.transport.run(self.node, record, timeout=SILENCE)
        if done.exit_code != 0:
            raise failed(self.node, f"cannot record the checkpoint {self.folder}", done)

    def remove(self) -> None:
        self._run("remove", REMOVE, self.folder)

    def _holds(self, folder: str, landed: Mapping[str, Artifact], stop: Stop) -> bool:
        """True if the folder has exactly these files."""
        folder = normpath(folder)
        inside = f"{literal(folder)}/**"
        there = take_inventory(self.node, self.work, Wanted(patterns=(inside,)), self.transport)
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


def keras_step(content: bytes) -> str | None:
    """`epoch 3, batch 0` from what Keras 3's BackupAndRestore writes
    (keras/src/callbacks/backup_and_restore.py)."""
    try:
        facts = json.loads(content)
        return f"epoch {int(facts['epoch'])}, batch {int(facts['batch'])}"
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
