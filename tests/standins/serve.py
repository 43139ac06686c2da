"""Serves a WSGI application on 127.0.0.1: many threads, connections that stay open, TLS."""

from __future__ import annotations

import datetime
import io
import ipaddress
import ssl
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from werkzeug.datastructures import Headers
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler
from werkzeug.test import run_wsgi_app

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

HOST = "127.0.0.1"


def server(
    app: WSGIApplication, port: int = 0, tls: tuple[Path, Path] | None = None
) -> ThreadedWSGIServer:
    """Bound, not serving yet; `.port` is its port, `url(server)` its address. `tls`: certificate
    and key, as `certificate` makes them."""
    context = (str(tls[0]), str(tls[1])) if tls else None
    return _Server(HOST, port, app, _Handler, ssl_context=context)


def url(server: ThreadedWSGIServer) -> str:
    return f"{'https' if server.ssl_context else 'http'}://{HOST}:{server.port}"


@contextmanager
def serving(
    app: WSGIApplication, port: int = 0, tls: tuple[Path, Path] | None = None
) -> Iterator[str]:
    """Serves in a thread of this process; the URL without a last slash."""
    here = server(app, port, tls)
    thread = threading.Thread(target=here.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield url(here)
    finally:
        here.shutdown()
        thread.join()


def certificate(folder: Path, *names: str) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and these names that is its own authority, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a stand-in of a cloud")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=7))
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.IPAddress(ipaddress.ip_address(HOST)), *map(x509.DNSName, names)]
            ),
            False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "standin.crt", folder / "standin.key"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


class _Server(ThreadedWSGIServer):
    daemon_threads = True
    request_queue_size = 1024
    allow_reuse_address = False

    def get_request(self) -> tuple[Any, Any]:
        """A client that stands still in its TLS handshake holds up its own thread alone."""
        if isinstance(self.socket, ssl.SSLSocket):
            vars(self.socket)["do_handshake_on_connect"] = False  # what `accept` reads
        return super().get_request()

    def log(self, type: str, message: str, *args: object) -> None:
        """A person reads the calls at /_standin/calls."""


class _Handler(WSGIRequestHandler):
    """werkzeug's own closes each connection and waits 10 ms for the end of each request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def run_wsgi(self) -> None:
        environ = self.environ = self.make_environ()
        if not environ.get("wsgi.input_terminated"):
            length = int(environ.get("CONTENT_LENGTH") or 0)
            body = self.rfile.read(length)
            if len(body) < length:  # The client is gone.
                self.close_connection = True
                return
            environ["wsgi.input"] = io.BytesIO(body)
        else:
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read())
            environ["CONTENT_LENGTH"] = str(environ["wsgi.input"].getbuffer().nbytes)
        try:
            chunks, status, headers = run_wsgi_app(self.server.app, environ, buffered=True)
            body = b"".join(chunks)
        except ConnectionError:  # The application has cut it.
            self.close_connection = True
            return
        except Exception:  # noqa: BLE001 - a fault of the stand-in, told to whoever asked
            traceback.print_exc()
            status, headers, body = "500 INTERNAL", Headers(), traceback.format_exc().encode()
        self._answer(int(status.split()[0]), list(headers), body)

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        names = {key.lower() for key, _ in headers}
        bodiless = status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED) or status < 200
        self.send_response(status)
        for key, value in headers:
            self.send_header(key, value)
        if "content-length" not in names and not bodiless:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and not bodiless:
            self.wfile.write(body)

    def log(self, type: str, message: str, *args: object) -> None:
        """See _Server.log."""
