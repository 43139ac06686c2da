"""What stands before an emulator of Cloud Storage: asks who calls, and misbehaves as told.

Who calls is real: service accounts sign, and the Security Token Service's part exchanges their
tokens for downscoped ones, whose boundary holds here as IAM's would.
"""

from __future__ import annotations

import http.client
import json
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from werkzeug.wrappers import Request, Response

from tests.standins.gcp_auth import Authority
from tests.standins.gcp_errors import ApiError, answer

EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
TOKEN = "urn:ietf:params:oauth:token-type:access_token"
RESOURCE = "//storage.googleapis.com/projects/_/buckets/"
_NONE: Mapping[str, str] = MappingProxyType({})
ROLES = ("inRole:roles/storage.objectCreator", "inRole:roles/storage.objectViewer")
NO_PAYER = "Bucket is a requester pays bucket but no user project provided."
START = re.compile(r"resource\.name\.startsWith\((\".*\")\)")


@dataclass
class Google:
    """Token endpoint and Security Token Service (`/v1/token`) in one WSGI application."""

    authority: Authority = field(default_factory=Authority)
    scoped: dict[str, str] = field(default_factory=dict)
    """Downscoped token → start of the names (`projects/_/buckets/…`) of what it may touch."""
    readers: set[str] = field(default_factory=set)
    """Those that may read: https://cloud.google.com/storage/docs/access-control/iam-roles"""
    asked: list[dict[str, object]] = field(default_factory=list)
    """Each boundary that was asked for."""
    refuses: bool = False
    lifetime: float = 3600.0

    def __call__(self, environ, start_response):  # type: ignore[no-untyped-def]
        request = Request(environ)
        told = self.authority.token if request.path == "/token" else self._exchange
        return told(request)(environ, start_response)

    def _exchange(self, request: Request) -> Response:
        """https://cloud.google.com/iam/docs/reference/sts/rest/v1/TopLevel/token"""
        form = request.form
        kinds = (form.get("grant_type"), form.get("subject_token_type"))
        if kinds != (EXCHANGE, TOKEN) or form.get("requested_token_type") != TOKEN:
            return answer({"error": "invalid_request", "error_description": "types"}, 400)
        try:
            self.authority.caller(f"Bearer {form.get('subject_token')}")
        except ApiError:
            return answer({"error": "invalid_grant", "error_description": "subject"}, 400)
        boundary = json.loads(unquote(form["options"]))["accessBoundary"]
        self.asked.append(boundary)
        (rule,) = boundary["accessBoundaryRules"]
        start = START.fullmatch(rule["availabilityCondition"]["expression"])
        bucket = rule["availableResource"].removeprefix(RESOURCE)
        (role,) = rule["availablePermissions"]
        if self.refuses or start is None or role not in ROLES or "/" in bucket:
            return answer({"error": "invalid_request", "error_description": "no boundary"}, 400)
        token = f"ya29.d.{secrets.token_urlsafe(32)}"
        self.scoped[token] = json.loads(start[1])
        if role == ROLES[1]:
            self.readers.add(token)
        assert self.scoped[token].startswith(f"projects/_/buckets/{bucket}/objects/")
        told = {"access_token": token, "issued_token_type": TOKEN, "token_type": "Bearer"}
        return answer({**told, "expires_in": int(self.lifetime)})


@dataclass
class Call:
    number: int
    method: str
    path: str
    headers: Message
    body: bytes = b""

    @property
    def is_upload(self) -> bool:
        return self.path.startswith("/upload/")

    @property
    def sends(self) -> bool:
        """Bytes of an object."""
        return self.is_upload and ("upload_id=" in self.path or "=multipart" in self.path)

    @property
    def name(self) -> str:
        """Of the object that an upload begins."""
        if "=multipart" not in self.path:
            return str(json.loads(self.body)["name"])
        kind = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        parts: Any = message_from_bytes(kind + self.body).get_payload()
        return str(json.loads(parts[0].get_payload())["name"])


Fault = int | str | dict[str, object] | None


