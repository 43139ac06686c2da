"""Follows one attempt of a task for a client: its log, its processes, and how it ended.

Sent as `python3 -c`, with FOLDER OFFSET BEAT MEASURED. Bytes of the log from OFFSET on go to
stdout, at most one batch each PACE seconds. Facts go to stderr, one a line, for FollowReader of
task_commands.py: a heartbeat at once and each BEAT seconds, the metrics after their first MEASURED
bytes, and `end …`, once every byte of the log is sent. Ends with its client.

The end is noticed at once by a pidfd of the watcher, which records it right before it ends
(https://man7.org/linux/man-pages/man2/pidfd_open.2.html, read: Linux 5.3), else within PACE.
No inotify: `tail -f` takes every write of an unbuffered task for a message of its own with it.
"""

import os
import select
import sys
import time

PACE = 0.08
"""Seconds between two batches of the log, and between two looks at a task that prints nothing."""

LOOK = 1.0
"""Seconds between two looks at everything else that a task's folder tells."""

PIECE = 1 << 18
"""Bytes of the log that are read at once."""

LOW = 488282
"""KiB: 500 MB of free disk, below which the node says so."""

EMPTIED = (
    b"\n[cloudtrain: the log on the node was emptied or replaced here; what had arrived is kept]\n"
)


class ClientGone(Exception):
    """Nobody reads stdout or stderr any more."""


def main() -> None:
    folder, offset, beat, measured = sys.argv[1:5]
    os.set_blocking(1, False)
    try:
        Follower(folder, int(offset), float(beat), int(measured)).follow()
    except (ClientGone, BrokenPipeError, ConnectionError):
        os._exit(1)


def link(path: str) -> str:
    """Text of a record, which is a link; "" if there is none."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def stat_of(pid: str) -> "list[bytes]":
    """Fields of /proc/PID/stat from the name on (proc(5)); none if it is gone, or a zombie."""
    try:
        with open("/proc/" + pid + "/stat", "rb") as file:
            head, _, rest = file.read().rpartition(b")")
    except OSError:
        return []
    fields = rest.split()
    return [] if not fields or fields[0] in (b"Z", b"X") else [head.partition(b"(")[2], *fields]


class Attempt:
    """The records of one attempt (watcher.py)."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        try:
            with open("/proc/sys/kernel/random/boot_id") as file:
                self.boot = file.read().partition("-")[0]
        except OSError:
            self.boot = ""
        self.exit = ""
        self.keeper = ""
        """The process whose end ends the attempt."""
        self.root = self.watcher = ("0", "0")
        """Process and start; of another boot, none."""

    def state(self) -> str:
        """`absent`, `running`, `exited` or `lost`."""
        record = link(self.folder + "/task")
        if not record:
            return "absent"
        self.keeper = ""
        if record.count(":") == 4:
            pid, start, boot, watcher, watched = record.split(":")
            if boot == self.boot:
                self.root, self.watcher = (pid, start), (watcher, watched)
                alive = [one for one, born in (self.watcher, self.root) if is_alive(one, born)]
                self.keeper = alive[0] if alive else ""
        # Read after the liveness check: a watcher that is gone has written it before.
        self.exit = link(self.folder + "/exit")
        return "exited" if self.exit else "running" if self.keeper else "lost"

    def members(self) -> "list[str]":
        """`PID/STATE/TICKS/COMMAND` of each process, found as task_processes.sh finds them without
        a tag: by session, as an orphan of the watcher, by descent."""
        found = {}
        for name in os.listdir("/proc"):
            fields = stat_of(name) if name.isdigit() else []
            if fields:
                found[name.encode()] = fields
        (root, born), (watcher, watched) = (
            (pid.encode(), start.encode()) for pid, start in (self.root, self.watcher)
        )
        other = root in found and found[root][20] != born
        keeps = watcher in found and found[watcher][20] == watched
        children: dict[bytes, list[bytes]] = {}
        mine = []
        for pid, fields in found.items():
            children.setdefault(fields[2], []).append(pid)
            its = pid == root or fields[4] == root
            orphan = keeps and fields[2] == watcher and fields[4] != found[watcher][4]
            if (root != b"0" and not other and its) or orphan:
                mine.append(pid)
        seen = set(mine)
        for pid in mine:  # grows
            for child in children.get(pid, ()):
                if child not in seen:
                    seen.add(child)
                    mine.append(child)
        return ["/".join([pid.decode(), *figures(found[pid])]) for pid in mine]


def figures(fields: "list[bytes]") -> "list[str]":
    plain = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:+-"
    name = bytes(one if one in plain else ord("_") for one in fields[0])
    return [fields[1].decode(), str(int(fields[12]) + int(fields[13])), name.decode()]


def is_alive(pid: str, start: str) -> bool:
    fields = stat_of(pid)
    return bool(fields) and fields[20] == start.encode()


