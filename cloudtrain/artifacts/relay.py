"""Streams files from a node through this machine into a store, with checksums."""

from __future__ import annotations

import contextlib
import os
import tarfile
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import IO

from cloudtrain.artifacts.direct_upload import Upload
from cloudtrain.artifacts.inventory import SILENCE, Stop, checksums, failed
from cloudtrain.core.errors import CloudtrainError, NodeError
from cloudtrain.core.model import Artifact, Node
from cloudtrain.core.paths import shown
from cloudtrain.core.shell import script
from cloudtrain.node.listing import File
from cloudtrain.stores.file import BATCH_BYTES, most_in_batch, upload_all

MOST_WAITING = 32
"""Most batches of one node in memory."""

GROWTH = 1 << 30
"""Bytes by which a file, or all of them together, may have grown since they were listed."""

PATH_MAX = 4096

_HEADERS = 8 * 512
"""Bytes of headers of each file in a stream, besides its name."""

_CHUNK = 1 << 20


def upload_via_client(
    node: Node, folder: str, due: Mapping[str, File], upload: Upload
) -> dict[str, Artifact]:
    """Stream files, by their paths in the store; returns complete files by source.

    Side by side with the stream the node itself computes checksums: a file that changed while it
    was read, or that cannot be read, is not among the results. Raises StoreError, NodeUnreachable,
    NodeError, and what `stop` raises.
    """
    if not due:
        return {}
    stop = Stop(upload.stop)
    sources = [file.source for file in due.values()]
    with ThreadPoolExecutor(1) as beside:
        sums = beside.submit(checksums, node, folder, sources, upload.transport, stop)
        try:
            arrived = stream(node, folder, due, replace(upload, stop=stop))
        except BaseException:
            stop.set()
            raise
        expected = sums.result()
    return {source: each for source, each in arrived.items() if each.sha256 == expected.get(source)}


def stream(node: Node, folder: str, due: Mapping[str, File], upload: Upload) -> dict[str, Artifact]:
    """Read the node's stream and store its files. Raises NodeError for much more than announced."""
    receiver = _Receiver(node, due, upload)
    sources = (file.source for file in due.values())
    # With `./` before it, none is taken for an option.
    names = (source if source.startswith("/") else f"./{source}" for source in sources)
    left = sum(file.size for file in due.values()) + GROWTH
    left += (_HEADERS + 2 * PATH_MAX) * len(due)

    def take(data: bytes) -> None:
        nonlocal left
        upload.stop.check()
        left -= len(data)
        if left < 0:
            raise _too_much(node, f"the files in {folder}")
        receiver.write(data)

    try:
        done = upload.transport.run(
            node,
            script(PACKING, folder),
            stdin=b"".join(os.fsencode(name) + b"\0" for name in names),
            on_stdout=take,
            timeout=SILENCE,
        )
    finally:
        receiver.finish()
    if done.exit_code not in (0, 1, 2):  # tar: 1 a file changed, 2 a file could not be read
        raise failed(node, f"cannot send its files in {folder}", done)
    return receiver.arrived


# Packs the files named on stdin, NUL after each, as a GNU tar stream. Links are not followed and
# hard links sent as files: https://www.gnu.org/software/tar/manual/html_node/hard-links.html
PACKING = r"""
cd "$1" || exit 3
LC_ALL=C exec tar --create --file=- --format=gnu --blocking-factor=128 --hard-dereference \
    --absolute-names --no-recursion --null --verbatim-files-from --files-from=-
"""


class _Receiver:
    """Unpacks the bytes passed to `write` in its own thread, and stores each file. A failure of the
    store is raised by the next `write`, or else by `finish`."""

    def __init__(self, node: Node, due: Mapping[str, File], upload: Upload) -> None:
        self.arrived: dict[str, Artifact] = {}
        self._node, self._store, self._pool = node, upload.store, upload.pool
        self._due = {file.source: (path, file) for path, file in due.items()}
        self._most = most_in_batch(self._store)
        self._batch: dict[str, tuple[str, bytes]] = {}
        self._held = 0
        self._waiting: deque[tuple[list[str], Future[list[Artifact]]]] = deque()
        self._error: BaseException | None = None
        read_end, self._write_end = os.pipe()
        self._thread = threading.Thread(target=self._receive, args=(read_end,))
        self._thread.start()

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._write_end, view) :]
        except BrokenPipeError:
            self._thread.join()
            raise self._error or CloudtrainError("the stream of files ended early") from None

    def finish(self) -> None:
        os.close(self._write_end)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _receive(self, read_end: int) -> None:
        with open(read_end, "rb", buffering=0) as pipe:
            try:
                self._unpack(pipe)
                self._submit()
                while self._waiting:
                    self._settle()
                while pipe.read(_CHUNK):
                    pass
            except BaseException as error:  # noqa: BLE001 - raised again by write or finish
                self._error = error
                wait([future for _, future in self._waiting])

    def _unpack(self, pipe: IO[bytes]) -> None:
        """Unpack the stream. If it is truncated, missing files are noticed by name."""
        with (
            contextlib.suppress(tarfile.TarError),
            tarfile.open(
                fileobj=pipe, mode="r|", bufsize=1 << 16, encoding="utf-8", errors="surrogateescape"
            ) as archive,
        ):
            while member := archive.next():
                archive.members.clear()  # type: ignore[attr-defined]  # it would keep all of them
                source = member.name.removeprefix("./")
                if member.isreg() and source in self._due:
                    self._take(source, member.size, archive.extractfile(member))

    def _take(self, source: str, size: int, data: IO[bytes] | None) -> None:
        assert data is not None, "a regular file has data"
        path, file = self._due[source]
        if size > file.size + GROWTH:
            raise _too_much(self._node, source)
        if size > BATCH_BYTES:
            self.arrived[source] = self._store.upload(path, iter(partial(data.read, _CHUNK), b""))
            return
        self._batch[source] = path, data.read()
        self._held += size
        if len(self._batch) >= self._most or self._held >= BATCH_BYTES:
            self._submit()

    def _submit(self) -> None:
        batch, self._batch, self._held = self._batch, {}, 0
        if not batch:
            return
        files = {path: [data] for path, data in batch.values()}
        self._waiting.append((list(batch), self._pool.submit(upload_all, self._store, files)))
        if len(self._waiting) >= MOST_WAITING:
            self._settle()

    def _settle(self) -> None:
        sources, future = self._waiting.popleft()
        self.arrived.update(zip(sources, future.result(), strict=True))


def _too_much(node: Node, what: str) -> NodeError:
    return NodeError(
        node.name,
        f"{shown(what)}: sent more than {GROWTH >> 20} MB beyond the announced size",
        hint="check what writes there so fast; run the command again to land it",
    )
