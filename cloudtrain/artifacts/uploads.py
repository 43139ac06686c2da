"""Brings files from their node into a store, straight or through this machine. The node gets no
credential: the requests that it sends are presigned here, each for one object and a short time."""

from __future__ import annotations

import contextlib
import os
import re
import tarfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from itertools import chain, count, islice
from typing import IO, Any

from cloudtrain.artifacts.inventory import AnswerLines, Stop, checksums, failed, json_line
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import CloudtrainError, NodeError
from cloudtrain.core.model import Artifact, Node
from cloudtrain.core.paths import shown
from cloudtrain.core.presign import PresignedRequest, PresignedUpload, Presigner, UploadedPart
from cloudtrain.core.protocols import ArtifactStore, Transport
from cloudtrain.core.retry import NODE_SILENT
from cloudtrain.core.shell import Secret, script
from cloudtrain.node import formats
from cloudtrain.node.listing import File
from cloudtrain.stores.file import BATCH_BYTES, most_in_batch, upload_all

LASTS = 3600.0
"""Seconds that a request is valid, plus one per `SLOWEST` bytes of its file and those before."""

SLOWEST = 1 << 20

LONGEST = 6 * 86400.0
"""Limit in seconds: no cloud signs for more than a week."""

WINDOW = 64
"""Files whose requests are signed while earlier ones are sent."""

SHARE = 8
"""Files of a window that one thread signs where each takes a request to the store."""

AT_HAND = 0.002
"""Seconds: a signature that takes less needs no request, and takes less than handing it over."""

SMALL = 1 << 20
"""Bytes of a file that some store may be sent in parts, which takes requests before."""


@dataclass(frozen=True, kw_only=True)
class Upload:
    """Means of an upload: `pool` signs requests and stores small files, `stop` ends everything."""

    transport: Transport
    store: ArtifactStore
    pool: ThreadPoolExecutor
    stop: Stop = field(default_factory=Stop)


def store_files(
    node: Node, folder: str, due: Mapping[str, File], upload: Upload
) -> tuple[dict[str, Artifact], str | None]:
    """Have the node upload files, by their paths in the store; those that it cannot upload go
    through this machine. Returns complete files by source, and why some came that way."""
    sent = upload_from_node(node, folder, due, upload)
    answered = sent.arrived.keys() | sent.changed
    rest = {key: file for key, file in due.items() if file.source not in answered}
    why = f"uploading {len(rest)} files through this machine: {sent.why}"
    detour = why if rest and sent.why is not None else None
    return sent.arrived | upload_via_client(node, folder, rest, upload), detour


@dataclass
class UploadResult:
    """Outcome by source. `changed`: modified while being read, or unreadable."""

    arrived: dict[str, Artifact] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    why: str | None = None
    """Error for files in neither `arrived` nor `changed`, as the node or service words it."""


def upload_from_node(
    node: Node, folder: str, due: Mapping[str, File], upload: Upload
) -> UploadResult:
    """Have the node upload files, by their paths in the store. Raises NodeUnreachable, and what
    `stop` raises."""
    if not due or upload.store.presigner is None:
        return UploadResult()
    exchange = _Exchange(due, upload.store.presigner, upload)
    try:  # it starts while the first requests are signed, which may take some of the store
        orders = exchange.orders(folder)
        exit_code = exchange.answers.run(node, "uploader", orders, upload.transport)
    finally:
        exchange.over.set()
    exchange.settle(exit_code)
    return exchange.sent


def valid_for(size: int) -> float:
    """Seconds for which the request of a file of so many bytes is to be valid."""
    return min(LONGEST, LASTS + size / SLOWEST)


def lock_of(folder: str) -> str:
    return f"{folder.rpartition('/')[0]}/{formats.UPLOAD_LOCK}"


