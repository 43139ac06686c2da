"""Stands before a real service: hands requests on, remembers them, and misbehaves as told."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass(kw_only=True)
class Call:
    """`by_node`: of a program without a User-Agent, as the sender on a node is."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def by_node(self) -> bool:
        return "user-agent" not in self.headers

    @property
    def is_block(self) -> bool:
        return "comp=block&" in self.path


Answer = tuple[int, dict[str, str], bytes]
RESET: Answer = (0, {}, b"")
"""The connection breaks before the request is handed on."""


@dataclass
class Between:
    """`meddle` may change the call; what it returns is the answer in the service's place."""

    url: str = ""
    calls: list[Call] = field(default_factory=list)
    meddle: Callable[[Call], Answer | None] = lambda call: None
    retouch: Callable[[Call, dict[str, str]], None] = lambda call, headers: None
    """May change the headers of the service's answer."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def by_nodes(self) -> list[Call]:
        return [call for call in self.calls if call.by_node]


def refusal(status: int, code: str, **headers: str) -> Answer:
    """As Azure words it."""
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>Said so.</Message></Error>"
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    told |= {"x-ms-error-code": code, "Content-Type": "application/xml"}
    return status, told, text.encode()


@contextmanager
def between(url: str) -> Iterator[Between]:
    target = urlsplit(url)
    told = Between()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handed_on(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            headers = {name.lower(): value for name, value in self.headers.items()}
            call = Call(
                method=self.command,
                path=self.path,
                headers=headers,
                body=self.rfile.read(length),
            )
            with told.lock:
                told.calls.append(call)
            answer = told.meddle(call)
            if answer is RESET:
                self.close_connection = True
                self.connection.close()
                return
            self.give(call, *(answer or self.asked(call)))

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handed_on

        def asked(self, call: Call) -> Answer:
            assert target.hostname is not None
            service = http.client.HTTPConnection(target.hostname, target.port, timeout=60)
            with_body = call.headers | {"content-length": str(len(call.body))}
            service.request(call.method, call.path, call.body, with_body)
            answer = service.getresponse()
            body = answer.read()
            service.close()
            headers = dict(answer.getheaders())
            told.retouch(call, headers)
            return answer.status, headers, body

        def give(self, call: Call, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in ("transfer-encoding", "connection", "keep-alive"):
                    is_length = name.lower() == "content-length"
                    if not is_length or call.method == "HEAD":
                        self.send_header(name, value)
            if call.method != "HEAD":
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if call.method != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *_: object) -> None:
            """Who is killed hangs up."""

    server = Server(("127.0.0.1", 0), Handler)
    told.url = f"http://127.0.0.1:{server.server_address[1]}{target.path}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()
