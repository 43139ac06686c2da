"""Before an S3 server: passes every call on, so that Faults can count them and break some."""

from __future__ import annotations

import hashlib
import http.client
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from werkzeug.wrappers import Response

from tests.standins.aws_query import real

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

HOP_BY_HOP = {"connection", "expect", "keep-alive", "transfer-encoding", "content-length"}


class S3Door:
    """`corrupt` of the next bodies reach the server with another last byte."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.corrupt = 0
        self.has_own_key = False
        """ETags look like MD5s and are none, as with SSE-KMS."""
        self.demanded: dict[str, str] = {}
        """Headers without which the bucket's policy denies what stores an object."""
        self.requester_pays = False

    def action(self, environ: WSGIEnvironment) -> str:
        return f"{environ['REQUEST_METHOD']} {environ['REQUEST_URI'].split('&X-Amz-')[0]}"

    def holdings(self) -> list[str]:
        return []

    def error(self, status: int, code: str, message: str) -> Response:
        body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
        return Response(body, status, content_type="application/xml")

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        body = environ["wsgi.input"].read()
        if self._denies(environ):
            refused = real("denied-by-bucket-policy")  # a HEAD has no words
            denied = self.error(refused.status, refused.code, refused.message)
            return denied(environ, start_response)
        if body and self.corrupt > 0:
            self.corrupt -= 1
            body = body[:-1] + bytes([body[-1] ^ 1])
        headers = {
            name[5:].replace("_", "-"): value
            for name, value in environ.items()
            if name.startswith("HTTP_") and name[5:].replace("_", "-").lower() not in HOP_BY_HOP
        }
        headers |= {"Content-Type": environ.get("CONTENT_TYPE") or ""}
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            method = environ["REQUEST_METHOD"]
            connection.request(method, environ["REQUEST_URI"], body or None, headers)
            answer = connection.getresponse()
            told, data = answer.getheaders(), answer.read()
        finally:
            connection.close()
        kept = [(name, value) for name, value in told if name.lower() not in HOP_BY_HOP]
        if self.has_own_key:
            kept = [(n, _scrambled(v) if n.lower() == "etag" else v) for n, v in kept]
            if data.startswith(b"<?xml"):
                data = _scrambled(data.decode()).encode()
        if method == "HEAD":
            kept += [(n, v) for n, v in told if n.lower() == "content-length"]
        return Response(data, answer.status, kept)(environ, start_response)

    def _denies(self, environ: WSGIEnvironment) -> bool:
        """https://docs.aws.amazon.com/AmazonS3/latest/userguide/UsingKMSEncryption.html and
        …/ObjectsinRequesterPaysBuckets.html"""
        query, method = environ["QUERY_STRING"], environ["REQUEST_METHOD"]
        is_part = "partNumber=" in query
        creates = (method == "PUT" and not is_part) or (method == "POST" and "uploads" in query)
        told = {n: environ.get(f"HTTP_{n.upper().replace('-', '_')}") for n in self.demanded}
        if creates and told != self.demanded:
            return True
        reads = method in ("GET", "HEAD") and "paid" in environ["PATH_INFO"] + query
        payer = environ.get("HTTP_X_AMZ_REQUEST_PAYER") == "requester"
        return self.requester_pays and reads and not payer


def _scrambled(text: str) -> str:
    def other(found: re.Match[str]) -> str:
        return hashlib.md5(found[0].encode()).hexdigest()

    return re.sub(r'(?<=")[0-9a-f]{32}(?=")|(?<=&quot;)[0-9a-f]{32}(?=&quot;)', other, text)
