"""Uploads files with presigned requests.

Reads JSON lines: an order, then one per file; prints a JSON line for each file when it is done. It
knows no store: requests are made, and signed, elsewhere. They stay in its memory. It ends at once
when its client is gone, or a later uploader starts: a late upload would overwrite newer files.
"""

import base64
import collections.abc
import contextlib
import fcntl
import hashlib
import http.client
import json
import os
import random
import signal
import socket
import ssl
import sys
import threading
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor, wait

from cloudtrain.node import client

PIECE = 1 << 20
IN_MEMORY = 1 << 20
TRIES = 6
CONNECT_SECONDS = 10
ANSWER_SECONDS = 100
AT_ONCE = 16
MOST_WORDS = 1 << 16
"""Bytes of an answer that are read."""
MISSES = 3
"""Connections that fail, with none successful, before the service counts as unreachable."""
GIVE_UP = 2 * AT_ONCE
"""Files refused in a row after which the others are not tried."""
TRANSIENT = (408, 429, 500, 502, 503, 504)


def main() -> None:
    order = client.order()
    alone(client.plain(str(order["lock"])))
    os.chdir(client.plain(str(order["folder"])))
    uploader = Uploader()
    client.attend()
    room = threading.Semaphore(4 * AT_ONCE)
    pool = ThreadPoolExecutor(AT_ONCE)

    def work(line: bytes) -> None:
        try:
            client.tell(uploader.store(json.loads(line.decode())))
        finally:
            room.release()

    for line in sys.stdin.buffer:
        room.acquire()
        pool.submit(work, line)
    pool.shutdown()


