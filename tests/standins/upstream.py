"""Any other server as a stand-in, so that `Faults` goes before it: object stores and their like."""

from __future__ import annotations

import fnmatch
import http.client
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from werkzeug.wrappers import Request, Response

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "date"})


class Upstream:
    """`corrupt`: a pattern of actions whose last byte is another when it arrives there."""

    def __init__(self, url: str, corrupt: str = "") -> None:
        self.url = urlsplit(url)
        self.corrupt = corrupt

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        request = Request(environ)
        body = request.get_data()
        if body and self.corrupt and fnmatch.fnmatchcase(self.action(environ), self.corrupt):
            body = body[:-1] + bytes([body[-1] ^ 1])
        server = http.client.HTTPConnection(self.url.netloc, timeout=60)
        headers = {name: value for name, value in request.headers if name.lower() not in HOP}
        try:
            server.request(request.method, environ["REQUEST_URI"], body, headers)
            answer = server.getresponse()
            data = answer.read()
        finally:
            server.close()
        kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in HOP]
        if request.method == "HEAD":
            kept += [("Content-Length", answer.getheader("Content-Length") or "0")]
        return Response(data, answer.status, kept)(environ, start_response)

    def action(self, environ: WSGIEnvironment) -> str:
        """`PUT /bucket/key?partNumber=1&…`"""
        query = environ.get("QUERY_STRING")
        path = quote(environ["PATH_INFO"].encode("latin-1"), safe="/")
        return f"{environ['REQUEST_METHOD']} {path}" + (f"?{query}" if query else "")

    def holdings(self) -> list[str]:
        raise NotImplementedError("ask it with its own client")

    def error(self, status: int, code: str, message: str) -> Response:
        """In words that S3 and Blob clients read; Google's read the status."""
        text = (
            f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
        )
        return Response(
            text, status, content_type="application/xml", headers={"x-ms-error-code": code}
        )
