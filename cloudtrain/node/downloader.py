"""Downloads a dataset to this node: many files side by side, and large ones in parts.

Reads JSON lines: an order, then one per file with a presigned request, the path of a file of this
machine, or its bytes. Prints where the dataset lies once it is complete. It knows no store. Killed
at any moment it leaves nothing that looks complete; the next one downloads only what is missing.
"""

import base64
import ctypes
import hashlib
import json
import os
import select
import signal
import sys
import threading
import time

from cloudtrain.node import client, dataset_folder, fetcher, web

LARGE = 32 << 20
PART = 16 << 20
SHARE = 32
"""A file larger than this share of the dataset is downloaded in parts."""
LONGEST = 512 << 20
"""Bytes of a file that is always downloaded in parts, so that less is repeated after a break."""
QUEUED = 4 * fetcher.AT_ONCE
"""Jobs in hand of one process: those in work and the next ones."""
PROCESSES = 8
PR_SET_PDEATHSIG = 1
ASKED = 3
"""Times that a signature of one file is renewed without progress."""


def main() -> None:
    order = client.order()
    key, roots = dataset_folder.plain(str(order["key"])), order["roots"]
    assert isinstance(roots, list)
    started = time.monotonic()
    cache = dataset_folder.Folder(dataset_folder.plain(roots[-1]), key)
    lock = dataset_folder.alone(cache.lock, Waiting())
    # After the lock, which they hold as well, and before the first thread.
    processes = [Process() for _ in range(max(2, min(PROCESSES, os.cpu_count() or 2)))]
    client.attend()
    os.umask(0o022)
    folder = None
    try:
        folder = dataset_folder.chosen(order, key)
        if not folder.complete:
            Download(order, folder, processes).run()
        facts = {"ready": dataset_folder.name(os.path.realpath(folder.files))}  # type: dict[str, object]
        facts.update(root=dataset_folder.name(folder.root), seconds=time.monotonic() - started)
    except (dataset_folder.NoRoom, Failed) as error:
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


class Failed(Exception):
    def __init__(self, facts: "dict[str, object]") -> None:
        super().__init__()
        self.facts = facts


class Process:
    """A process that downloads: its jobs, its results, and how many are in hand."""

    def __init__(self) -> None:
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
            fetcher.Fetcher(0, 1).run()
        os.close(jobs)
        os.close(results)

    def give(self, line: bytes) -> None:
        with self.lock:
            while line:
                line = line[os.write(self.jobs, line) :]


class Large:
    """A file that is downloaded in parts."""

    def __init__(self, job: "dict[str, object]", had: "dict[tuple[int, int], str]") -> None:
        self.job = job
        size = int(str(job["size"]))
        self.parts = {}  # type: dict[tuple[int, int], str]
        self.due = [(at, min(PART, size - at)) for at in range(0, size, PART)] or [(0, 0)]
        self.parts.update((part, had[part]) for part in self.due if part in had)
        self.is_over = False
        self.missing = [part for part in self.due if part not in self.parts]


