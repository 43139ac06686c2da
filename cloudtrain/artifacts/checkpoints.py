"""Copies the landed checkpoint to every task's node before an attempt starts from it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from posixpath import basename, dirname, normpath
from typing import IO

from cloudtrain.artifacts.checkpoint_parts import STATE, torn_checkpoint
from cloudtrain.artifacts.download import verified
from cloudtrain.artifacts.inventory import (
    Stop,
    Wanted,
    checksums,
    json_line,
    last_line,
    run_checked,
    run_program,
    take_inventory,
)
from cloudtrain.artifacts.manifest import read_manifest
from cloudtrain.artifacts.uploads import lock_of, revealed, valid_for
from cloudtrain.core import paths, ship
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CloudtrainError, NodeError, StoreError
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
    NodeError, NodesError; each node then has either the old folder or the new one."""
    folder = normpath(folder)
    own = stored_checkpoint(run.id, store)
    usable = own is not None and own.folder == folder and torn_part(own) is None
    landed = own if usable else source
    stop = Stop()
    works = {task: paths.work_folder(run.cluster, run.id, task) for task in nodes}
    targets = [
        _Target(node, works[task], folder, transport, is_first=task == run.tasks[0].name)
        for task, node in nodes.items()
    ]

    def on_all(work: Callable[[_Target], None]) -> None:
        fan_out(targets, work, name=lambda each: each.node.name, on_interrupt=stop.set)

    if landed is None:
        on_all(lambda each: each.run("remove", REMOVE, folder))
        return None
    with closing(CheckpointContent(landed, moved=landed is source, say=say)) as content:
        if landed.store.presigner is None:
            content.prepare()
        on_all(lambda each: each.put(content, stop))
        return describe(folder, content.files, content.small)


def fill_folder(
    run: Run,
    node: Node,
    place: str,
    folder: str,
    transport: Transport,
    store: ArtifactStore,
    *,
    source: Callable[[], StoredCheckpoint | None],
    say: Callable[[str], None],
) -> str | None:
    """Create the absolute folder `place`, which does not exist on the node, with the last state of
    `folder` that landed, or of `source`, if the newest checkpoint in that is not whole; returns its
    description, None if it is empty. It appears at once. Raises StoreError, NodeError, DataError.
    """
    own = stored_checkpoint(run.id, store)
    if own is not None and own.folder != normpath(folder):
        own = None
    usable = own is not None and torn_part(own) is None
    landed = own if usable else source() or own
    work, what = f"{dirname(place)}/.filling/{basename(place)}/work", f"cannot fill {place}"
    run_checked(node, script(BEGIN_FILLING, work), transport, what)
    if landed is not None:
        target = _Target(node, work, FILLED, transport, is_first=True)
        with closing(CheckpointContent(landed, moved=landed is not own, say=say)) as content:
            if not content.download_on(node, work, FILLED, transport):
                target.run("unpack", UNPACK, FILLED, stdin=content.pieces())
            if not target.holds(FILLED, content.files, Stop()):
                raise NodeError(
                    node.name,
                    f"what landed of {folder} was damaged on its way to the node",
                    hint="check with `cloudtrain ssh` whether the node's disk is full or broken",
                )
            found = describe(folder, content.files, content.small)
    run_checked(node, script(END_FILLING, work, FILLED, place), transport, what)
    return found if landed is not None else None


