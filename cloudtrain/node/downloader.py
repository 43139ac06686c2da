"""Downloads a dataset to this node: many files side by side, and large ones in parts.

Reads JSON lines: an order, then one per file with a presigned request, the path of a file of this
machine, or its bytes. Prints where the dataset lies once it is complete. It knows no store. Killed
at any moment it leaves nothing that looks complete; the next one downloads only what is missing.
"""

import base64
import collections.abc
import ctypes
import hashlib
import json
import os
import select
import signal
import sys
import threading
import time
from typing import Any

from cloudtrain.node import client, dataset_folder, fetcher, web

LARGE = 32 << 20
PART = 16 << 20
SHARE = 32
"""A file larger than this share of the dataset is downloaded in parts."""
LONGEST = 512 << 20
"""Bytes of a file that is always downloaded in parts, so that less is repeated after a break."""
QUEUED = 4 * fetcher.AT_ONCE
"""Jobs in hand of one process, at least: those in work and the next ones."""
PROCESSES = 8
PR_SET_PDEATHSIG = 1
ASKED = 3
"""Times that a signature of one file is renewed without progress."""


def main() -> None:
    order = client.order()
    key, root = client.plain(order["key"]), client.plain(order["roots"][-1])
    started = time.monotonic()
    lock = dataset_folder.alone(dataset_folder.Folder(root, key).lock, Waiting())
    pool = Pool()  # after the lock, which its processes hold as well, and before the first thread
    client.attend()
    os.umask(0o022)
    folder = None
    try:
        folder = dataset_folder.chosen(order, key)
        if not folder.complete:
            Download(order, folder, pool).run()
        facts = {"ready": client.text(os.path.realpath(folder.files))}  # type: dict[str, object]
        facts.update(root=client.text(folder.root), seconds=time.monotonic() - started)
    except dataset_folder.Failed as error:
        facts = error.facts
    except OSError as error:
        facts = {"error": "disk", "text": str(error)}
    client.tell(facts)
    if folder is not None and "ready" in facts:
        sync_later(folder, lock)
    os._exit(0)


class Waiting:
    """Keeps the client informed while another download has the lock."""

    def __init__(self) -> None:
        self.times = 0
        self.poll = select.poll()
        self.poll.register(1, 0)

    def __call__(self) -> None:
        if self.times == 0:
            client.tell({"waiting": True})
        self.times += 1
        if self.times % 50 == 0:
            os.write(2, b"\0")
        if self.poll.poll(0):
            os._exit(1)  # the client is gone


class Process:
    """A process that downloads: its jobs, its results, and how many are in hand."""

    def __init__(self, most: int) -> None:
        jobs, self.jobs = os.pipe()
        self.results, results = os.pipe()
        self.in_hand = 0
        self.lock = threading.Lock()
        parent = os.getpid()
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            os.dup2(results, 1)
            os.dup2(jobs, 0)
            fetcher.run(0, 1, most)
        os.close(jobs)
        os.close(results)

    def give(self, line: bytes) -> None:
        with self.lock:
            fetcher.write_all(self.jobs, line)