class _Exchange:
    """Conversation with an uploader."""

    def __init__(self, due: Mapping[str, File], presigner: Presigner, upload: Upload) -> None:
        self.sent = UploadResult()
        self.over = threading.Event()
        self._uploads = self._signed(due)
        self._presigner, self._pool = presigner, upload.pool
        self._asked: dict[int, tuple[File, PresignedUpload]] = {}
        self.answers = AnswerLines(self._take, upload.stop)
        self._commits: list[tuple[str, Artifact, Future[str]]] = []

    def _signed(self, due: Mapping[str, File]) -> Iterator[list[tuple[File, PresignedUpload]]]:
        """Presigned uploads of the files that a node may upload, a window at a time."""

        def some(items: list[tuple[str, File]]) -> list[PresignedUpload | None]:
            sign = self._presigner.sign_upload
            return [sign(path, file.size, expires_in=lasts) for path, file in items]

        items = iter(due.items())
        while window := list(islice(items, WINDOW)):
            files = [file for _, file in window]
            waiting = [file for file, _ in list(self._asked.values())]
            lasts = valid_for(sum(file.size for file in (*waiting, *files)))
            began, rest = time.perf_counter(), window[1:]
            try:
                uploads = some(window[:1])
                at_hand = time.perf_counter() - began < AT_HAND
                if at_hand and all(file.size <= SMALL for file in files):
                    uploads += some(rest)
                else:
                    shares = [rest[start : start + SHARE] for start in range(0, len(rest), SHARE)]
                    uploads += chain.from_iterable(self._pool.map(some, shares))
            except CloudtrainError as error:  # upload_via_client reports it in full, or succeeds
                self.sent.why = error.message
                return
            signed = [(file, each) for file, each in zip(files, uploads, strict=True) if each]
            if signed:
                yield signed
            if len(signed) < len(files):
                return

    def orders(self, folder: str) -> Iterator[bytes]:
        yield json_line({"folder": folder, "lock": lock_of(folder)})
        numbers = count(1)
        for window in self._uploads:
            if self.over.is_set():
                return
            numbered = {next(numbers): each for each in window}
            self._asked.update(numbered)
            yield b"".join(map(_order, numbered.items()))

    def _take(self, answer: dict[str, Any]) -> None:
        file, upload = self._asked.pop(answer["n"])
        source, why = file.source, answer.get("why")
        if why in ("changed", "unread"):
            self.sent.changed.add(source)
        elif why is not None:
            self.sent.why = self.sent.why or shown(" ".join(str(answer["text"]).split()))
        else:
            size, sha256, md5 = answer["size"], answer["sha256"], answer["md5"]
            digests = re.fullmatch(r"[0-9a-f]{64} ([0-9a-f]{32})?", f"{sha256} {md5}")
            if type(size) is not int or size < 0 or digests is None:
                raise ValueError("size or digests are invalid")
            artifact = Artifact(path=upload.path, size=size, sha256=sha256, md5=md5)
            parts = [UploadedPart(**part) for part in answer["receipts"]]
            if len(upload.requests) == 1:
                self.sent.arrived[source] = artifact
            else:
                commit = self._pool.submit(self._presigner.complete, upload, parts)
                self._commits.append((source, artifact, commit))

    def settle(self, exit_code: int) -> None:
        """Wait until files of several parts are visible."""
        if self._asked or exit_code:  # unanswered, or ended before its first order
            self.sent.why = self.answers.last_words(exit_code)
        for source, artifact, commit in self._commits:
            try:
                self.sent.arrived[source] = replace(artifact, version=commit.result())
            except CloudtrainError as error:
                self.sent.why = error.message


def _order(numbered: tuple[int, tuple[File, PresignedUpload]]) -> bytes:
    number, (file, upload) = numbered
    return json_line(
        {
            "n": number,
            "source": file.source,
            "requests": [revealed(request) for request in upload.requests],
            "had": sorted(upload.uploaded),
            "piece": upload.chunk,
        }
    )


def revealed(request: PresignedRequest) -> dict[str, object]:
    """The order with its secrets, only for the stdin of the uploader."""
    headers = {
        name: value.reveal() if isinstance(value, Secret) else value
        for name, value in request.headers.items()
    }
    return {**vars(request), "url": request.url.reveal(), "headers": headers}


# ── Streams files from a node through this machine into a store, with checksums ───────────────


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
    NodeError, and what `stop` raises."""
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
            timeout=NODE_SILENT,
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
