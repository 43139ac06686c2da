"""A server of objects as stores serve them: Range, ETag, If-Match, signatures that expire."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit


@dataclass
class DataServer:
    """`fault(number, path)` of the n-th request (from 1): a status, `half`, `wait`."""

    port: int = 0
    objects: dict[str, bytes] = field(default_factory=dict)
    seen: list[tuple[str, str]] = field(default_factory=list)
    """Path and Range of each request."""
    fault: Callable[[int, str], int | str | None] = lambda number, path: None
    gate: threading.Event = field(default_factory=threading.Event)
    arrive: Callable[[str, str], None] = lambda signature, part: None
    """Called with the signature and the Range of each request; it may wait."""
    ranges: bool = True
    partial: int = 206
    """Status of an answer with a range."""
    signature: str = ""
    """The only one that is accepted, if set."""
    sent: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def url(self, path: str) -> str:
        name = quote(path, errors="surrogateescape")
        return f"http://127.0.0.1:{self.port}/{name}?signature="

    def paths(self) -> list[str]:
        return [path for path, _ in self.seen]


@cache
def etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


@contextmanager
def data_server() -> Iterator[DataServer]:
    told = DataServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            path = unquote(parts.path[1:], errors="surrogateescape")
            with told.lock:
                told.seen.append((path, self.headers["Range"] or ""))
                fault = told.fault(len(told.seen), path)
            data = told.objects.get(path)
            signature = parse_qs(parts.query).get("signature", [""])[0]
            told.arrive(signature, self.headers["Range"] or "")
            if told.signature and signature != told.signature:
                self.answer(403)
            elif isinstance(fault, int) or data is None:
                self.answer(fault if isinstance(fault, int) else 404)
            elif self.headers["If-Match"] not in (None, etag(data)):
                self.answer(412)
            else:
                self.give(data, fault)

        def give(self, data: bytes, fault: str | None) -> None:
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"] or "")
            start, end = 0, len(data)
            if asked and told.ranges:
                start, end = int(asked[1]), int(asked[2]) + 1
                self.send_response(told.partial)
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(end - start))
            self.send_header("ETag", etag(data))
            self.end_headers()
            with suppress(OSError):
                if fault in ("half", "wait"):
                    middle = start + (end - start) // 2
                    self.wfile.write(data[start:middle])
                    start = middle
                if fault == "wait":
                    told.gate.wait(250)
                if fault == "half":
                    self.close_connection = True
                    return
                self.wfile.write(memoryview(data)[start:end])
                with told.lock:
                    told.sent += end - start

        def answer(self, status: int) -> None:
            body = b"refused: " + self.path.encode()
            with suppress(OSError):
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 256
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    told.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield told
    finally:
        told.gate.set()
        server.shutdown()
        server.server_close()
