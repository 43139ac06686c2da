"""Downloads files or parts of them in threads of one process, as the downloader hands them out.

Jobs and results are JSON lines. A process ends with its jobs' end, so also with the downloader.
"""

import hashlib
import http.client
import json
import os
import queue
import re
import ssl
import threading
import time
import typing
import urllib.parse
from typing import Any

from cloudtrain.node import answers, client, dataset_folder, web

AT_ONCE, MOST = 16, 256
"""Threads of a process, each with a connection, and of all processes where answers take long."""
EACH = 0.0003
"""Seconds that a process takes for a small file: a thread for each of them until an answer, and it
waits for none. S3 answers within 100 to 200 ms:
https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html"""
SMALL, LARGE = 1 << 18, 1 << 20
"""Bytes of a thread's buffer, and of one for a part of a large file."""
PARTS = 4
"""Parts that one process downloads at once: more connections only take more of its processor."""
REDIRECTS = 5
IDENTITY = {"Accept-Encoding": "identity"}
CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class Failure(Exception):
    """`kind`: changed, gone, disk, range (no parts), again (expired), refused, corrupt."""

    def __init__(self, kind: str, text: str = "") -> None:
        super().__init__(text)
        self.kind = kind


class Job(typing.NamedTuple):
    """A file, or with `part` (offset, length) a part of one. `md5`: in hex, "" if not listed. Its
    bytes come by `request`, or from the file `copy` of this machine, whose `mtime` is in ns.
    `renewals`: how often the request was signed anew."""

    n: int
    path: str
    size: int
    md5: str = ""
    request: "dict[str, Any] | None" = None
    copy: str = ""
    mtime: int = 0
    part: "tuple[int, int] | None" = None
    renewals: int = 0

    def line(self) -> bytes:
        return json.dumps(self._asdict()).encode() + b"\n"


def run(jobs: int, results: int, most: int) -> None:
    """Work for the downloader until the jobs end, in up to `most` threads. Never returns."""
    lines = os.fdopen(jobs, "rb")
    first = lines.readline()
    if first:
        root, key = json.loads(first.decode())
        folder = dataset_folder.Folder(client.plain(root), client.plain(key))
        threading.stack_size(1 << 19)
        fetcher = Fetcher(lines, results, folder, most)
        for _ in range(AT_ONCE):
            fetcher.begin()
        threading.Event().wait()
    os._exit(0)


