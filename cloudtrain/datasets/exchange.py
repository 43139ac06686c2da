"""The conversation with the downloader on one node: its orders, and what it answers."""

from __future__ import annotations

import base64
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY
from typing import Any, Protocol

from cloudtrain.artifacts.inventory import AnswerLines, Stop, json_line
from cloudtrain.artifacts.uploads import revealed
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import CloudtrainError, DataError, NodeError
from cloudtrain.core.model import Node
from cloudtrain.core.paths import shown
from cloudtrain.core.presign import PresignedRequest
from cloudtrain.core.protocols import Transport
from cloudtrain.datasets.dataset import DataFile, Dataset

LASTS = 3600.0
"""Seconds that a request is valid; a node asks for another after that."""

BATCH = 1 << 15
"""Bytes of orders that are sent together."""


class FileSigner(Protocol):
    """Signs the downloads of files, and reads those that a node cannot. Thread-safe."""

    def sign(self, file: DataFile, *, expires_in: float) -> PresignedRequest | None:
        """Sign a GET of this version; None if nodes cannot read it. Raises StoreError."""

    def read(self, file: DataFile, offset: int = 0) -> Iterator[bytes]:
        """Yield its bytes from `offset`. Raises StoreError."""


class NoRoute(Exception):
    """The node cannot reach the store."""


