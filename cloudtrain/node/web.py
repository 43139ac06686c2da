"""Makes presigned HTTP requests, each with the bytes that it sends, over connections kept open."""

import base64
import collections.abc
import http.client
import ipaddress
import json
import os
import random
import re
import socket
import ssl
import threading
import time
import urllib.parse
from typing import Any

from cloudtrain.node import answers

PIECE = 1 << 20
TRIES = 6
PAUSE = 0.5
"""Seconds before the second try, at most; doubled before each further one."""
CONNECT_SECONDS = 10
ANSWER_SECONDS = 100
MOST_WORDS = 1 << 16
"""Maximum bytes read of an answer."""
MISSES = 3
"""Failed connections, with none successful, after which the service counts as unreachable."""
TRANSIENT = (408, 429, 500, 502, 503, 504)


class Changed(Exception):
    """The file became shorter while it was read."""


class Refused(Exception):
    """The service refuses the request, in its own words."""


class Unreachable(Exception):
    """The service cannot be reached from this node."""


class Transient(Exception):
    """A failure worth a retry, after `after` seconds if the service asks for that."""

    def __init__(self, text: str, after: float = 0.0) -> None:
        super().__init__(text)
        self.after = after


def pieces(file: Any, offset: int, length: int) -> "collections.abc.Iterator[bytes]":
    """Read a file, or what has its `pread`, in pieces. Raises Changed if it became shorter."""
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


class Part:
    """One request with the bytes that it sends."""

    def __init__(
        self,
        request: "dict[str, Any]",
        source: Any,
        offset: int,
        length: int,
        md5: bytes = b"",
        kept: bytes = b"",
        headers: "dict[str, str]" = {},  # noqa: B006 - never changed
    ) -> None:
        self.request, self.source = request, source
        self.offset, self.length = offset, length
        self.md5, self.kept = md5, kept
        self.block = base64.b64encode(f"{offset:016d}{md5.hex()}".encode()).decode()
        self.method = str(request["method"])
        self.url = str(request["url"])
        if "{" in self.url:
            url = self.url.replace("{md5}", urllib.parse.quote(self.md5_64, safe=""))
            self.url = url.replace("{block}", urllib.parse.quote(self.block, safe=""))
        self.before = str(request["before"]).replace("{md5}", self.md5_64).encode()
        self.after = str(request["after"]).encode()
        self.stored = self.md5_64 if self.before else ""
        self.headers = dict(request["headers"], **headers)
        if md5 and not self.before:
            self.headers["Content-MD5"] = self.md5_64

    @property
    def md5_64(self) -> str:
        return base64.b64encode(self.md5).decode()


def patiently(
    once: "collections.abc.Callable[[], answers.Answer]",
) -> "answers.Answer":
    """Send a request with retries, which are safe: it always writes the same bytes to one place."""
    for number in range(TRIES):
        try:
            return once()
        except Transient as error:
            if number == TRIES - 1:
                raise Refused(str(error)) from None
            pause(number, error.after)
    raise AssertionError("the last try returns or raises")


