"""A service that nodes store files in by PUT, which checks Content-MD5 and misbehaves as told."""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote

from cloudtrain.core.presign import PresignedRequest, PresignedUpload, Presigner, UploadedPart
from cloudtrain.core.shell import Secret
from cloudtrain.stores.file import FileStore

PART = 1 << 20


@dataclass
class Service:
    """`fault(number, path)` of the n-th request (from 1): a status, `reset`, `half`, `slow`."""

    port: int = 0
    objects: dict[str, bytes] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    fault: Callable[[int, str], int | str | None] = lambda number, path: None
    gate: threading.Event = field(default_factory=threading.Event)
    connections: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def service() -> Iterator[Service]:
    told = Service()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            told.connections += 1
            super().setup()

        def do_GET(self) -> None:
            """With Range; `fault` is asked of it as `GET <path>`."""
            path = unquote(self.path)
            with told.lock:
                told.seen.append(f"GET {path}")
                fault = told.fault(len(told.seen), f"GET {path}")
            data = told.objects.get(path)
            if isinstance(fault, int) or data is None:
                self.answer(fault if isinstance(fault, int) else 404, close=True)
                return
            start = int((self.headers["Range"] or "bytes=0-")[6:-1])
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            if fault == "half":
                self.wfile.write(data[start : start + (len(data) - start) // 2])
                self.connection.close()
                self.close_connection = True
                return
            if fault == "slow":
                told.gate.wait(60)
            with suppress(OSError):
                self.wfile.write(data[start:])

        def do_PUT(self) -> None:
            path = unquote(self.path)
            with told.lock:
                told.seen.append(path)
                fault = told.fault(len(told.seen), path)
            if fault == "reset":
                self.connection.close()
                self.close_connection = True
                return
            if isinstance(fault, int):  # said before the body is heard, then hung up
                self.answer(fault, close=True)
                return
            length = int(self.headers["Content-Length"])
            if fault == "half":
                self.rfile.read(length // 2)
                self.connection.close()
                self.close_connection = True
                return
            data = self.rfile.read(length)
            if fault == "slow":
                told.gate.wait(60)
            wanted = self.headers["Content-MD5"]
            if fault == "corrupt":
                data = data[:-1] + bytes([data[-1] ^ 1])
            if wanted and base64.b64encode(hashlib.md5(data).digest()).decode() != wanted:
                self.answer(400)
                return
            told.objects[path] = data
            self.answer(200)

        def answer(self, status: int, *, close: bool = False) -> None:
            with suppress(OSError):
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.send_header("ETag", '"tag"')
                if close:
                    self.send_header("Connection", "close")
                self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    told.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield told
    finally:
        told.gate.set()
        server.shutdown()
        server.server_close()


class WebStore(FileStore):
    """What this machine sees is a folder; what nodes send by PUT appears there on `complete`, or at
    once where it is one request."""

    def __init__(self, folder: Path, told: Service, *, parts: bool = False) -> None:
        super().__init__(folder.as_uri())
        self.presigner: Presigner | None = self
        self.told, self.parts = told, parts
        self.relayed: list[str] = []
        self.had: frozenset[str] = frozenset()
        self.address = f"http://127.0.0.1:{told.port}"

    def upload_all(self, files):  # type: ignore[no-untyped-def]
        self.relayed += files
        return super().upload_all(files)

    def sign_upload(
        self, path: str, size: int | None, *, expires_in: float
    ) -> PresignedUpload | None:
        url = f"{self.address}/{quote(path, errors='surrogateescape')}"
        if not self.parts or size is None or size <= PART:
            return PresignedUpload(path=path, requests=(PresignedRequest(url=Secret(url)),))
        requests = tuple(
            PresignedRequest(
                url=Secret(f"{url}?{{block}}"), offset=start, length=min(PART, size - start)
            )
            for start in range(0, size, PART)
        )
        return PresignedUpload(path=path, requests=requests, upload_id="1", uploaded=self.had)

    def sign_download(self, path: str, *, expires_in: float) -> None:
        """A folder of this machine is read by this machine."""

    def complete(self, upload: PresignedUpload, parts: Sequence[UploadedPart]) -> str:
        pieces = [self.told.objects[f"/{upload.path}?{unquote(p.block)}"] for p in parts]
        super().upload(upload.path, pieces)
        return ""

    def bring(self) -> None:
        """What arrived in one request each, as this machine would see it."""
        for path, data in self.told.objects.items():
            if "?" not in path:
                super().upload(path[1:], [data])


def until(true: Callable[[], object], seconds: float = 60.0) -> None:
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit, "it did not come true"
        time.sleep(0.02)