class Pool:
    """The processes that download. A job goes to the one with the fewest in hand."""

    def __init__(self) -> None:
        count = max(2, min(PROCESSES, os.cpu_count() or 2))
        self.queued = max(QUEUED, 2 * fetcher.MOST // count)
        self.processes = [Process(fetcher.MOST // count) for _ in range(count)]
        self.changed = threading.Condition()
        self.is_over = False

    def start(
        self,
        folder: "dataset_folder.Folder",
        take: "collections.abc.Callable[[list[Any]], None]",
        fail: "collections.abc.Callable[[dict[str, object]], None]",
    ) -> None:
        """Begin to download to a folder. `take` gets each result, `fail` a process's end."""

        def hear(process: Process) -> None:
            with os.fdopen(process.results, "rb") as results:
                for line in results:
                    with self.changed:
                        process.in_hand -= 1
                        if process.in_hand == self.queued // 2:  # seldom: then many are given
                            self.changed.notify_all()
                    take(json.loads(line.decode()))
            fail({"error": "process", "text": "a process of the download was ended"})

        first = [client.text(folder.root), client.text(os.path.basename(folder.top))]
        for process in self.processes:
            process.give(json.dumps(first).encode() + b"\n")
            threading.Thread(target=hear, args=(process,), daemon=True).start()

    def hand(self, job: "fetcher.Job", line: bytes = b"") -> None:
        """Give a job, once a process has few enough."""
        with self.changed:
            while True:
                process = min(self.processes, key=lambda each: each.in_hand)
                if process.in_hand < self.queued or self.is_over:
                    break
                self.changed.wait()
            process.in_hand += 1
        process.give(line or job.line())

    def hand_later(self, job: "fetcher.Job") -> None:
        """The same from a thread of its own, for one that hears results and must not wait."""
        threading.Thread(target=self.hand, args=(job,), daemon=True).start()

    def end(self) -> None:
        with self.changed:
            self.is_over = True
            self.changed.notify_all()


class Large:
    """A file that is downloaded in parts, with the digests of those that are there."""

    def __init__(self, job: "fetcher.Job", had: "dict[tuple[int, int], str]") -> None:
        self.job = job
        self.due = [(at, min(PART, job.size - at)) for at in range(0, job.size, PART)] or [(0, 0)]
        self.parts = {part: had[part] for part in self.due if part in had}
        self.is_over = False
        self.missing = [part for part in self.due if part not in self.parts]


class Download:
    def __init__(
        self, order: "dict[str, Any]", folder: "dataset_folder.Folder", pool: Pool
    ) -> None:
        self.folder, self.pool = folder, pool
        self.size, self.files = int(order["size"]), int(order["files"])
        self.changed = threading.Condition()
        self.at, self.count = folder.has(), len(folder.whole)
        self.large = {}  # type: dict[int, Large]
        self.expired = {}  # type: dict[int, list[fetcher.Job]]
        """Jobs whose signature has expired, until the client has sent another."""
        self.renewals = {}  # type: dict[int, int]
        """How many times a file has another signature than at first."""
        self.asked = {}  # type: dict[int, int]
        self.failed = None  # type: dict[str, object] | None
        self.ended = threading.Event()
        self.limit = min(LONGEST, max(LARGE, self.size // SHARE))

    def run(self) -> None:
        """Download everything. Raises Failed."""
        self.folder.prepare()
        self.record = os.open(self.folder.record, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self.pool.start(self.folder, self.hear, self.fail)
        parts = [[n, *part] for n, had in self.folder.pieces.items() for part in had]
        client.tell({"need": True, "have": self.bitmap(), "parts": parts})
        threading.Thread(target=self.read, daemon=True).start()
        while self.failed is None and self.count < self.files:
            self.ended.wait(0.5)
            client.tell({"at": self.at, "files": self.count})
        if self.failed is not None:
            raise dataset_folder.Failed(self.failed)
        os.close(self.record)
        self.folder.finish(self.size, self.files)

    def bitmap(self) -> str:
        """Bits of the files that are whole: bit n % 8 of byte n // 8."""
        bits = bytearray((max(self.folder.whole, default=-1) + 8) // 8)
        for number in self.folder.whole:
            bits[number // 8] |= 1 << number % 8
        return base64.b64encode(bits).decode()

    def read(self) -> None:
        try:
            for line in iter(sys.stdin.buffer.readline, b""):
                order = json.loads(line.decode())
                dataset_folder.safe(order["path"])
                if "offset" in order:
                    part = int(order.pop("offset")), int(order.pop("length"))
                    self.receive(fetcher.Job(**order), part)
                else:
                    self.take(fetcher.Job(**order), line)
        except (OSError, ValueError, TypeError, LookupError) as error:
            self.fail({"error": "order", "text": str(error)})

    def take(self, job: "fetcher.Job", line: bytes) -> None:
        with self.changed:
            expired = self.expired.pop(job.n, [])
            renewals = self.renewals.get(job.n, 0) + 1
            if expired:
                self.renewals[job.n] = renewals
            if job.n in self.large:
                large = self.large[job.n]
                large.job = large.job._replace(request=job.request, renewals=renewals)
        for each in expired:
            self.pool.hand(each._replace(request=job.request, renewals=renewals))
        if expired:
            return
        if job.size > self.limit and not job.copy:
            self.take_large(job)
        else:
            self.pool.hand(job, line)

    def take_large(self, job: "fetcher.Job") -> None:
        large = self.begun(job)
        if not large.missing and len(large.due) == 1:
            self.finish(large)
        for part in large.missing:
            with self.changed:
                if self.large.get(job.n) is not large:
                    return
                each = large.job._replace(part=part)
                if job.n in self.expired:
                    self.expired[job.n].append(each)
                    continue
            self.pool.hand(each)

    def begun(self, job: "fetcher.Job") -> Large:
        large = Large(job, self.folder.pieces.get(job.n, {}))
        file = os.open(self.folder.part(job.n), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(file, job.size)
        os.close(file)
        with self.changed:
            self.large[job.n] = large
        if len(large.due) > 1:
            threading.Thread(target=self.follow, args=(large,), daemon=True).start()
        return large

    def receive(self, job: "fetcher.Job", part: "tuple[int, int]") -> None:
        """Store a piece whose bytes follow on stdin: the whole file, or parts in any order."""
        with self.changed:
            large = self.large.get(job.n)
        large = large or self.begun(job)
        digest = hashlib.sha256()
        file = os.open(self.folder.part(job.n), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.lseek(file, part[0], os.SEEK_SET)
            left = part[1]
            while left:
                data = sys.stdin.buffer.read(min(left, dataset_folder.PIECE))
                if not data:
                    raise ValueError("the input ended within a file")
                digest.update(data)
                fetcher.write(file, memoryview(data))
                left -= len(data)
        except fetcher.Failure as error:
            self.fail({"error": error.kind, "n": job.n, "text": str(error)})
            return
        finally:
            os.close(file)
        self.part_done(job.n, part, digest.hexdigest())

    def hear(self, result: "list[Any]") -> None:
        """Take a result of a process."""
        kind, rest = result[0], result[1:]
        if kind == "file":
            self.file_done(dataset_folder.Entry(*rest))
        elif kind == "part":
            number, offset, length, digest = rest
            self.part_done(number, (offset, length), digest)
        else:
            self.refused(fetcher.Job(**rest[0]), *rest[1:])

    def file_done(self, entry: "dataset_folder.Entry", counted: bool = False) -> None:
        line = json.dumps(["file", *entry]).encode() + b"\n"
        with self.changed:
            os.write(self.record, line)
            self.at += 0 if counted else entry.size
            self.count += 1
            self.asked.pop(entry.number, None)
            if self.count == self.files:
                self.ended.set()

    def part_done(self, number: int, part: "tuple[int, int]", digest: str) -> None:
        line = json.dumps(["part", number, *part, digest]).encode() + b"\n"
        with self.changed:
            large = self.large.get(number)
            if large is None:
                return
            os.write(self.record, line)
            self.at += part[1]
            self.asked.pop(number, None)
            large.parts[part] = digest
            self.changed.notify_all()
        if len(large.due) == 1:
            self.finish(large)

    def follow(self, large: Large) -> None:
        """Wait for the parts in their order, for the checksum that the listing gave."""
        md5 = hashlib.md5()
        with open(self.folder.part(large.job.n), "rb", buffering=0) as file:
            for part in large.due:
                with self.changed:
                    while part not in large.parts and not large.is_over:
                        self.changed.wait()
                if large.is_over:
                    return
                for data in web.pieces(file.fileno(), *part) if large.job.md5 else ():
                    md5.update(data)
        self.finish(large, f"md5:{md5.hexdigest()}")

    def finish(self, large: Large, md5: str = "") -> None:
        """Verify a file of parts and move it to its place."""
        job, path = large.job, self.folder.part(large.job.n)
        joined = "".join(large.parts[part] for part in large.due)
        digest = f"parts:{PART}:{hashlib.sha256(joined.encode()).hexdigest()}"
        try:
            if job.md5:
                digest = md5 or dataset_folder.file_digest(path, "md5")
            if job.md5 and digest != f"md5:{job.md5}":
                os.unlink(path)
                raise fetcher.Failure("corrupt", f"{digest} was downloaded, not md5:{job.md5}")
            entry = fetcher.placed(self.folder, job.n, job.path, digest, set())
        except fetcher.Failure as error:
            self.fail({"error": error.kind, "n": job.n, "text": str(error)})
            return
        with self.changed:
            del self.large[job.n]
        self.file_done(entry, counted=True)

    def refused(self, job: "fetcher.Job", kind: str, text: str) -> None:
        if kind == "range":  # the server sends whole files only
            with self.changed:
                large = self.large.pop(job.n, None)
                if large is None:
                    return
                large.is_over = True
                self.at -= sum(length for _, length in large.parts)
                self.changed.notify_all()
            self.pool.hand_later(large.job)
            return
        if kind != "again":
            self.fail({"error": kind, "n": job.n, "text": text})
            return
        with self.changed:
            large = self.large.get(job.n)
            if large is not None and job.renewals != self.renewals.get(job.n, 0):
                # Parts that were handed out with the old signature need no other than the new one.
                self.pool.hand_later(large.job._replace(part=job.part))
                return
            is_first = job.n not in self.expired
            times = self.asked[job.n] = self.asked.get(job.n, 0) + is_first
            self.expired.setdefault(job.n, []).append(job)
        if times > ASKED:
            self.fail({"error": "refused", "n": job.n, "text": text})
        elif is_first:
            client.tell({"again": job.n})

    def fail(self, facts: "dict[str, object]") -> None:
        with self.changed:
            self.failed = self.failed or facts
            self.ended.set()
        self.pool.end()


def sync_later(folder: "dataset_folder.Folder", lock: int) -> None:
    """Write the dataset to the disk in a process of its own: nobody waits for it."""
    if os.fork():
        return
    os.setsid()
    os.close(lock)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    try:
        folder.sync()
    finally:
        os._exit(0)