@dataclass
class Front:
    upstream: str
    google: Google | None = None
    """Who may call; None: everybody, as at an emulator."""
    takes_scoped: bool = True
    """As a bucket with uniform access does."""
    fault: Callable[[Call], Fault] = lambda call: None
    """A status, `reset`, `half` (of the body is heard), `after` the work is done, `corrupt`; or an
    answer in the emulator's place."""
    names_itself: bool = True
    """In the addresses of sessions; a server behind some other port names its own."""
    retry_after: str = ""
    requester_pays: str = ""
    """The project that must be named as who pays, which its users may name alone.
    https://cloud.google.com/storage/docs/requester-pays; what it answers to others is from
    googleapis/google-cloud-python#4674 and hashicorp/terraform-provider-google#22452."""
    calls: list[Call] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def sent(self) -> list[Call]:
        return [call for call in self.calls if call.sends]

    def pays(self, call: Call) -> str:
        """The project that a call names, in its query or its header, where one must be."""
        query = parse_qs(urlsplit(call.path).query)
        named = query.get("userProject", [call.headers["x-goog-user-project"] or ""])[0]
        return named if self.requester_pays else ""

    def refusal(self, call: Call) -> str | None:
        """Why IAM does not let it pass. Raises ApiError where nobody calls."""
        if self.google is None or "upload_id=" in call.path:
            return None
        header = call.headers["Authorization"] or ""
        start = self.google.scoped.get(header.removeprefix("Bearer "))
        if start is None:
            self.google.authority.caller(header)
            return None
        bucket = call.path.partition("/b/")[2].partition("/")[0]
        if header.removeprefix("Bearer ") in self.google.readers:
            name = unquote(urlsplit(call.path).path.partition("/o/")[2])
            is_read = call.method == "GET" and name and self.takes_scoped
            is_inside = f"projects/_/buckets/{bucket}/objects/{name}".startswith(start)
            return None if is_read and is_inside else "storage.objects.get"
        is_new = call.is_upload and call.method == "POST" and self.takes_scoped
        if not (is_new and f"projects/_/buckets/{bucket}/objects/{call.name}".startswith(start)):
            return "storage.objects.create"
        path = f"/storage/v1/b/{bucket}/o/{quote(call.name, safe='')}"
        return "storage.objects.delete" if self.ask("GET", path)[0] == 200 else None

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = _NONE
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """The emulator behind."""
        with closing(http.client.HTTPConnection(urlsplit(self.upstream).netloc)) as connection:
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()


@contextmanager
def front(upstream: str, google: Google | None = None) -> Iterator[Front]:
    told = Front(upstream, google)
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            with lock:
                call = Call(len(told.calls) + 1, self.command, self.path, self.headers)
                told.calls.append(call)
                fault = told.fault(call)
            length = int(self.headers["Content-Length"] or 0)
            call.body = self.rfile.read(length // 2 if fault == "half" else length)
            if fault in ("reset", "half"):
                self.hang_up()
            elif isinstance(fault, int):
                self.refuse(fault, "as it was told", {"Retry-After": told.retry_after})
            elif isinstance(fault, dict):
                self.say(200, json.dumps(fault).encode(), _NONE)
            elif told.pays(call) != told.requester_pays:
                self.refuse(400, NO_PAYER)
            elif self.is_let(call):
                self.pass_on(call, fault)

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = answer

        def is_let(self, call: Call) -> bool:
            try:
                missing = told.refusal(call)
            except ApiError as error:
                self.refuse(401, str(error))
                return False
            if missing:
                self.refuse(403, f"the caller does not have {missing} access to the object")
            return not missing

        def pass_on(self, call: Call, fault: str | None) -> None:
            body = call.body
            if fault == "corrupt":
                middle = len(body) // 2
                body = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
            ours = {k: v for k, v in self.headers.items() if k.lower() not in _HOPS}
            if told.names_itself:
                ours["Host"] = self.headers["Host"]
            status, headers, text = told.ask(call.method, call.path, body, ours)
            if fault == "after":
                self.hang_up()
            else:
                self.say(status, text, {k: v for k, v in headers if k.lower() not in _HOPS})

        def refuse(self, status: int, message: str, headers: Mapping[str, str] = _NONE) -> None:
            error = {"error": {"code": status, "message": message}}
            self.say(status, json.dumps(error, indent=2).encode(), headers)

        def say(self, status: int, text: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if value:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def hang_up(self) -> None:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    told.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()


_HOPS = ("host", "content-length", "connection", "transfer-encoding", "date", "server")
