"""Uploads small files over many connections in one thread, which waits for none of them.

With a thread for each file, handing the interpreter on costs more CPU than the file. This thread
knows only how it goes well: a file whose connection breaks, or whose answer is no simple success,
is sent again `carefully`, by a thread that repeats it and has words for what is wrong.
"""

import collections
import hashlib
import json
import os
import select
import ssl
import threading
import time
import traceback
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cloudtrain.node import answers, client, web

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SMALL = 1 << 18
"""Bytes up to which a file is small: it is in memory while it is sent."""
IN_FLIGHT = 16 << 20
"""Bytes of files in memory."""
FEWEST, MOST = 16, 256
"""Connections at once."""
EACH, RATE = 0.0002, 200e6
"""What this thread takes for a file: seconds, and for its bytes one for so many. For each of those
that an answer takes it has a connection, and waits for none. S3 answers within 100 to 200 ms:
https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html"""
CONNECTING = 16
"""Connections that are opened at once."""
DOUBT = 8
"""Files that went wrong, if more than went well, after which all are sent carefully."""
LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def is_small(file: "dict[str, Any]") -> bool:
    try:
        return os.stat(client.plain(file["source"])).st_size <= SMALL
    except OSError:
        return False


def most(seconds: float, size: float = 0.0) -> int:
    """Connections at once, by the seconds until an answer and the files' size in bytes."""
    return max(FEWEST, min(MOST, round(seconds / (EACH + size / RATE))))


class Channel:
    """An open connection, and the file that is sent over it."""

    def __init__(self, target: "urllib.parse.SplitResult", sock: Any) -> None:
        self.target, self.sock = target, sock
        self.server = f"{target.scheme}://{target.netloc}"
        self.file = None  # type: dict[str, Any] | None
        self.source = -1
        self.before = (0, 0, 0, 0)
        self.part = None  # type: Any
        self.sha256 = ""
        self.left = memoryview(b"")
        self.came = b""
        self.begun = self.moved = 0.0  # `begun`: 0 for one that has sent nothing yet


