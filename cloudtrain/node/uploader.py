"""Uploads files with presigned requests.

Reads JSON lines: an order, then one per file; prints a JSON line for each file when it is done. It
knows no store: requests are built and signed elsewhere, and stay in memory here. It ends at once
when its client is gone or a later uploader starts, because a late upload would overwrite newer
files.
"""

import base64
import collections.abc
import hashlib
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from cloudtrain.node import client, quick_uploads, web

IN_MEMORY = 1 << 20
AT_ONCE = 64
"""Files that are uploaded side by side, each in a thread: those that are not small, or refused as
too much (S3: 3,500 PUTs a second) and waiting."""
WAITING = 4 * quick_uploads.MOST
"""Orders in hand: those in work and the next ones."""
PARTS = 16
"""Parts of large files that are uploaded side by side."""
GIVE_UP = 2 * PARTS
"""Number of consecutive refusals after which the remaining files are not tried."""


def main() -> None:
    order = client.order()
    client.alone(client.plain(order["lock"]))
    os.chdir(client.plain(order["folder"]))
    uploader = Uploader()
    client.attend()
    room = threading.Semaphore(WAITING)
    threading.stack_size(1 << 19)
    pool = ThreadPoolExecutor(AT_ONCE)

    def work(file: "dict[str, Any]") -> None:
        try:
            client.tell(uploader.store(file))
        finally:
            room.release()

    def carefully(file: "dict[str, Any]") -> None:
        pool.submit(work, file)

    def told(count: int) -> None:
        for _ in range(count):
            room.release()

    quick = quick_uploads.QuickUploads(uploader.web, carefully, told, uploader.hope)
    for line in sys.stdin.buffer:
        room.acquire()
        file = json.loads(line.decode())
        if len(file["requests"]) == 1 and not file["piece"] and quick_uploads.is_small(file):
            quick.add(file)
        else:
            carefully(file)
    quick.finish()
    pool.shutdown()


class Uploader:
    def __init__(self) -> None:
        self.web = web.Web()
        self.parts = ThreadPoolExecutor(PARTS)
        self.refusals = 0
        self.refusal = ""

    def hope(self, well: bool) -> bool:
        """False once everything is refused; `well`: a file was not."""
        if well:
            self.refusals = 0
        return self.refusals < GIVE_UP

    def store(self, file: "dict[str, Any]") -> "dict[str, Any]":
        """Upload one file; returns its digests and receipts, or the reason of the failure."""
        answer = {"n": file["n"]}  # type: dict[str, Any]
        if self.refusals >= GIVE_UP:
            return dict(answer, why="refused", text=self.refusal)
        try:
            with open(client.plain(file["source"]), "rb", buffering=0) as source:
                before = web.stamp(source.fileno())
                answer.update(self.sent(file, source.fileno(), before[0]))
                if web.stamp(source.fileno()) != before or answer["size"] != before[0]:
                    answer["why"] = "changed"
            self.refusals = 0
        except web.Changed:
            answer.update(why="changed")
        except web.Refused as error:
            self.refusals += 1
            self.refusal = str(error)
            answer.update(why="refused", text=self.refusal)
        except web.Unreachable as error:
            answer.update(why="unreachable", text=str(error))
        except OSError as error:
            answer.update(why="unread", text=str(error))
        return answer

    def sent(self, file: "dict[str, Any]", source: int, size: int) -> "dict[str, Any]":
        if file["piece"]:
            return self.resumable(file["requests"][0], source, size, file["piece"])
        had, whole = frozenset(file["had"]), hashlib.sha256()
        if len(file["requests"]) == 1:
            kept = read(source, 0, size, whole)
            receipts = [self.part(file["requests"][0], source, 0, size, kept, had)]
            return answer(size, whole, receipts, receipts[0]["md5"])
        parts, done = [], 0
        try:
            for request in file["requests"]:
                length = size - done if request["length"] is None else request["length"]
                kept = read(source, done, length, whole)
                parts.append(self.parts.submit(self.part, request, source, done, length, kept, had))
                done += length
            receipts = [each.result() for each in parts]
        finally:
            for each in parts:
                each.cancel()
            wait(parts)  # they read a file that is closed next
        return answer(done, whole, receipts)

    def part(
        self,
        request: "dict[str, Any]",
        source: int,
        offset: int,
        length: int,
        kept: bytes,
        had: "collections.abc.Set[str]",
    ) -> "dict[str, Any]":
        """Send one part. Its MD5 is computed here, in one thread for each part: MD5 is slower than
        SHA-256 on current processors, and a single thread would limit the upload."""
        md5 = hashlib.md5(kept)
        for piece in () if kept else web.pieces(source, offset, length):
            md5.update(piece)
        part = web.Part(request, source, offset, length, md5.digest(), kept)
        etag = ""
        if part.block not in had:
            etag = web.patiently(lambda: self.web.send(part)).getheader("ETag") or ""
        return {"etag": etag, "block": part.block, "size": part.length, "md5": part.md5.hex()}

    def resumable(
        self, request: "dict[str, Any]", source: int, size: int, piece: int
    ) -> "dict[str, Any]":
        whole, md5 = hashlib.sha256(), hashlib.md5()
        hashed = 0

        def add(part: web.Part) -> None:
            nonlocal hashed
            end = part.offset + part.length
            for data in web.pieces(source, hashed, end - hashed):
                whole.update(data)
                md5.update(data)
            hashed = max(hashed, end)
            if end == size:
                part.stored = base64.b64encode(md5.digest()).decode()
                part.headers["X-Goog-Hash"] = "md5=" + part.stored

        self.web.in_pieces(request, source, size, piece, add)
        digest = md5.hexdigest()
        receipt = {"etag": "", "block": "", "size": size, "md5": digest}
        return answer(size, whole, [receipt], digest)


def answer(
    size: int, whole: "hashlib._Hash", receipts: "list[dict[str, Any]]", md5: str = ""
) -> "dict[str, Any]":
    return {"size": size, "sha256": whole.hexdigest(), "md5": md5, "receipts": receipts}


def read(source: int, offset: int, length: int, whole: "hashlib._Hash") -> bytes:
    """Update the digest `whole` with a part; returns its bytes if they are few."""
    kept = b""
    for piece in web.pieces(source, offset, length):
        whole.update(piece)
        if length <= IN_MEMORY:
            kept += piece
    return kept
