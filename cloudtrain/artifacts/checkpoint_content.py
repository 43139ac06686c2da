"""The files of a landed checkpoint on their way to nodes: downloaded by them, or through here."""

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
from contextlib import ExitStack
from dataclasses import dataclass, replace
from posixpath import basename
from types import TracebackType
from typing import IO

from cloudtrain.artifacts.checkpoint_parts import STATE
from cloudtrain.artifacts.direct_upload import LASTS, LONGEST, SLOWEST, lock_of, revealed
from cloudtrain.artifacts.download import verified
from cloudtrain.artifacts.inventory import SILENCE
from cloudtrain.core.errors import CloudtrainError, StoreError
from cloudtrain.core.model import Artifact, Node
from cloudtrain.core.paths import shown
from cloudtrain.core.protocols import ArtifactStore, Transport
from cloudtrain.core.ship import program

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
    """The files to put on nodes, for many threads. `files`: as they will be there.

    `moved`: to work folders of another run.
    """

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

    def __enter__(self) -> CheckpointContent:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    # ── by the node ──

    def download_on(self, node: Node, work: str, folder: str, transport: Transport) -> bool:
        """Have the node download all files into `folder` of its work folder; False if it cannot.

        Each request is for one object and stays in the node's memory. The caller compares what is
        there afterwards.
        """
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
        order = {
            "work": work,
            "folder": f"{work}/{folder}",
            "lock": lock_of(work),
            "files": files,
        }
        unpacker = program("unpacker")
        stdin = unpacker.source + json.dumps(order).encode("ascii") + b"\n"
        done = transport.run(node, unpacker.command, stdin=stdin, timeout=SILENCE)
        try:
            answer = json.loads(done.stdout.splitlines()[-1])
            if answer.get("sha256") == [self.files[str(each["path"])].sha256 for each in files]:
                return None
            why = str(answer.get("why", "it read something else than what landed"))
        except (ValueError, IndexError, AttributeError):
            words = os.fsdecode(done.stderr.replace(b"\0", b"")).strip().splitlines()
            why = words[-1] if words else f"exit code {done.exit_code}"
        return f"{node.name}: {shown(' '.join(why.split()))}"

    def _requests(self) -> list[dict[str, object]] | None:
        """Files of an order; None if the store signs no downloads."""
        presigner = self._landed.store.presigner
        if presigner is None:
            return None
        lasts = min(LONGEST, LASTS + sum(each.size for each in self.files.values()) / SLOWEST)
        files: list[dict[str, object]] = []
        for path, each in self.files.items():
            content, request = self._rewritten.get(path), None
            if content is None:
                key = f"{self._landed.run}/{each.at}"
                signed = presigner.sign_download(key, expires_in=lasts)
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
        returns the tar's descriptor. Raises StoreError, CloudtrainError.
        """
        with self._lock:
            if self._spool is None:
                self._spool = self._spooled()
            return self._spool

    def _spooled(self) -> int:
        try:
            file = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            self._pack(file)
            file.flush()
            return file.fileno()
        except OSError as error:
            raise CloudtrainError(
                f"cannot copy the checkpoint to {tempfile.gettempdir()}: {error.strerror or error}",
                hint="free some space there, or set TMPDIR to another folder",
            ) from error

    def _pack(self, file: IO[bytes]) -> None:
        for path, each in self.files.items():
            member = tarfile.TarInfo(f"./{path}")
            member.size, member.mtime = each.size, each.mtime // 10**9
            file.write(member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))
            content = self._rewritten.get(path)
            file.writelines([content] if content is not None else self._checked(path))
            file.write(b"\0" * (-each.size % tarfile.BLOCKSIZE))
        file.write(b"\0" * 2 * tarfile.BLOCKSIZE)

    def _checked(self, path: str) -> Iterator[bytes]:
        """The file's bytes; raises StoreError after the last of them if they differ from what
        landed.
        """
        try:
            yield from verified(self.files[path], self._landed.run, self._landed.store)
        except StoreError as error:
            raise error.copy_with(
                hint="the checkpoint was changed or damaged in the store: start without it (remove "
                "train.checkpoints, or --resume)"
            ) from error


_PATHS = re.compile(rb'^((?:all_)?model_checkpoint_paths?: )"(/[^"\n]*)/([^/"\n]+)"', re.MULTILINE)


def without_folder(content: bytes) -> bytes:
    """A `checkpoint` file that names its checkpoints relative to its own folder.

    A script that saves below an absolute path makes TensorFlow write absolute paths into it
    (tensorflow/python/checkpoint/checkpoint_management.py, generate_checkpoint_state_proto); in
    another run's work folder they lead nowhere, and `latest_checkpoint` would find nothing.
    """
    folders = {found[2] for found in _PATHS.finditer(content)}
    return _PATHS.sub(rb'\1"\3"', content) if len(folders) == 1 else content