def alone(path: bytes) -> None:
    """Hold the file's lock while this process lives; another holder is killed.

    The pid in the file may be stale just after a takeover: kill only if two reads agree.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    seen = b""
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            holder = os.pread(lock, 20, 0)
            if holder and holder == seen:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(holder), signal.SIGKILL)
            seen = holder
            time.sleep(0.05)
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)


class Changed(Exception):
    """The file became shorter while it was read."""


class Refused(Exception):
    """The service refuses the request, in its own words."""


class Unreachable(Exception):
    """No connection from here to the service."""


class Transient(Exception):
    """A failure worth a retry, after `after` seconds if the service asks for that."""

    def __init__(self, text: str, after: float = 0.0) -> None:
        super().__init__(text)
        self.after = after


class Uploader:
    def __init__(self) -> None:
        self.web = Web()
        self.parts = ThreadPoolExecutor(AT_ONCE)
        self.refusals = 0
        self.refusal = ""

    def store(self, file: "dict[str, object]") -> "dict[str, object]":
        """Upload one file; returns its digests and receipts, or the reason of the failure."""
        told = {"n": file["n"]}  # type: dict[str, object]
        if self.refusals >= GIVE_UP:
            return dict(told, why="refused", text=self.refusal)
        try:
            with open(client.plain(str(file["source"])), "rb", buffering=0) as source:
                before = stamp(source.fileno())
                told.update(self.sent(file, source.fileno(), before[0]))
                if stamp(source.fileno()) != before or told["size"] != before[0]:
                    told["why"] = "changed"
            self.refusals = 0
        except Changed:
            told.update(why="changed")
        except Refused as error:
            self.refusals += 1
            self.refusal = str(error)
            told.update(why="refused", text=self.refusal)
        except Unreachable as error:
            told.update(why="unreachable", text=str(error))
        except OSError as error:
            told.update(why="unread", text=str(error))
        return told

    def sent(self, file: "dict[str, object]", source: int, size: int) -> "dict[str, object]":
        requests = file["requests"]
        assert isinstance(requests, list)
        if file["piece"]:
            return self.resumable(requests[0], source, size, int(str(file["piece"])))
        had = frozenset(file["had"])  # type: ignore[call-overload]
        whole = hashlib.sha256()
        parts = []
        done = 0
        try:
            for request in requests:
                length = size - done if request["length"] is None else request["length"]
                part = read(request, source, done, length, whole)
                done += length
                parts.append(self.parts.submit(self.part, part, had))
            receipts = [each.result() for each in parts]
        finally:
            for each in parts:
                each.cancel()
            wait(parts)  # they read a file that is closed next
        return {
            "size": done,
            "sha256": whole.hexdigest(),
            "md5": receipts[0]["md5"] if len(receipts) == 1 else "",
            "receipts": receipts,
        }

    def part(self, part: "Part", had: "collections.abc.Set[str]") -> "dict[str, object]":
        receipt = {
            "etag": "",
            "block": part.block,
            "size": part.length,
            "md5": part.md5.hex(),
        }  # type: dict[str, object]
        if part.block in had:
            return receipt
        answer = patiently(lambda: self.web.send(part))
        receipt["etag"] = answer.getheader("ETag") or ""
        return receipt

    def resumable(
        self, request: "dict[str, object]", source: int, size: int, piece: int
    ) -> "dict[str, object]":
        """https://cloud.google.com/storage/docs/performing-resumable-uploads"""
        whole, md5 = hashlib.sha256(), hashlib.md5()
        hashed = at = idle = 0
        while idle < TRIES:
            length = min(piece, size - at)
            last = at + length == size
            for data in pieces(source, hashed, at + length - hashed):
                whole.update(data)
                md5.update(data)
            hashed = max(hashed, at + length)
            headers = {"Content-Range": content_range(at, length, size)}
            part = Part(request, source, at, length, headers=headers)
            if last:
                part.stored = base64.b64encode(md5.digest()).decode()
                part.headers["X-Goog-Hash"] = "md5=" + part.stored
            answer = self.piece(part, size)
            if answer.status != 308:
                break
            came = persisted(answer, size)
            idle = idle + 1 if came <= at else 0
            at = came
        else:
            raise Refused(f"the service keeps only {at} of {size} bytes")
        if not last:  # it took the question how far it came for the end
            raise Refused(f"the service ended the object after {at} of {size} bytes, or fewer")
        receipt = {"etag": "", "block": "", "size": size, "md5": md5.hexdigest()}
        return {
            "size": size,
            "sha256": whole.hexdigest(),
            "md5": md5.hexdigest(),
            "receipts": [receipt],
        }

    def piece(self, part: "Part", size: int) -> "http.client.HTTPResponse":
        """Send a piece; if the connection breaks, ask the service how far it came."""
        whole = {"Content-Range": f"bytes */{size}"}
        asked = Part(part.request, part.source, 0, 0, headers=whole)
        asked.stored = part.stored
        sent = []  # type: list[bool]

        def once() -> "http.client.HTTPResponse":
            if not sent:
                sent.append(True)
                return self.web.send(part)
            answer = self.web.send(asked)
            if answer.status == 308 and persisted(answer, size) == part.offset:
                return self.web.send(part)
            return answer

        return patiently(once)


def stamp(file: int) -> "tuple[int, int, int, int]":
    facts = os.fstat(file)
    return (facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)


class Unfiled:
    """Bytes that are uploaded as if they were a file."""

    def pread(self, length: int, offset: int) -> bytes:
        raise NotImplementedError


def pieces(file: "int | Unfiled", offset: int, length: int) -> "collections.abc.Iterator[bytes]":
    """Read the file in pieces. Raises Changed if it has become shorter."""
    end = offset + length
    while offset < end:
        wanted = min(PIECE, end - offset)
        if isinstance(file, int):
            data = os.pread(file, wanted, offset)
        else:
            data = file.pread(wanted, offset)
        if not data:
            raise Changed
        offset += len(data)
        yield data


def content_range(at: int, length: int, size: int) -> str:
    return f"bytes {at}-{at + length - 1}/{size}" if length else f"bytes */{size}"


