"""Input data at one https:// URL."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from cloudtrain.core.errors import PermissionsError, StoreError
from cloudtrain.core.presign import PresignedRequest
from cloudtrain.core.protocols import StoredObject
from cloudtrain.core.retry import Retry
from cloudtrain.core.shell import Secret

REQUESTS = Retry(pause=0.5, backoff=2.0, longest=30.0, jitter=0.5, tries=5, within=90.0)
"""Requests for a description, on an answer of 408, 429 or 5xx or a broken connection."""

SECONDS = 30.0
_CHUNK = 1 << 20
_TRANSIENT = (408, 429, 500, 502, 503, 504)
_NO_HEAD = (400, 403, 405, 501)
"""Answers of servers that take GET alone: some sign URLs for one method."""


class HttpsData:
    """DataStore of one URL. Redirects are followed here, over https alone, so that a node gets the
    final address.
    """

    def __init__(self, uri: str) -> None:
        self.uri = self.prefix = uri
        self._open = urllib.request.build_opener(_HttpsAlone).open

    def stat(self) -> StoredObject | None:
        answer = self._described()
        return answer and answer[0]

    def objects(self) -> Iterator[StoredObject]:
        """Yield nothing: a web server has no listing."""
        return iter(())

    def read(self, key: str, version: str, offset: int = 0) -> Iterator[bytes]:
        headers = {**_condition(version), **({"Range": f"bytes={offset}-"} if offset else {})}
        with self._ask("GET", headers) as answer:
            if _version(answer.headers) != version:
                raise self._changed()
            skip = offset if answer.status == 200 else 0
            while data := answer.read(_CHUNK):
                if skip < len(data):
                    yield data[skip:]
                skip = max(0, skip - len(data))

    def sign(self, key: str, version: str, *, expires_in: float) -> PresignedRequest | None:
        """Return the GET of the address that the URL leads to now, which may have a signature of
        its own.
        """
        answer = self._described()
        if answer is None or answer[0].version != version:
            raise self._changed()
        headers = {"Accept-Encoding": "identity", **_condition(version)}
        return PresignedRequest(url=Secret(answer[1]), method="GET", headers=headers)

    def location(self) -> str:
        return ""

    def _described(self) -> tuple[StoredObject, str] | None:
        """The object and its final address; None if it does not exist."""
        try:
            with self._ask("HEAD", {}) as answer:
                size = _length(answer.headers.get("Content-Length"))
                headers, url = answer.headers, answer.url
        except StoreError as error:
            if _status(error) not in _NO_HEAD:
                if _status(error) in (404, 410):
                    return None
                raise
            size = None
        if size is None:
            found = self._first_byte()
            if found is None:
                return None
            size, headers, url = found
        if size is None:
            raise StoreError(f"{self.uri}: the server does not say its size", hint=_OTHER)
        return StoredObject(key=self.uri, size=size, version=_version(headers)), url

    def _first_byte(self) -> tuple[int | None, Message, str] | None:
        """Size, headers and final address by a GET of the first byte."""
        try:
            with self._ask("GET", {"Range": "bytes=0-0"}) as answer:
                whole = re.fullmatch(r"bytes .*/(\d+)", answer.headers.get("Content-Range") or "")
                size = _length(whole[1] if whole else None)
                if answer.status == 200:
                    size = _length(answer.headers.get("Content-Length"))
                return size, answer.headers, answer.url
        except StoreError as error:
            if _status(error) in (404, 410):
                return None
            if _status(error) == 416:  # an empty file has no first byte
                cause = error.__cause__
                assert isinstance(cause, urllib.error.HTTPError)
                return 0, cause.headers, cause.url
            raise

    def _ask(self, method: str, headers: dict[str, str]) -> Any:
        request = urllib.request.Request(self.uri, method=method, headers=headers)
        try:
            return REQUESTS.call(
                lambda: self._open(request, timeout=SECONDS),
                on=(OSError, HTTPException),
                unless=lambda error: _status(error) not in (0, *_TRANSIENT),
            )
        except (OSError, HTTPException, ValueError) as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> StoreError | PermissionsError:
        status = _status(error)
        if status in (401, 403):
            return PermissionsError(
                f"{self.uri}: {status}: the server refuses access",
                hint="https:// is for public files: put this one into a store that you can read",
            )
        if status in (304, 412):
            return self._changed()
        words = f"{status} {getattr(error, 'reason', '')}" if status else _words(error)
        return StoreError(f"{self.uri}: {words}", hint="check the URL, then try again")

    def _changed(self) -> StoreError:
        return StoreError(f"{self.uri}: changed since it was listed", hint="run the command again")


_OTHER = "put the file into a store or a folder, and name that"


class _HttpsAlone(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        if urlsplit(newurl).scheme != "https":
            raise ValueError("it redirects to an address without https")
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None and req.get_method() == "HEAD":
            made.method = "HEAD"
        return made


def _status(error: object) -> int:
    """HTTP status of an error, or of the cause of ours; 0 if there was no answer."""
    cause = error if isinstance(error, urllib.error.HTTPError) else getattr(error, "__cause__", 0)
    return cause.code if isinstance(cause, urllib.error.HTTPError) else 0


def _words(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return str(getattr(reason, "strerror", None) or reason)


def _length(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"[0-9]{1,18}", text) else None


def _version(headers: Message) -> str:
    """Strong ETag, else the time of the last change; "" if the server has neither. A weak ETag
    does not identify bytes (RFC 9110, 8.8.3).
    """
    tag = str(headers.get("ETag") or "")
    return tag if tag.startswith('"') else str(headers.get("Last-Modified") or "")


def _condition(version: str) -> dict[str, str]:
    """https://www.rfc-editor.org/rfc/rfc9110#section-13.1"""
    if not version:
        return {}
    name = "If-Match" if version.startswith('"') else "If-Unmodified-Since"
    return {name: version}