class QuickUploads:
    """`carefully` takes a file to send in another thread. `told` is called with how many answers
    were given, `hope` with True if a file arrived; it returns False once everything is refused."""

    def __init__(
        self,
        over: web.Web,
        carefully: "Callable[[dict[str, Any]], object]",
        told: "Callable[[int], object]",
        hope: "Callable[[bool], bool]",
    ) -> None:
        self.web, self.carefully, self.told, self.hope = over, carefully, told, hope
        self.connectors = ThreadPoolExecutor(CONNECTING)
        self.due = collections.deque()  # type: collections.deque[dict[str, Any]]
        self.opened = collections.deque()  # type: collections.deque[Channel | None]
        self.free = []  # type: list[Channel]
        self.open = {}  # type: dict[int, Channel]
        self.connecting = self.busy = self.bytes = self.well = self.wrong = 0
        self.soonest = 0.0
        """Seconds until an answer, at least: more connections do not hasten a busy server."""
        self.answers = []  # type: list[dict[str, Any]]
        self.is_over = self.sleeps = False
        self.poll = select.epoll()
        self.woken, self.waking = os.pipe()
        os.set_blocking(self.woken, False)
        os.set_blocking(self.waking, False)
        self.poll.register(self.woken, select.EPOLLIN)
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def add(self, file: "dict[str, Any]") -> None:
        self.due.append(file)
        if self.sleeps:
            self.wake()

    def finish(self) -> None:
        """Wait for all files that are not sent carefully."""
        self.is_over = True
        self.wake()
        self.thread.join()

    def wake(self) -> None:
        self.sleeps = False
        try:
            os.write(self.waking, b"1")
        except BlockingIOError:
            pass  # it has enough to read

    def run(self) -> None:
        try:
            self.work()
        except BaseException:  # noqa: BLE001 - what is left goes another way
            traceback.print_exc()
            os._exit(1)

    def work(self) -> None:
        looked = time.monotonic()
        while not (self.is_over and not self.due and not self.busy):
            self.sleeps = True  # before the look at what is due: what comes later wakes this
            self.begin()
            self.tell()
            events = self.poll.poll(1.0)
            self.sleeps = False
            for number, _ in events:
                if number == self.woken:
                    os.read(self.woken, 1 << 16)
                elif number in self.open:
                    self.move(self.open[number])
            if time.monotonic() - looked > 1.0:
                looked = time.monotonic()
                for each in [each for each in self.open.values() if each.file]:
                    if looked - each.moved > web.ANSWER_SECONDS:
                        self.went_wrong(each)
        self.tell()

    def tell(self) -> None:
        if self.answers:
            given, self.answers = self.answers, []
            client.tell_lines("".join(json.dumps(each) + "\n" for each in given))
            self.told(len(given))

    # ── connections ──

    def connect(self, file: "dict[str, Any]") -> None:
        try:
            target = urllib.parse.urlsplit(str(file["requests"][0]["url"]))
            made = self.web.made_to(target)
            made.sock.setblocking(False)
            self.opened.append(Channel(target, made.sock))
        except Exception:  # noqa: BLE001 - the careful way finds the words for it
            self.opened.append(None)
        self.wake()

    def take_opened(self) -> None:
        while self.opened:
            self.connecting -= 1
            connection = self.opened.popleft()
            if connection is not None:
                number = connection.sock.fileno()
                self.open[number] = connection
                self.free.append(connection)
                events = select.EPOLLIN | select.EPOLLOUT | select.EPOLLET
                self.poll.register(number, events)
            elif self.due:  # which waits, tries again, or says why not
                self.carefully(self.due.popleft())

    def drop(self, connection: Channel) -> None:
        del self.open[connection.sock.fileno()]
        connection.sock.close()
        if connection in self.free:
            self.free.remove(connection)

    def begin(self) -> None:
        """Send files over free connections, and open more if there are not enough."""
        self.take_opened()
        while self.due and self.bytes < IN_FLIGHT:
            file = self.due[0]
            if not self.hope(False) or self.wrong > max(DOUBT, self.well):
                self.carefully(self.due.popleft())
                continue
            if not self.free:
                enough = most(self.soonest, self.bytes / max(1, self.busy))
                wanted = min(enough - len(self.open), len(self.due), CONNECTING)
                for _ in range(wanted - self.connecting):
                    self.connecting += 1
                    self.connectors.submit(self.connect, file)
                break
            connection = self.free.pop()
            self.due.popleft()
            if str(file["requests"][0]["url"]).startswith(connection.server + "/"):
                self.send(connection, file)
            else:  # one store is one server
                self.free.append(connection)
                self.carefully(file)
        for connection in [each for each in self.free if not each.begun]:
            self.drop(connection)  # a server may wait for what it sends, and serve nobody else

    # ── one file ──

    def send(self, connection: Channel, file: "dict[str, Any]") -> None:
        source = -1
        try:  # not to wait for a pipe that took a file's place
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            source = os.open(client.plain(file["source"]), flags)
            connection.before = web.stamp(source)
            size = connection.before[0]
            if size > SMALL:
                raise web.Changed
            data = b"".join(web.pieces(source, 0, size))
            md5 = hashlib.md5(data).digest()
            connection.sha256 = hashlib.sha256(data).hexdigest()
            part = web.Part(file["requests"][0], source, 0, size, md5, data)
            message = web.message(part, connection.target, part.url[len(connection.server) :])
        except Exception:  # noqa: BLE001 - the careful way finds the words for it
            if source >= 0:
                os.close(source)
            self.free.append(connection)
            self.carefully(file)
            return
        connection.file, connection.source, connection.part = file, source, part
        connection.left, connection.came = memoryview(message), b""
        connection.begun = connection.moved = time.monotonic()
        self.busy += 1
        self.bytes += size
        self.move(connection)

    def move(self, connection: Channel) -> None:
        """Send and receive as much as can be at once."""
        sock = connection.sock
        try:
            while connection.left:
                connection.left = connection.left[sock.send(connection.left) :]
                connection.moved = time.monotonic()
            while True:
                came = sock.recv(1 << 16)
                if not came or not connection.file:
                    break  # an answer that nobody asked for, as before the server hangs up
                connection.came += came
                answer = answers.simple(sock, connection.came)
                if answer is not None and len(answer.begun) == answer.length:
                    self.take(connection, answer)
                    return
                if len(connection.came) > answers.HEADERS:
                    break
                if answer is None and b"\r\n\r\n" in connection.came:
                    break
        except LATER:
            return
        except OSError:
            pass
        self.went_wrong(connection)

    def take(self, connection: Channel, answer: "answers.SimpleAnswer") -> None:
        part, file = connection.part, connection.file
        assert file is not None
        md5 = web.parsed(answer.begun).get("md5Hash") if answer.begun else None
        if md5 and part.stored and md5 != part.stored:
            self.went_wrong(connection)
            return
        waited = time.monotonic() - connection.begun
        self.soonest = min(self.soonest, waited) if self.well else waited
        size, md5 = part.length, part.md5.hex()
        etag = answer.getheader("ETag") or ""
        receipt = {"etag": etag, "block": part.block, "size": size, "md5": md5}
        told = {"n": file["n"], "size": size, "sha256": connection.sha256, "md5": md5}
        told["receipts"] = [receipt]
        if web.stamp(connection.source) != connection.before:
            told["why"] = "changed"
        self.answers.append(told)
        self.well += 1
        self.hope(True)
        self.leave(connection)
        if answer.will_close:
            self.drop(connection)
        else:
            self.free.append(connection)

    def leave(self, connection: Channel) -> None:
        os.close(connection.source)
        self.busy -= 1
        self.bytes -= connection.part.length
        connection.file = connection.part = None
        connection.left = memoryview(b"")

    def went_wrong(self, connection: Channel) -> None:
        file = connection.file
        if file is not None:
            self.wrong += 1
            self.leave(connection)
            self.carefully(file)
        self.drop(connection)