def persisted(answer: "http.client.HTTPResponse", size: int) -> int:
    """Bytes that the service has; it continues at a multiple of 256 KiB. No Range: none yet."""
    told = answer.getheader("Range") or ""
    end = min(size, int(told.rpartition("-")[2]) + 1) if told else 0
    return end if end == size else end - end % (1 << 18)


class Part:
    """One request with the bytes that it sends."""

    def __init__(
        self,
        request: "dict[str, object]",
        source: "int | Unfiled",
        offset: int,
        length: int,
        md5: bytes = b"",
        kept: bytes = b"",
        headers: "dict[str, str]" = {},  # noqa: B006 - never changed
    ) -> None:
        self.request = request
        self.source = source
        self.offset = offset
        self.length = length
        self.md5 = md5
        self.kept = kept
        self.block = base64.b64encode(f"{offset:016d}{md5.hex()}".encode()).decode()
        self.method = str(request["method"])
        url = str(request["url"]).replace("{md5}", urllib.parse.quote(self.md5_64, safe=""))
        self.url = url.replace("{block}", urllib.parse.quote(self.block, safe=""))
        self.before = str(request["before"]).replace("{md5}", self.md5_64).encode()
        self.after = str(request["after"]).encode()
        self.stored = self.md5_64 if self.before else ""
        own = request["headers"]
        assert isinstance(own, dict)
        self.headers = dict(own, **headers)
        if md5 and not self.before:
            self.headers["Content-MD5"] = self.md5_64

    @property
    def md5_64(self) -> str:
        return base64.b64encode(self.md5).decode()


def read(
    request: "dict[str, object]", source: int, offset: int, length: int, whole: "hashlib._Hash"
) -> Part:
    """The part with its MD5, and its bytes if they are few; also updates the digest `whole`."""
    md5 = hashlib.md5()
    kept = b""
    for piece in pieces(source, offset, length):
        whole.update(piece)
        md5.update(piece)
        if length <= IN_MEMORY:
            kept += piece
    return Part(request, source, offset, length, md5.digest(), kept)


def patiently(
    once: "collections.abc.Callable[[], http.client.HTTPResponse]",
) -> "http.client.HTTPResponse":
    """Retry a request, which always puts the same bytes in the same place."""
    for number in range(TRIES):
        try:
            return once()
        except Transient as error:
            if number == TRIES - 1:
                raise Refused(str(error)) from None
            time.sleep(min(60.0, max(error.after, random.uniform(0.5, 1.0) * 2**number / 2)))
    raise AssertionError("the last try returns or raises")