class Fetcher:
    def __init__(
        self,
        jobs: "typing.BinaryIO",
        results: int,
        folder: "dataset_folder.Folder",
        most: int = AT_ONCE,
    ) -> None:
        self.jobs, self.results, self.folder = jobs, results, folder
        self.reading, self.writing = threading.Lock(), threading.Lock()
        self.web = web.Web()
        self.made = set()  # type: set[bytes]
        self.large = queue.Queue()  # type: queue.Queue[memoryview]
        for _ in range(PARTS):
            self.large.put(memoryview(bytearray(LARGE)))
        self.most, self.threads, self.counting = most, 0, threading.Lock()
        self.soonest = float(most)
        """Seconds until an answer, at least: more threads do not hasten a server that is busy."""

    def begin(self) -> None:
        threading.Thread(target=self.work, daemon=True).start()
        self.threads += 1

    def waited(self, seconds: float) -> None:
        """An answer took so long: begin another thread if there are not enough."""
        with self.counting:
            self.soonest = min(self.soonest, seconds)
            if self.threads < min(self.most, self.soonest / EACH):
                try:
                    self.begin()
                except RuntimeError:  # this user may not have more: those that are there do
                    self.most = self.threads

    def work(self) -> None:
        buffer = memoryview(bytearray(SMALL))
        while True:
            with self.reading:
                line = self.jobs.readline()
            if not line.endswith(b"\n"):
                os._exit(0)
            job = Job(**json.loads(line.decode()))
            try:
                result = self.done(job, buffer)
            except Exception as error:  # noqa: BLE001 - also an answer that no library expects
                kind, text = "refused", type(error).__name__
                if isinstance(error, Failure):
                    kind, text = error.kind, str(error)
                result = ["failed", job._replace(request=None)._asdict(), kind, text]
            with self.writing:
                write_all(self.results, json.dumps(result).encode() + b"\n")

    def done(self, job: Job, buffer: memoryview) -> "list[object]":
        """Download a file or a part; returns the result. Raises Failure."""
        kind = "md5" if job.md5 else "sha256"
        digest, path = hashlib.new(kind), self.folder.part(job.n)
        try:
            if job.part:
                return ["part", job.n, *job.part, self.part(job, *job.part)]
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                if job.copy:
                    copied(job, made, digest, buffer)
                elif job.size:
                    self.stream(job, made, 0, job.size, digest, buffer)
            finally:
                os.close(made)
        except OSError as error:
            raise Failure("disk", error.strerror or str(error)) from None
        if job.md5 and digest.hexdigest() != job.md5:
            text = f"md5:{digest.hexdigest()} was downloaded, md5:{job.md5} was listed"
            raise Failure("corrupt", text)
        found = f"{kind}:{digest.hexdigest()}"
        return ["file", *placed(self.folder, job.n, job.path, found, self.made)]

    def part(self, job: Job, offset: int, length: int) -> str:
        """Download a part of a file; returns its digest."""
        digest, buffer = dataset_folder.part_hash(bool(job.md5)), self.large.get()
        try:
            with open(self.folder.part(job.n), "r+b", buffering=0) as file:
                os.lseek(file.fileno(), offset, os.SEEK_SET)
                self.stream(job, file.fileno(), offset, length, digest, buffer)
        finally:
            self.large.put(buffer)
        return digest.hexdigest()

    def stream(
        self,
        job: Job,
        file: int,
        offset: int,
        length: int,
        digest: "hashlib._Hash | dataset_folder.Crc",
        buffer: memoryview,
    ) -> None:
        """Download bytes of the object into the file, from where it broke off if it does."""
        end, failures = offset + length, 0
        while offset < end:
            before = offset
            try:
                answer, server, connection = self.answer(job, offset, end)
                try:
                    while offset < end:
                        count = answer.readinto(buffer[: min(len(buffer), end - offset)])
                        if not count:
                            raise http.client.IncompleteRead(b"", end - offset)
                        digest.update(buffer[:count])
                        write(file, buffer[:count])
                        offset += count
                finally:
                    if not answer.isclosed() or answer.will_close:
                        self.web.forget(server, connection)
            except Failure:
                raise
            except web.Unreachable as error:
                raise Failure("unreachable", str(error)) from None
            except web.Refused as error:
                raise Failure("refused", str(error)) from None
            except (OSError, http.client.HTTPException, web.Transient) as error:
                failures = 1 if offset > before else failures + 1
                if failures == web.TRIES:
                    raise Failure("refused", str(error) or type(error).__name__) from None
                web.pause(failures - 1, getattr(error, "after", 0.0))

    def answer(
        self, job: Job, offset: int, end: int
    ) -> "tuple[answers.Answer, str, http.client.HTTPConnection]":
        """An answer at its first byte, and its connection."""
        request = job.request or {}
        url, headers = str(request["url"]), dict(IDENTITY, **request["headers"])
        if offset or end < job.size:
            headers["Range"] = f"bytes={offset}-{end - 1}"
        for _ in range(REDIRECTS):
            asked = time.monotonic()
            answer, server, connection = self.sent(url, headers)
            if answer.status not in (301, 302, 303, 307, 308):
                break
            self.web.forget(server, connection)
            old, url = url, urllib.parse.urljoin(url, answer.getheader("Location") or "")
            if url[:6] != "https:" and old[:6] == "https:":
                raise web.Refused("the server redirects to an address without https")
            if urllib.parse.urlsplit(url).netloc != urllib.parse.urlsplit(old).netloc:
                headers.pop("Authorization", None)
        try:
            if not isinstance(answer, answers.SimpleAnswer) and answer.status not in (200, 206):
                raise refusal(answer, answer.read(web.MOST_WORDS), request)
            check(answer, job.size, offset, end)
            if end - offset <= SMALL:
                self.waited(time.monotonic() - asked)
        except BaseException:
            self.web.forget(server, connection)
            raise
        return answer, server, connection

    def sent(
        self, url: str, headers: "dict[str, str]"
    ) -> "tuple[answers.Answer, str, http.client.HTTPConnection]":
        target = urllib.parse.urlsplit(url)
        server = f"{target.scheme}://{target.netloc}"
        path = (target.path or "/") + ("?" + target.query if target.query else "")
        while True:
            connection, is_new = self.web.connection(server, target)
            try:
                connection.sock.sendall(answers.head("GET", target, path, headers))
                return answers.read(connection.sock), server, connection
            except (OSError, http.client.HTTPException) as error:
                self.web.forget(server, connection)
                if is_new:  # else the server may have closed the kept connection: no error
                    text = f"{target.netloc}: {error or type(error).__name__}"
                    if isinstance(error, ssl.CertificateError):
                        raise web.Refused(text) from None
                    raise web.Transient(text) from None