def pause(tries: int, least: float) -> None:
    """Before another try, which the service may have asked to be later."""
    time.sleep(min(60.0, max(least, random.uniform(0.5, 1.0) * PAUSE * 2**tries)))


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

    def send(self, part: Part) -> "answers.Answer":
        """Send a part; returns a 2xx, or 308 to a Content-Range. Raises the errors above."""
        target = urllib.parse.urlsplit(part.url)
        server = f"{target.scheme}://{target.netloc}"
        connection, is_new = self.connection(server, target)
        path = path_of(target)
        is_piece = "Content-Range" in part.headers
        keep = False
        try:
            answer = exchange(connection, part, target, path)
            body = answer.read(MOST_WORDS)
            if answer.length and len(body) < MOST_WORDS:
                raise http.client.IncompleteRead(body, answer.length)
            keep = answer.isclosed() and not answer.will_close
        except (OSError, http.client.HTTPException) as error:
            # The server may have closed a kept connection meanwhile: not an error.
            if is_new or is_piece:
                raise Transient(f"{target.netloc}: {error or type(error).__name__}") from None
            self.forget(server, connection)
            return self.send(part)
        finally:
            if not keep:
                self.forget(server, connection)
        if answer.status in TRANSIENT:
            raise Transient(words(answer, body, part), seconds(answer))
        if 200 <= answer.status < 300:
            md5 = parsed(body).get("md5Hash")
            if md5 and part.stored and md5 != part.stored:
                raise Refused("the service stored other bytes than were sent")
            return answer
        if answer.status == 308 and is_piece:
            return answer
        raise Refused(words(answer, body, part))

    def in_pieces(
        self,
        request: "dict[str, Any]",
        source: Any,
        size: int,
        piece: int,
        before: "collections.abc.Callable[[Part], None]" = lambda part: None,
    ) -> None:
        """Send a resumable upload; `before` is called with each piece before it is sent.
        https://cloud.google.com/storage/docs/performing-resumable-uploads"""
        at = idle = 0
        while idle < TRIES:
            length = min(piece, size - at)
            span = f"{at}-{at + length - 1}" if length else "*"
            headers = {"Content-Range": f"bytes {span}/{size}"}
            part = Part(request, source, at, length, headers=headers)
            before(part)
            answer = self.one_piece(part, size)
            if answer.status != 308:
                if at + length < size:  # it took the question how far it came for the end
                    text = f"the service ended the object after {at} of {size} bytes, or fewer"
                    raise Refused(text)
                return
            came = persisted(answer, size)
            idle = idle + 1 if came <= at else 0
            at = came
        raise Refused(f"the service keeps only {at} of {size} bytes")

    def one_piece(self, part: Part, size: int) -> "answers.Answer":
        """Send a piece; if the connection breaks, ask the service how many bytes it received."""
        whole = {"Content-Range": f"bytes */{size}"}
        question = Part(part.request, part.source, 0, 0, headers=whole)
        question.stored = part.stored
        sent = []  # type: list[bool]

        def once() -> "answers.Answer":
            if not sent:
                sent.append(True)
                return self.send(part)
            answer = self.send(question)
            if answer.status == 308 and persisted(answer, size) == part.offset:
                return self.send(part)
            return answer

        return patiently(once)

    def forget(self, server: str, connection: "http.client.HTTPConnection") -> None:
        connection.close()
        if self.open.__dict__.get(server) is connection:
            del self.open.__dict__[server]

    def connection(
        self, server: str, target: "urllib.parse.SplitResult"
    ) -> "tuple[http.client.HTTPConnection, bool]":
        kept = self.open.__dict__.get(server)
        if kept is not None:
            return kept, False
        self.open.__dict__[server] = made = self.made_to(target)
        return made, True

    def made_to(self, target: "urllib.parse.SplitResult") -> "http.client.HTTPConnection":
        """A new connection. Raises Transient, Unreachable."""
        server = f"{target.scheme}://{target.netloc}"
        if server in self.unreachable and server not in self.reached:
            raise Unreachable(self.unreachable[server])
        made = self.made(target.scheme, target.hostname or "", target.port)
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
            if server in self.reached or (is_hope and not is_stranger):
                raise Transient(text) from None
            self.unreachable[server] = text
            raise Unreachable(text) from None
        self.reached.add(server)
        with self.lock:
            self.connecting -= 1
        return made

    def made(self, scheme: str, host: str, port: "int | None") -> "http.client.HTTPConnection":
        if scheme != "https":
            return http.client.HTTPConnection(host, port, timeout=CONNECT_SECONDS)
        with self.lock:  # the machine's certificates are read once
            self.tls = self.tls or ssl.create_default_context()
        proxy = proxy_for(host)
        first, at = proxy or (host, port)
        made = http.client.HTTPSConnection(first, at, timeout=CONNECT_SECONDS, context=self.tls)
        if proxy is not None:
            made.set_tunnel(host, port or 443)
        return made