@dataclass
class Exchange:
    """Orders for one dataset on one node. `answers` takes what its downloader prints."""

    _: KW_ONLY
    node: Node
    dataset: Dataset
    """With the files of this node."""
    signer: FileSigner
    roots: Sequence[str]
    copies: bool
    """The files are on the node's own machine."""
    relay: bool
    """This machine reads all files: the node does not reach the store."""
    progress: Callable[[str], None]
    stop: Stop
    over: threading.Event = field(default_factory=threading.Event)
    _needed: threading.Event = field(default_factory=threading.Event)
    _again: queue.SimpleQueue[int | None] = field(default_factory=queue.SimpleQueue)
    _whole: bytes = b""
    _parts: frozenset[tuple[int, int]] = frozenset()
    _answer: dict[str, Any] = field(default_factory=dict)
    _begun: tuple[float, int] | None = None
    answers: AnswerLines = field(init=False)

    def __post_init__(self) -> None:
        self.answers = AnswerLines(self._take, self.stop)

    def download(self, transport: Transport) -> str:
        """Have the node download the files; returns their absolute folder. Raises DataError,
        NodeError, NoRoute, StoreError."""
        try:
            exit_code = self.answers.run(self.node, "downloader", self.orders(), transport)
        finally:
            self.end()
        return self.folder(exit_code)

    def orders(self) -> Iterator[bytes]:
        """Orders for the downloader, as it takes them."""
        dataset, files = self.dataset, self.dataset.files
        about = {"key": dataset.digest, "size": dataset.size, "files": len(files)}
        yield json_line({**about, "roots": list(self.roots)})
        self._needed.wait()
        batch = bytearray()
        for number, file in enumerate(files):
            if self.over.is_set():
                return
            while not self._again.empty():
                again = self._again.get()
                if again is None:
                    return
                batch += b"".join(self._order(again, files[again]))
            at = number // 8
            if at < len(self._whole) and self._whole[at] >> number % 8 & 1:
                continue
            for piece in self._order(number, file):
                batch += piece
                if len(batch) >= BATCH:
                    yield bytes(batch)
                    batch.clear()
        yield bytes(batch)
        while (again := self._again.get()) is not None:
            yield from self._order(again, files[again])

    def end(self) -> None:
        """End `orders`: the program has answered, or has ended."""
        self.over.set()
        self._needed.set()
        self._again.put(None)

    def _order(self, number: int, file: DataFile) -> Iterator[bytes]:
        order: dict[str, object] = {"n": number, "path": file.path}
        order.update(size=file.size, md5=file.md5)
        if self.copies:
            mtime = int(file.version.partition("-")[0])  # in ns, as stores/data.py says it
            yield json_line({**order, "copy": self.dataset.key(file), "mtime": mtime})
            return
        request = None if self.relay else self.signer.sign(file, expires_in=LASTS)
        if request is None:
            yield from self._relayed(order, number, file)
        else:
            secret = revealed(request)
            short = {"url": secret["url"], "headers": secret["headers"]}
            yield json_line({**order, "request": short})

    def _relayed(self, order: dict[str, object], number: int, file: DataFile) -> Iterator[bytes]:
        """The file's missing parts, read here."""
        from cloudtrain.node.downloader import PART  # with ssl, slow to import

        data: Iterator[bytes] = iter(())
        rest, at = b"", -1
        for offset in range(0, file.size or 1, PART):
            length = min(PART, file.size - offset)
            if (number, offset) in self._parts:
                continue
            if at != offset:
                data, rest, at = self.signer.read(file, offset), b"", offset
            yield json_line({**order, "offset": offset, "length": length})
            while at < offset + length:
                self.stop.check()
                piece = rest or next(data, b"")
                if not piece:
                    raise DataError(
                        f"data.{self.dataset.name}: {shown(file.path)}: is shorter than listed",
                        hint=CHANGED,
                    )
                left = offset + length - at
                piece, rest = piece[:left], piece[left:]
                at += len(piece)
                yield piece

    def _take(self, answer: dict[str, Any]) -> None:
        if "at" in answer:
            self._report(int(answer["at"]))
        elif "again" in answer:
            number = int(answer["again"])
            if 0 <= number < len(self.dataset.files):
                self._again.put(number)
        elif "need" in answer:
            self._whole = base64.b64decode(answer["have"])
            self._parts = frozenset((int(n), int(offset)) for n, offset, _ in answer["parts"])
            self._needed.set()
        elif "waiting" in answer:
            self.progress("another download of it is running on this machine")
        elif "ready" in answer or "error" in answer:
            self._answer = answer
            self.end()
        else:
            raise ValueError("not an answer")

    def _report(self, at: int) -> None:
        now = time.monotonic()
        if self._begun is None:
            self._begun = now, at
        began, had = self._begun
        rate = (at - had) / (now - began) / 1e6 if now > began else 0.0
        self.progress(f"{at / 1e6:,.0f} / {self.dataset.size / 1e6:,.0f} MB, {rate:,.0f} MB/s")

    def folder(self, exit_code: int) -> str:
        """Absolute folder, once the program has ended. Raises DataError, NodeError, NoRoute."""
        answer = self._answer
        ready = answer.get("ready")
        if isinstance(ready, str) and ready.startswith("/"):
            return ready
        if "error" not in answer:
            why = self.answers.last_words(exit_code)
            raise NodeError(self.node.name, f"data.{self.dataset.name}: {why}")
        raise self._failure(answer)

    def _failure(self, answer: dict[str, Any]) -> Exception:
        name, kind = f"data.{self.dataset.name}", answer["error"]
        text = shown(" ".join(str(answer.get("text", "")).split()))
        number = answer.get("n")
        files = self.dataset.files
        path = shown(files[number].path) if isinstance(number, int) and number < len(files) else ""
        where = f"{name}: {path}" if path else name
        if kind == "unreachable":
            return NoRoute(text)
        if kind == "room":
            return self._no_room(answer)
        if kind == "changed":
            return DataError(f"{where} changed since it was listed", hint=CHANGED)
        if kind == "gone" and self.copies:
            return NoRoute(f"{where} is not among the files that the node sees")
        if kind == "gone":
            return DataError(f"{where} was deleted since it was listed", hint=CHANGED)
        if kind == "corrupt":
            text = f"the bytes that arrived have another checksum: {text}"
        return NodeError(self.node.name, f"{where}: {text or kind}")

    def _no_room(self, answer: dict[str, Any]) -> CloudtrainError:
        disk = answer["disks"][-1]
        folder, need, free = shown(str(disk["folder"])), int(disk["need"]), int(disk["free"])
        text = f"needs {need / 1e9:,.1f} GB, {free / 1e9:,.1f} GB are free in {folder}"
        if "inodes" in disk:
            text = f"has {disk['count']:,} files, {disk['inodes']:,} more fit in {folder}"
        return NodeError(
            self.node.name,
            f"data.{self.dataset.name} {text}",
            hint=f"set nodes.{self.node.role}.disk_gb, use shard: true, or free space there",
        )


CHANGED = "start another run, which lists the data again, once nothing writes to it"