def check(answer: "answers.Answer", size: int, offset: int, end: int) -> None:
    """Raise Failure unless the answer is of an object of that size, and of these bytes."""
    total = answer.getheader("Content-Length")
    found = CONTENT_RANGE.match(answer.getheader("Content-Range") or "")
    if answer.status == 206 or (found and answer.length == end - offset):
        # Some servers of S3's API send parts with the status 200, among them rclone's up to 2026:
        # https://github.com/johannesboyne/gofakes3/pull/121
        if found is None or int(found.group(1)) != offset:
            raise Failure("refused", "the server answered with other bytes than were requested")
        total = found.group(2)
    elif offset or end < size:
        raise Failure("range")
    if total is not None and total.isdigit() and int(total) != size:
        raise Failure("changed", f"it has {total} bytes now, {size} were listed")


def refusal(
    answer: "http.client.HTTPResponse", body: bytes, request: "dict[str, Any]"
) -> Exception:
    part = web.Part(dict(request, method="GET", before="", after=""), 0, 0, 0)
    text = web.words(answer, body, part)
    if answer.status in web.TRANSIENT:
        return web.Transient(text, web.seconds(answer))
    if answer.status in (412, 416):
        return Failure("changed")
    if answer.status in (404, 410):
        return Failure("gone")
    if answer.status in (400, 401, 403):
        return Failure("again", text)
    return Failure("refused", text)


def copied(job: Job, made: int, digest: "hashlib._Hash", buffer: memoryview) -> None:
    """Copy a file of this machine, which must be as it was listed before and after."""
    try:
        source = os.open(client.plain(job.copy), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Failure("gone") from None
    except OSError as error:
        raise Failure("refused", error.strerror or str(error)) from None
    try:
        seen, left = os.fstat(source), job.size
        while left:
            count = os.readv(source, [buffer[: min(left, len(buffer))]])
            if not count:
                break
            digest.update(buffer[:count])
            write(made, buffer[:count])
            left -= count
        after = os.fstat(source)
    finally:
        os.close(source)
    stamps = {(each.st_size, each.st_mtime_ns) for each in (seen, after)}
    if left or stamps != {(job.size, job.mtime)}:
        raise Failure("changed")


def write_all(file: int, data: "bytes | memoryview") -> None:
    while data:
        data = data[os.write(file, data) :]


def write(file: int, data: memoryview) -> None:
    try:
        write_all(file, data)
    except OSError as error:
        raise Failure("disk", error.strerror or str(error)) from None


def placed(
    folder: "dataset_folder.Folder", number: int, path: str, digest: str, made: "set[bytes]"
) -> "dataset_folder.Entry":
    """Move a whole file to its place, read-only; returns its entry of the record."""
    target, part = folder.place(path), folder.part(number)
    parent = os.path.dirname(target)
    try:
        if parent not in made:
            os.makedirs(parent, exist_ok=True)
            made.add(parent)
        os.chmod(part, 0o444)
        os.replace(part, target)
        seen = os.stat(target)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise Failure("name", "the listing has a file and a folder of this name") from None
    except OSError as error:
        raise Failure("disk", error.strerror or str(error)) from None
    return dataset_folder.entry_of(number, path, seen, digest)