class Log:
    """The log as one stream of bytes, whatever becomes of its file. Offsets count from the stream's
    beginning. If the file is emptied or replaced, EMPTIED is a part of the stream, and the link
    `emptied` holds the offset at which the file begins."""

    def __init__(self, folder: str, offset: int) -> None:
        self.path, self.record = folder + "/log", folder + "/emptied"
        self.offset = offset
        self.base = int(link(self.record) or 0)
        self.file = -1
        self.lost = b""
        """What is sent in place of what no file has."""
        self.open()
        if offset < self.base:
            behind = b"\0" * max(0, self.base - offset - len(EMPTIED))
            self.lost = behind + EMPTIED[-(self.base - offset) :]

    def open(self) -> None:
        try:
            self.file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.file = -1

    def size(self) -> int:
        """Offset of the end of the file that is open."""
        return self.base + (os.fstat(self.file).st_size if self.file >= 0 else 0)

    def look(self) -> None:
        """See whether the file has been emptied or replaced; what it holds is read first."""
        if self.file < 0:
            self.open()
        if self.file < 0 or self.lost:
            return
        own = os.fstat(self.file)
        if self.offset < self.base + own.st_size:
            return
        try:
            there = os.stat(self.path)
        except OSError:
            return
        if there.st_ino != own.st_ino or there.st_dev != own.st_dev:
            os.close(self.file)
            self.open()
        elif self.offset == self.base + own.st_size:
            return
        self.base, self.lost = self.offset + len(EMPTIED), EMPTIED
        beside = self.record + "." + str(os.getpid())
        try:
            os.symlink(str(self.base), beside)
            os.rename(beside, self.record)
        except OSError:  # a client that comes again gets the new file's lines twice, and none late
            pass

    def read(self, end: int) -> bytes:
        """The next piece before that offset."""
        if self.lost:
            data, self.lost = self.lost[:PIECE], self.lost[PIECE:]
        elif self.file < 0 or self.offset >= end:
            return b""
        else:
            most = min(PIECE, end - self.offset)
            data = os.pread(self.file, most, self.offset - self.base)
        self.offset += len(data)
        return data


class Follower:
    def __init__(self, folder: str, offset: int, beat: float, measured: int) -> None:
        self.attempt = Attempt(folder)
        self.folder, self.every, self.measured = folder, beat, measured
        self.log = Log(folder, offset)
        self.pending = b""
        """Read from the log, and not yet taken by the client."""
        self.facts: list[bytes] = []
        self.told: set[str] = set()
        self.watched = ""
        """The process whose end `pidfd` shows."""
        self.pidfd = -1
        self.poll = select.poll()
        self.poll.register(1, 0)  # POLLERR and POLLHUP are always reported

    def follow(self) -> None:
        state = self.attempt.state()
        beat = look = 0.0
        while state == "running":
            now = time.monotonic()
            if now >= beat:
                beat = now + self.every
                self.tell(" ".join(["beat " + str(self.log.size()), *self.attempt.members()]))
                self.measure(1)
            if now >= look:
                look = now + LOOK
                self.notice()
            self.write_facts()
            self.log.look()
            self.send(self.log.size())
            self.watch(self.attempt.keeper)
            over = self.wait(min(PACE, self.every))
            if over or link(self.folder + "/exit") or time.monotonic() >= look:
                state = self.attempt.state()
        self.watch("")
        if state != "absent":
            self.send_rest(emptied=state == "exited")
        self.tell("end " + (self.attempt.exit or state))
        self.write_facts()

    def send_rest(self, emptied: bool) -> None:
        for _ in range(2):  # replaced: the last file and the new one
            if emptied:
                self.log.look()
            end = self.log.size()
            self.send(end)
            while self.pending:
                self.wait(self.every)
                self.send(end)
        self.measure(1 << 30)
        self.notice()
        starved = link(self.folder + "/oom")
        if starved:
            self.tell("oom " + starved)

    def send(self, end: int) -> None:
        """Send the log up to that offset, as far as the client takes it now."""
        while True:
            self.pending = self.pending or self.log.read(end)
            if not self.pending:
                return
            try:
                self.pending = self.pending[os.write(1, self.pending) :]
            except BlockingIOError:
                return

    def wait(self, seconds: float) -> bool:
        """Wait until the process watched has ended, which is True, or what is pending can be sent.
        Raises ClientGone."""
        self.poll.modify(1, select.POLLOUT if self.pending else 0)
        events = dict(self.poll.poll(seconds * 1000))
        if events.get(1, 0) & ~select.POLLOUT:
            raise ClientGone
        return self.pidfd in events

    def watch(self, pid: str) -> None:
        """Watch this process and no other, if the node can; "": none."""
        if pid == self.watched:
            return
        if self.pidfd >= 0:
            self.poll.unregister(self.pidfd)
            os.close(self.pidfd)
            self.pidfd = -1
        self.watched = pid
        try:
            self.pidfd = os.pidfd_open(int(pid))
            self.poll.register(self.pidfd, select.POLLIN)
        except (OSError, AttributeError, ValueError):  # AttributeError: before Python 3.9
            pass

    def notice(self) -> None:
        """Tell what is new of what the cloud has announced, the task's port and the disk."""
        found = []
        try:
            with open(self.folder + "/notice") as file:
                found.append("notice " + file.read().strip())
        except OSError:
            pass
        served = link(self.folder + "/served")
        if served:
            if served.startswith("never") and link(self.folder + "/elsewhere"):
                served = "elsewhere" + served[len("never") :]
            found.append("served " + served)
        disk = os.statvfs(self.folder)
        free = disk.f_bavail * disk.f_frsize >> 10
        if free < LOW:
            found.append("low " + str(free))
        for line in found:
            if line not in self.told:
                self.told.add(line)
                self.tell(line)

    def measure(self, pieces: int) -> None:
        """Tell the lines of the metrics that are whole, up to so many MiB."""
        while pieces:
            pieces -= 1
            try:
                with open(self.folder + "/metrics", "rb") as file:
                    file.seek(self.measured)
                    lines, end, _ = file.read(1 << 20).rpartition(b"\n")
            except OSError:
                return
            if not end:
                return
            self.measured += len(lines) + 1
            self.facts += [b"metrics " + line for line in lines.split(b"\n")]
            self.write_facts()

    def tell(self, fact: str) -> None:
        self.facts.append(fact.encode())

    def write_facts(self) -> None:
        text = b"".join(fact + b"\n" for fact in self.facts)
        self.facts = []
        while text:
            text = text[os.write(2, text) :]
