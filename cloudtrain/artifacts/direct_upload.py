"""Uploads files straight from their node, with requests that are presigned here. The node gets no
credential: a request is valid for one object and a short time. What cannot be uploaded this way
goes through this machine instead (relay.py)."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from cloudtrain.artifacts.inventory import AnswerLines, Stop, json_line
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.model import Artifact, Node
from cloudtrain.core.paths import shown
from cloudtrain.core.presign import PresignedRequest, PresignedUpload, Presigner, UploadedPart
from cloudtrain.core.protocols import ArtifactStore, Transport
from cloudtrain.core.shell import Secret
from cloudtrain.node import formats
from cloudtrain.node.listing import File

LASTS = 3600.0
"""Seconds that a request is valid, plus one per `SLOWEST` bytes of its file and those before."""

SLOWEST = 1 << 20

LONGEST = 6 * 86400.0
"""Limit in seconds: no cloud signs for more than a week."""

WINDOW = 64
"""Files whose requests are signed side by side, while earlier ones are sent."""


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
    first = next(exchange.uploads, None)
    if first is None:
        return exchange.sent
    try:
        orders = exchange.orders(folder, first)
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
        self.uploads = self._uploads(due)
        self._presigner, self._pool = presigner, upload.pool
        self._asked: dict[int, tuple[File, PresignedUpload]] = {}
        self._number = 0
        self.answers = AnswerLines(self._take, upload.stop)
        self._commits: list[tuple[str, Artifact, Future[str]]] = []

    def _uploads(self, due: Mapping[str, File]) -> Iterator[tuple[File, PresignedUpload]]:
        """Presigned uploads of the files that a node may upload, signed as they are needed."""

        def one(item: tuple[str, File]) -> PresignedUpload | None:
            path, file = item
            return self._presigner.sign_upload(path, file.size, expires_in=lasts)

        items = iter(due.items())
        while window := list(islice(items, WINDOW)):
            files = [file for _, file in window]
            waiting = [file for file, _ in list(self._asked.values())]
            lasts = valid_for(sum(file.size for file in (*waiting, *files)))
            try:
                for file, upload in zip(files, self._pool.map(one, window), strict=True):
                    if upload is None:
                        return
                    yield file, upload
            except CloudtrainError as error:  # upload_via_client reports it in full, or succeeds
                self.sent.why = error.message
                return

    def orders(self, folder: str, first: tuple[File, PresignedUpload]) -> Iterator[bytes]:
        yield json_line({"folder": folder, "lock": lock_of(folder)})
        yield self._order(*first)
        for file, upload in self.uploads:
            if self.over.is_set():
                return
            yield self._order(file, upload)

    def _order(self, file: File, upload: PresignedUpload) -> bytes:
        self._number = number = self._number + 1
        self._asked[number] = (file, upload)
        return json_line(
            {
                "n": number,
                "source": file.source,
                "requests": [revealed(request) for request in upload.requests],
                "had": sorted(upload.uploaded),
                "piece": upload.chunk,
            }
        )

    def _take(self, answer: dict[str, Any]) -> None:
        file, upload = self._asked.pop(answer["n"])
        source, why = file.source, answer.get("why")
        if why in ("changed", "unread"):
            self.sent.changed.add(source)
        elif why is not None:
            self.sent.why = self.sent.why or shown(" ".join(str(answer["text"]).split()))
        else:
            artifact = _artifact(upload.path, answer)
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


def _artifact(path: str, answer: Mapping[str, Any]) -> Artifact:
    """Parse an answer. Raises ValueError or LookupError if it describes no file."""
    size, sha256, md5 = answer["size"], answer["sha256"], answer["md5"]
    digests = re.fullmatch(r"[0-9a-f]{64} ([0-9a-f]{32})?", f"{sha256} {md5}")
    if type(size) is not int or size < 0 or digests is None:
        raise ValueError("size or digests are invalid")
    return Artifact(path=path, size=size, sha256=sha256, md5=md5)


def revealed(request: PresignedRequest) -> dict[str, object]:
    """The order with its secrets, only for the stdin of the uploader."""
    headers = {
        name: value.reveal() if isinstance(value, Secret) else value
        for name, value in request.headers.items()
    }
    return {**vars(request), "url": request.url.reveal(), "headers": headers}


# ── The means by which files get from their nodes into a store ────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Upload:
    """Means of an upload: `pool` signs requests and stores small files, `stop` ends everything."""

    transport: Transport
    store: ArtifactStore
    pool: ThreadPoolExecutor
    stop: Stop = field(default_factory=Stop)
