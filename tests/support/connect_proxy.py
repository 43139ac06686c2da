"""An office's HTTP proxy: the only way to the names that it knows, and it notes who used it."""

from __future__ import annotations

import select
import socket
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit


class _Handler(socketserver.StreamRequestHandler):
    """CONNECT for https, and requests with a whole URL for http (RFC 9110, 9.3.6)."""

    server: ConnectProxy
    rbufsize = 0
    """What follows the request's head is carried on, and so must not be read ahead."""

    def handle(self) -> None:
        line = self.rfile.readline().decode("latin-1")
        method, _, rest = line.partition(" ")
        target, _, version = rest.partition(" ")
        headers = b"".join(iter(self.rfile.readline, b"\r\n"))
        if not method:
            return
        tunnel = method == "CONNECT"
        place = target if tunnel else urlsplit(target).netloc
        place = place if ":" in place else f"{place}:80"
        self.server.calls.append(f"{method} {place}")
        upstream = self.server.upstream(place)
        if upstream is None:
            self.wfile.write(b"HTTP/1.1 403 Not of this office\r\nContent-Length: 0\r\n\r\n")
            return
        with socket.create_connection(upstream) as other:
            if tunnel:
                self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                parts = urlsplit(target)
                path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
                other.sendall(f"{method} {path} {version}".encode("latin-1"))
                other.sendall(b"Connection: close\r\n" + headers + b"\r\n")
            self._carry(other)

    def _carry(self, other: socket.socket) -> None:
        ends = {self.connection: other, other: self.connection}
        while True:
            for end in select.select(list(ends), [], [], 60)[0]:
                try:
                    data = end.recv(1 << 16)
                    if data:
                        ends[end].sendall(data)
                        continue
                except OSError:
                    pass
                return


class ConnectProxy(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, names: Mapping[str, tuple[str, int]], *, open: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.names = dict(names)
        """`host:port` → where it really is: nothing else can resolve these names."""
        self.open = open
        """Any other place is reached as it is named; otherwise it is refused."""
        self.calls: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def upstream(self, place: str) -> tuple[str, int] | None:
        host, _, port = place.rpartition(":")
        return self.names.get(place) or ((host, int(port)) if self.open else None)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no news."""


@contextmanager
def connect_proxy(
    names: Mapping[str, tuple[str, int]] | None = None, *, open: bool = False
) -> Iterator[ConnectProxy]:
    with ConnectProxy(names or {}, open=open) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