FILLED = "filled"
BEGIN_FILLING = 'rm -rf -- "$1" && exec mkdir -p -- "$1/filled"\n'
END_FILLING = """\
set -eu
[ -e "$3" ] || mv -- "$1/$2" "$3"
rm -rf -- "${1%/*}"
"""


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
    """True if the checkpoint is this task's own, and lands from it."""

    def put(self, content: CheckpointContent, stop: Stop) -> None:
        if self.holds(self.folder, content.files, stop):
            self._record()
            return
        new = normpath(f"{dirname(self.folder) or '.'}/.{basename(self.folder)}.new")
        if not content.download_on(self.node, self.work, new, self.transport):
            self.run("unpack", UNPACK, new, stdin=content.pieces())
        if not self.holds(new, content.files, stop):
            raise NodeError(
                self.node.name,
                f"the checkpoint {self.folder} was damaged on its way to the node",
                hint="check with `cloudtrain ssh` whether the node's disk is full or broken",
            )
        self.run("replace", SWAP, self.folder, new)
        self._record()

    def _record(self) -> None:
        """Record the folder as it is: what another task has not changed is none of its files."""
        if self.is_first:
            return
        task, what = dirname(self.work), f"cannot record the checkpoint {self.folder}"
        record = script(ship.START, ship.inline("changes"), "restored", task, self.folder)
        run_checked(self.node, record, self.transport, what)

    def holds(self, folder: str, landed: Mapping[str, Artifact], stop: Stop) -> bool:
        """True if the folder has exactly these files."""
        folder = normpath(folder)
        inside = f"{literal(folder)}/**"
        inventory = take_inventory(self.node, self.work, Wanted(patterns=(inside,)), self.transport)
        sizes = {f"{folder}/{path}": each.size for path, each in landed.items()}
        if {file.path: file.size for file in inventory.files} != sizes or inventory.warnings:
            return False
        sums = checksums(self.node, self.work, sizes, self.transport, stop)
        return sums == {f"{folder}/{path}": each.sha256 for path, each in landed.items()}

    def run(
        self, what: str, text: str, *folders: str, stdin: bytes | Iterator[bytes] = b""
    ) -> None:
        command = script(text, self.work, *folders)
        what = f"cannot {what} the checkpoint {self.folder}"
        run_checked(self.node, command, self.transport, what, stdin=stdin)


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
    return f"the checkpoint in {folder} ({len(landed)} file{'s' * (len(landed) != 1)})"


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


# The files of a landed checkpoint on their way to nodes: downloaded by them, or through here


_CHUNK = 1 << 20
_SMALL = 1 << 16
"""Bytes up to which a file may say which step a checkpoint is of."""


@dataclass(frozen=True, kw_only=True)
class StoredCheckpoint:
    """A run's last complete checkpoint that landed, in its store."""

    run: str
    store: ArtifactStore
    folder: str
    """`train.checkpoints` of that run."""
    files: Mapping[str, Artifact]
    """By path in the folder; never empty."""


def small_files(landed: StoredCheckpoint) -> Callable[[str], bytes]:
    """Contents of files that may say which step a checkpoint is of; empty for large ones."""

    def start_of(path: str) -> bytes:
        file = landed.files[path]
        if file.size > _SMALL:
            return b""
        return b"".join(verified(file, landed.run, landed.store))

    return start_of