class Web:
    """One connection for each thread and server, kept open."""

    def __init__(self) -> None:
        self.open = threading.local()
        self.unreachable = {}  # type: dict[str, str]
        self.reached = set()  # type: set[str]
        self.misses = 0
        self.connecting = 0
        self.tls = None  # type: ssl.SSLContext | None
        self.lock = threading.Lock()

    def send(self, part: Part) -> "http.client.HTTPResponse":
        """Send a part; returns a positive answer (2xx, 308 to a Content-Range). Raises Refused,
        Unreachable, Transient and Changed.
        """
        target = urllib.parse.urlsplit(part.url)
        place = f"{target.scheme}://{target.netloc}"
        connection, is_new = self.connection(place, target)
        path = target.path + ("?" + target.query if target.query else "")
        is_piece = "Content-Range" in part.headers
        keep = False
        try:
            answer = exchange(connection, part, path)
            body = answer.read(MOST_WORDS)
            if answer.length and len(body) < MOST_WORDS:
                raise http.client.IncompleteRead(body, answer.length)
            keep = answer.isclosed() and not answer.will_close
        except (OSError, http.client.HTTPException) as error:
            # The server may have closed a kept connection meanwhile: not an error.
            if is_new or is_piece:
                raise Transient(f"{target.netloc}: {error or type(error).__name__}") from None
            self.forget(place, connection)
            return self.send(part)
        finally:
            if not keep:
                self.forget(place, connection)
        if answer.status in TRANSIENT:
            raise Transient(words(answer, body, part), seconds(answer))
        if 200 <= answer.status < 300:
            told = parsed(body).get("md5Hash")
            if told and part.stored and told != part.stored:
                raise Refused("the service stored other bytes than were sent")
            return answer
        if answer.status == 308 and is_piece:
            return answer
        raise Refused(words(answer, body, part))

    def forget(self, place: str, connection: "http.client.HTTPConnection") -> None:
        connection.close()
        if self.open.__dict__.get(place) is connection:
            del self.open.__dict__[place]

    def connection(
        self, place: str, target: "urllib.parse.SplitResult"
    ) -> "tuple[http.client.HTTPConnection, bool]":
        kept = self.open.__dict__.get(place)
        if kept is not None:
            return kept, False
        if place in self.unreachable and place not in self.reached:
            raise Unreachable(self.unreachable[place])
        host = target.hostname or ""
        made = self.made(target.scheme, host, target.port)
        with self.lock:
            self.connecting += 1
        try:
            made.connect()
            made.sock.settimeout(ANSWER_SECONDS)
            made.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, ssl.CertificateError) as error:
            made.close()
            with self.lock:
                self.connecting -= 1
                self.misses += 1
                is_hope = self.misses < MISSES or self.connecting > 0
            text = f"{target.netloc}: {error or type(error).__name__}"
            is_stranger = isinstance(error, ssl.CertificateError)
            if place in self.reached or (is_hope and not is_stranger):
                raise Transient(text) from None
            self.unreachable[place] = text
            raise Unreachable(text) from None
        self.reached.add(place)
        with self.lock:
            self.connecting -= 1
        self.open.__dict__[place] = made
        return made, True

    def made(self, scheme: str, host: str, port: "int | None") -> "http.client.HTTPConnection":
        if scheme != "https":
            return http.client.HTTPConnection(host, port, timeout=CONNECT_SECONDS)
        with self.lock:  # the machine's certificates are read once
            self.tls = self.tls or ssl.create_default_context()
        return http.client.HTTPSConnection(host, port, timeout=CONNECT_SECONDS, context=self.tls)


def exchange(
    connection: "http.client.HTTPConnection", part: Part, path: str
) -> "http.client.HTTPResponse":
    length = len(part.before) + part.length + len(part.after)
    connection.putrequest(part.method, path, skip_accept_encoding=True)
    for name, value in dict(part.headers, **{"Content-Length": str(length)}).items():
        connection.putheader(name, value)
    try:
        connection.endheaders(part.before + part.kept)
        for piece in () if part.kept else pieces(part.source, part.offset, part.length):
            connection.send(piece)
        if part.after:
            connection.send(part.after)
    except (BrokenPipeError, ConnectionResetError):
        pass  # a service that refuses may answer before it has read everything
    return connection.getresponse()


def parsed(body: bytes) -> "dict[str, object]":
    """Parse the answer of a Google service; empty for others."""
    try:
        told = json.loads(body.decode())
    except ValueError:
        told = None
    return told if isinstance(told, dict) else {}


def words(answer: "http.client.HTTPResponse", body: bytes, part: Part) -> str:
    """The answer's text, without the request's secrets, which some proxies repeat."""
    error = parsed(body).get("error")
    told = error.get("message") if isinstance(error, dict) else None
    text = str(told or body[:2000].decode("utf-8", "replace"))
    query = urllib.parse.urlsplit(part.url).query
    for value in [*dict(urllib.parse.parse_qsl(query)).values(), *part.headers.values()]:
        if len(value) >= 16:
            text = text.replace(value, "***").replace(urllib.parse.quote(value, safe=""), "***")
    return f"{answer.status} {answer.reason}: {text[:500]}"


def seconds(answer: "http.client.HTTPResponse") -> float:
    told = answer.getheader("Retry-After") or ""
    return float(told) if told.isdigit() else 0.0