class Download:
    def __init__(
        self,
        order: "dict[str, object]",
        folder: "dataset_folder.Folder",
        processes: "list[Process]",
    ) -> None:
        self.folder, self.processes = folder, processes
        self.size, self.files = int(str(order["size"])), int(str(order["files"]))
        self.changed = threading.Condition()
        self.at, self.count = folder.has(), len(folder.whole)
        self.large = {}  # type: dict[int, Large]
        self.expired = {}  # type: dict[int, list[dict[str, object]]]
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
        first = {
            "root": dataset_folder.name(self.folder.root),
            "key": os.path.basename(os.fsdecode(self.folder.top)),
        }
        for process in self.processes:
            process.give(json.dumps(first).encode() + b"\n")
            threading.Thread(target=self.hear, args=(process,), daemon=True).start()
        client.tell({"need": True, "have": self.bitmap(), "parts": self.had_parts()})
        threading.Thread(target=self.read, daemon=True).start()
        while self.failed is None and self.count < self.files:
            self.ended.wait(0.5)
            client.tell({"at": self.at, "files": self.count})
        if self.failed is not None:
            raise Failed(self.failed)
        os.close(self.record)
        self.folder.finish(self.size, self.files)

    def bitmap(self) -> str:
        """Which files are whole: bit n % 8 of byte n // 8."""
        bits = bytearray((max(self.folder.whole, default=-1) + 8) // 8)
        for number in self.folder.whole:
            bits[number // 8] |= 1 << number % 8
        return base64.b64encode(bits).decode()

    def had_parts(self) -> "list[list[int]]":
        """Parts of files that are not whole, for a client that sends their bytes itself."""
        return [[n, *part] for n, parts in self.folder.pieces.items() for part in parts]

    def read(self) -> None:
        try:
            for line in iter(sys.stdin.buffer.readline, b""):
                self.take(json.loads(line.decode()), line)
        except (OSError, ValueError) as error:
            self.fail({"error": "order", "text": str(error)})

    def take(self, job: "dict[str, object]", line: bytes) -> None:
        number, size = int(str(job["n"])), int(str(job["size"]))
        dataset_folder.safe(str(job["path"]))
        if "offset" in job:
            self.receive(job, number, size)
            return
        with self.changed:
            expired = self.expired.pop(number, [])
            newer = {"request": job.get("request"), "renewals": self.renewals.get(number, 0) + 1}
            if expired:
                self.renewals[number] = int(str(newer["renewals"]))
            if number in self.large:
                self.large[number].job.update(newer)
        for each in expired:
            self.hand(dict(each, **newer))
        if expired:
            return
        if size > self.limit and not job.get("copy"):
            self.take_large(job, number)
        else:
            self.hand(job, line)

    def take_large(self, job: "dict[str, object]", number: int) -> None:
        large = self.begun(job, number)
        if not large.missing and len(large.due) == 1:
            self.finish(large)
        for part in large.missing:
            with self.changed:
                if self.large.get(number) is not large:
                    return
                each = dict(large.job, part=part)
                if number in self.expired:
                    self.expired[number].append(each)
                    continue
            self.hand(each)

    def begun(self, job: "dict[str, object]", number: int) -> Large:
        large = Large(job, self.folder.pieces.get(number, {}))
        place = os.open(self.folder.part(number), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(place, int(str(job["size"])))
        os.close(place)
        with self.changed:
            self.large[number] = large
        if len(large.due) > 1:
            threading.Thread(target=self.follow, args=(large,), daemon=True).start()
        return large

    def hand(self, job: "dict[str, object]", line: bytes = b"") -> None:
        """Give a job to the process with the fewest, once one has fewer than QUEUED."""
        line = line or json.dumps(job).encode() + b"\n"
        with self.changed:
            while True:
                process = min(self.processes, key=lambda each: each.in_hand)
                if process.in_hand < QUEUED or self.failed is not None:
                    break
                self.changed.wait()
            process.in_hand += 1
        process.give(line)

    def receive(self, job: "dict[str, object]", number: int, size: int) -> None:
        """Store a piece whose bytes follow on stdin: the whole file, or parts in any order."""
        offset, length = int(str(job["offset"])), int(str(job["length"]))
        with self.changed:
            large = self.large.get(number)
        large = large or self.begun(job, number)
        digest = hashlib.sha256()
        place = os.open(self.folder.part(number), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.lseek(place, offset, os.SEEK_SET)
            left = length
            while left:
                data = sys.stdin.buffer.read(min(left, dataset_folder.PIECE))
                if not data:
                    raise ValueError("the input ended within a file")
                digest.update(data)
                fetcher.write(place, memoryview(data))
                left -= len(data)
        except fetcher.Failure as error:
            self.fail({"error": error.kind, "n": number, "text": str(error)})
            return
        finally:
            os.close(place)
        self.part_done(number, (offset, length), digest.hexdigest())

    def hear(self, process: Process) -> None:
        with os.fdopen(process.results, "rb") as results:
            for line in results:
                told = json.loads(line.decode())
                with self.changed:
                    process.in_hand -= 1
                    if process.in_hand == QUEUED // 2:  # seldom: `hand` then gives many at once
                        self.changed.notify_all()
                if told[0] == "file":
                    self.file_done(told)
                elif told[0] == "part":
                    self.part_done(told[1], (told[2], told[3]), told[4])
                else:
                    self.refused(*told[1:])
        self.fail({"error": "process", "text": "a process of the download was ended"})

    def file_done(self, told: "list[object]", counted: bool = False) -> None:
        line = json.dumps(told).encode() + b"\n"
        with self.changed:
            os.write(self.record, line)
            self.at += 0 if counted else int(str(told[2]))
            self.count += 1
            self.asked.pop(int(str(told[1])), None)
            if self.count == self.files:
                self.ended.set()

    def part_done(self, number: int, part: "tuple[int, int]", digest: str) -> None:
        line = json.dumps(["part", number, part[0], part[1], digest]).encode() + b"\n"
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
        with open(self.folder.part(int(str(large.job["n"]))), "rb", buffering=0) as file:
            for part in large.due:
                with self.changed:
                    while part not in large.parts and not large.is_over:
                        self.changed.wait()
                if large.is_over:
                    return
                for data in web.pieces(file.fileno(), *part) if large.job["md5"] else ():
                    md5.update(data)
        self.finish(large, f"md5:{md5.hexdigest()}")

    def finish(self, large: Large, md5: str = "") -> None:
        """Verify a file of parts and move it to its place."""
        number, wanted = int(str(large.job["n"])), str(large.job["md5"])
        path = self.folder.part(number)
        joined = "".join(large.parts[part] for part in large.due)
        digest = f"parts:{PART}:{hashlib.sha256(joined.encode()).hexdigest()}"
        try:
            if wanted:
                digest = md5 or dataset_folder.file_digest(path, "md5")
            if wanted and digest != f"md5:{wanted}":
                os.unlink(path)
                raise fetcher.Failure("corrupt", f"{digest} was downloaded, not md5:{wanted}")
            told = fetcher.placed(self.folder, number, str(large.job["path"]), digest, set())
        except fetcher.Failure as error:
            self.fail({"error": error.kind, "n": number, "text": str(error)})
            return
        with self.changed:
            del self.large[number]
        self.file_done(["file", *told], counted=True)

    def refused(self, job: "dict[str, object]", kind: str, text: str) -> None:
        number = int(str(job["n"]))
        if kind == "range":  # the server sends whole files only
            with self.changed:
                large = self.large.pop(number, None)
                if large is None:
                    return
                large.is_over = True
                self.at -= sum(length for _, length in large.parts)
                self.changed.notify_all()
            whole = {name: value for name, value in large.job.items() if name != "part"}
            threading.Thread(target=self.hand, args=(whole,), daemon=True).start()
            return
        if kind != "again":
            self.fail({"error": kind, "n": number, "text": text})
            return
        with self.changed:
            large = self.large.get(number)
            if large is not None and job.get("renewals", 0) != self.renewals.get(number, 0):
                # Parts that were handed out with the old signature need no other than the new one.
                again = dict(large.job, part=job["part"])
                threading.Thread(target=self.hand, args=(again,), daemon=True).start()
                return
            is_first = number not in self.expired
            times = self.asked.get(number, 0) + is_first
            self.asked[number] = times
            self.expired.setdefault(number, []).append(job)
        if times > ASKED:
            self.fail({"error": "refused", "n": number, "text": text})
        elif is_first:
            client.tell({"again": number})

    def fail(self, facts: "dict[str, object]") -> None:
        with self.changed:
            self.failed = self.failed or facts
            self.changed.notify_all()
            self.ended.set()


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