def persisted(answer: "answers.Answer", size: int) -> int:
    """The number of bytes that the service has stored, rounded down to a multiple of 256 KiB
    unless complete. Without a Range header, it has stored none yet."""
    header = answer.getheader("Range") or ""
    end = min(size, int(header.rpartition("-")[2]) + 1) if header else 0
    return end if end == size else end - end % (1 << 18)


def proxy_for(host: str) -> "tuple[str, int] | None":
    """Host and port of the proxy for https to this host, by the variables that curl and pip
    read too; None to go there directly."""
    given = os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY") or ""
    proxy = urllib.parse.urlsplit(given)
    if not proxy.hostname:
        return None
    direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    names = [name.strip().lower().lstrip(".") for name in direct.split(",")]
    host = host.lower()
    if any(name and (name == "*" or host == name or host.endswith("." + name)) for name in names):
        return None
    if any(within(host, name) for name in names if "/" in name):
        return None
    return proxy.hostname, proxy.port or 80


def within(host: str, name: str) -> bool:
    """True for an address in a range such as 10.0.0.0/8."""
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False)
    except ValueError:
        return False


def exchange(
    connection: "http.client.HTTPConnection",
    part: Part,
    target: "urllib.parse.SplitResult",
    path: str,
) -> "answers.Answer":
    first, sock = head(part, target, path), connection.sock
    try:
        if part.kept or not part.length:
            sock.sendall(first + part.before + part.kept + part.after)
        else:
            sock.sendall(first + part.before)
            for piece in pieces(part.source, part.offset, part.length):
                sock.sendall(piece)
            if part.after:
                sock.sendall(part.after)
    except (BrokenPipeError, ConnectionResetError):
        pass  # a service that refuses may answer before it has read everything
    return answers.read(sock)


def head(part: Part, target: "urllib.parse.SplitResult", path: str) -> bytes:
    length = len(part.before) + part.length + len(part.after)
    headers = dict(part.headers, **{"Content-Length": str(length)})
    return answers.head(part.method, target, path, headers)


def path_of(target: "urllib.parse.SplitResult") -> str:
    return (target.path or "/") + ("?" + target.query if target.query else "")


def message(part: Part, target: "urllib.parse.SplitResult", path: str) -> bytes:
    """The whole request, of a part whose bytes are in memory."""
    return b"".join((head(part, target, path), part.before, part.kept, part.after))


def stamp(file: int) -> "tuple[int, int, int, int]":
    facts = os.fstat(file)
    return (facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)


def parsed(body: bytes) -> "dict[str, Any]":
    """Parse the answer of a Google service; empty for others."""
    try:
        document = json.loads(body.decode())
    except ValueError:
        document = None
    return document if isinstance(document, dict) else {}


def words(answer: "answers.Answer", body: bytes, part: Part) -> str:
    """The answer's text, without the request's secrets, which some proxies repeat."""
    error = parsed(body).get("error")
    message = error.get("message") if isinstance(error, dict) else None
    text = str(message or body[:2000].decode("utf-8", "replace"))
    query = urllib.parse.urlsplit(part.url).query
    for value in [*dict(urllib.parse.parse_qsl(query)).values(), *part.headers.values()]:
        if len(value) >= 16:
            text = text.replace(value, "***").replace(urllib.parse.quote(value, safe=""), "***")
    return f"{answer.status} {answer.reason}: {text[:500]}"


def reason(error: Exception) -> str:
    """The text of an error without the parts of the request that a response may repeat."""
    text = str(error) or type(error).__name__
    status = re.match(r"\d{3} [^:\n]*", text)
    code = re.search(r"<Code>(\w+)</Code>", text)
    if status:
        return status.group() + (" " + code.group(1) if code else "")
    return re.sub(r"\?\S*", "", text.splitlines()[0])


def seconds(answer: "answers.Answer") -> float:
    header = answer.getheader("Retry-After") or ""
    return float(header) if header.isdigit() else 0.0