class CheckpointContent:
    """The files to put on nodes, for many threads. `files`: as they will be there. `moved`: to work
    folders of another run."""

    def __init__(
        self, landed: StoredCheckpoint, *, moved: bool, say: Callable[[str], None]
    ) -> None:
        self._landed, self._say = landed, say
        self.small = small_files(landed)
        self._rewritten: dict[str, bytes] = {}
        files = dict(landed.files)
        for path, each in landed.files.items() if moved else ():
            if basename(path) == STATE and each.size <= _SMALL:
                content = without_folder(self.small(path))
                digest = hashlib.sha256(content).hexdigest()
                self._rewritten[path] = content
                files[path] = replace(each, size=len(content), sha256=digest)
        self.files: Mapping[str, Artifact] = files
        self._lock, self._stack = threading.Lock(), ExitStack()
        self._spool: int | None = None
        self._said = False

    def close(self) -> None:
        self._stack.close()

    # ── by the node ──

    def download_on(self, node: Node, work: str, folder: str, transport: Transport) -> bool:
        """Have the node download all files into `folder` of its work folder; False if it cannot.
        Requests are for one object each and stay in its memory. The caller compares the files."""
        why = self._ordered(node, work, folder, transport)
        if why and not self._said:
            self._said = True
            self._say(f"the checkpoint goes through this machine: {why}")
        return why is None

    def _ordered(self, node: Node, work: str, folder: str, transport: Transport) -> str | None:
        """None, or why not; "" if nodes never reach such a store."""
        try:
            files = self._requests()
        except CloudtrainError as error:
            return error.message
        if files is None:
            return ""
        order = {"work": work, "folder": f"{work}/{folder}", "lock": lock_of(work), "files": files}
        done = run_program(node, "unpacker", json_line(order), transport)
        try:
            answer = json.loads(done.stdout.splitlines()[-1])
            if answer.get("sha256") == [self.files[str(each["path"])].sha256 for each in files]:
                return None
            why = str(answer.get("why", "it read something else than what landed"))
        except (ValueError, IndexError, AttributeError):
            why = last_line(done.stderr, done.exit_code)
        return f"{node.name}: {shown(' '.join(why.split()))}"

    def _requests(self) -> list[dict[str, object]] | None:
        """Files of an order; None if the store signs no downloads."""
        presigner = self._landed.store.presigner
        if presigner is None:
            return None
        lasts = valid_for(sum(each.size for each in self.files.values()))
        files: list[dict[str, object]] = []
        for path, each in self.files.items():
            content, request = self._rewritten.get(path), None
            if content is None:
                signed = presigner.sign_download(f"{self._landed.run}/{each.at}", expires_in=lasts)
                if signed is None:
                    return None
                request = revealed(signed)
            text = base64.b64encode(content or b"").decode("ascii")
            files.append({"path": path, "size": each.size, "request": request, "content": text})
        return files

    # ── through this machine ──

    def pieces(self) -> Iterator[bytes]:
        """A tar of all files."""
        spool, offset = self.prepare(), 0
        while piece := os.pread(spool, _CHUNK, offset):
            offset += len(piece)
            yield piece

    def prepare(self) -> int:
        """Download all files once, checked against the manifest before any node is sent a byte;
        returns the tar's descriptor. Raises StoreError, CloudtrainError."""
        with self._lock:
            if self._spool is not None:
                return self._spool
            try:
                file = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
                self._pack(file)
                file.flush()
            except OSError as error:
                text = f"cannot copy the checkpoint to {tempfile.gettempdir()}"
                raise CloudtrainError(
                    f"{text}: {error.strerror or error}",
                    hint="free some space there, or set TMPDIR to another folder",
                ) from error
            self._spool = file.fileno()
            return self._spool

    def _pack(self, file: IO[bytes]) -> None:
        for path, each in self.files.items():
            member = tarfile.TarInfo(f"./{path}")
            member.size, member.mtime = each.size, each.mtime // 10**9
            file.write(member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))
            content = self._rewritten.get(path)
            landed = verified(each, self._landed.run, self._landed.store)
            try:
                file.writelines(landed if content is None else [content])
            except StoreError as error:
                raise error.copy_with(
                    hint="the checkpoint was changed or damaged in the store: start without it "
                    "(remove train.checkpoints, or --resume)"
                ) from error
            file.write(b"\0" * (-each.size % tarfile.BLOCKSIZE))
        file.write(b"\0" * 2 * tarfile.BLOCKSIZE)


_PATHS = re.compile(rb'^((?:all_)?model_checkpoint_paths?: )"(/[^"\n]*)/([^/"\n]+)"', re.MULTILINE)


def without_folder(content: bytes) -> bytes:
    """A `checkpoint` file that names its checkpoints relative to its own folder.

    A script that saves below an absolute path makes TensorFlow write absolute paths into it
    (tensorflow/python/checkpoint/checkpoint_management.py, generate_checkpoint_state_proto); in
    another run's work folder they lead nowhere, and `latest_checkpoint` would find nothing."""
    folders = {found[2] for found in _PATHS.finditer(content)}
    return _PATHS.sub(rb'\1"\3"', content) if len(folders) == 1 else content
