"""Opens the input data of a URI: a prefix or an object of a store, a local file, or a URL."""

from __future__ import annotations

import os
import re
import stat
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cloudtrain.core.errors import PermissionsError, StoreError, if_told
from cloudtrain.core.paths import shown
from cloudtrain.core.presign import PresignedRequest
from cloudtrain.core.protocols import StoredObject
from cloudtrain.core.retry import Retry
from cloudtrain.core.shell import Secret
from cloudtrain.core.store_kinds import is_on_this_machine, scheme_of
from cloudtrain.stores import NO_WISHES, StoreWishes, open_store
from cloudtrain.stores.file import folder_of
from cloudtrain.stores.objects import ObjectStore


def open_data(
    uri: str,
    *,
    endpoint: str | None = None,
    project: str | None = None,
    wishes: StoreWishes = NO_WISHES,
) -> DataStore:
    """Open the data of a URI. Sends no request yet. Raises UsageError, CredentialsError."""
    if scheme_of(uri) == "https":
        return HttpsData(uri)
    if is_on_this_machine(uri):
        return FileData(uri)
    store = open_store(
        uri.rstrip("/"), endpoint=endpoint, project=project, field="data", wishes=wishes
    )
    assert isinstance(store, ObjectStore)
    return BucketData(uri, store)


class BucketData:
    """Input data in an object store, named by the service's own keys. Raises StoreError. `prefix`:
    key of the object, or name of the folder; "" for a whole bucket."""

    def __init__(self, uri: str, store: ObjectStore) -> None:
        self.uri, self._store = uri, store
        self._bucket = store.bucket
        self.prefix = store.prefix.rstrip("/")
        self._inside = f"{self.prefix}/" if self.prefix else ""

    def stat(self) -> StoredObject | None:
        """The object with exactly this name; None if there is none."""
        if not self.prefix:
            return None
        with self._store.explained(""):
            return self._bucket.stat(self.prefix)

    def objects(self) -> Iterator[StoredObject]:
        """Yield everything inside the folder, as it is listed."""
        with self._store.explained(""):
            yield from self._bucket.objects(self._inside)

    def read(self, key: str, version: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the bytes of that version from `offset`, which is less than its size."""
        with self._store.explained(key):
            yield from self._bucket.read(key, version, offset)

    def sign(self, key: str, version: str, *, expires_in: float) -> PresignedRequest | None:
        """Sign a GET of that version for a node; None if nodes cannot read it themselves."""
        inside = self._inside if key.startswith(self._inside) else key
        with self._store.explained(key):
            signer = self._bucket.presigner
            if signer is None:
                return None
            return signer.sign_read(key, version, inside=inside, expires_in=expires_in)

    def location(self) -> str:
        """Location of the bucket; "" if that is not told, as without storage.buckets.get, which
        roles that may read every object lack."""

        def ask() -> str:
            with self._store.explained(""):
                return self._bucket.location()

        return if_told(ask, "")


# ── input data in a folder or file of this machine ─────────────────────────────


_CHUNK = 1 << 20


class FileData:
    """DataStore of a path; keys are absolute paths. Links are followed, as a user's own tools
    would; one that is broken or leads back to its own folder raises StoreError."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.prefix = os.path.normpath(folder_of(uri))

    def stat(self) -> StoredObject | None:
        try:
            facts = Path(self.prefix).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _explained(self.prefix, error) from error
        return None if stat.S_ISDIR(facts.st_mode) else _described(self.prefix, facts)

    def objects(self) -> Iterator[StoredObject]:
        if Path(self.prefix).is_dir():
            yield from _walk(self.prefix, (os.path.realpath(self.prefix),))

    def read(self, key: str, version: str, offset: int = 0) -> Iterator[bytes]:
        try:
            with Path(key).open("rb", buffering=0) as file:
                file.seek(offset)
                while True:
                    data = file.read(_CHUNK)
                    if _version(os.fstat(file.fileno())) != version:
                        raise StoreError(
                            f"{shown(key)}: changed since it was listed",
                            hint="run the command again once nothing writes to it",
                        )
                    if not data:
                        return
                    yield data
        except OSError as error:
            raise _explained(key, error) from error

    def sign(self, key: str, version: str, *, expires_in: float) -> PresignedRequest | None:
        """Sign nothing: nodes cannot reach files of this machine."""
        return None

    def location(self) -> str:
        return ""


def _walk(folder: str, above: tuple[str, ...]) -> Iterator[StoredObject]:
    """Yield every file below; `above` are the real paths of the folder and those it is in."""
    try:
        with os.scandir(folder) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
        for entry in entries:
            if entry.is_dir():
                below = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
                if entry.is_symlink() and below in above:
                    raise StoreError(
                        f"{shown(entry.path)}: this link leads back to a folder that it is in",
                        hint="remove the link, or name another folder",
                    )
                yield from _walk(entry.path, (*above, os.path.realpath(entry.path)))
            else:
                yield _described(entry.path, entry.stat())
    except OSError as error:
        raise _explained(error.filename or folder, error) from error


def _described(path: str, facts: os.stat_result) -> StoredObject:
    if not stat.S_ISREG(facts.st_mode):
        raise StoreError(f"{shown(path)}: is not a regular file", hint="remove it from the data")
    return StoredObject(key=path, size=facts.st_size, version=_version(facts))


def _version(facts: os.stat_result) -> str:
    return f"{facts.st_mtime_ns}-{facts.st_ino}-{facts.st_size}"


def _explained(path: object, error: OSError) -> StoreError | PermissionsError:
    text = f"{shown(path)}: {error.strerror or error}"
    if isinstance(error, PermissionError):
        return PermissionsError(text, hint="give yourself read access")
    if isinstance(error, FileNotFoundError) and Path(str(path)).is_symlink():
        return StoreError(f"{shown(path)}: this link is broken", hint="remove the link")
    return StoreError(text, hint="check that it can be read")


# ── input data at one https:// URL ─────────────────────────────────────────────


REQUESTS = Retry(pause=0.5, backoff=2.0, longest=30.0, jitter=0.5, tries=5, within=90.0)
"""Requests for a description, on an answer of 408, 429 or 5xx or a broken connection."""

SECONDS = 30.0
_TRANSIENT = (408, 429, 500, 502, 503, 504)
_NO_HEAD = (400, 403, 405, 501)
"""Answers of servers that take GET alone: some sign URLs for one method."""


class HttpsData:
    """DataStore of one URL. Redirects are followed here, over https alone."""

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
            if _header_version(answer.headers) != version:
                raise self._changed()
            skip = offset if answer.status == 200 else 0
            while data := answer.read(_CHUNK):
                if skip < len(data):
                    yield data[skip:]
                skip = max(0, skip - len(data))

    def sign(self, key: str, version: str, *, expires_in: float) -> PresignedRequest | None:
        """The GET of the address that the URL leads to now, which may have its own signature."""
        answer = self._described()
        if answer is None or answer[0].version != version:
            raise self._changed()
        headers = {"Accept-Encoding": "identity", **_condition(version)}
        return PresignedRequest(url=Secret(answer[1]), method="GET", headers=headers)

    def location(self) -> str:
        return ""

    def _described(self) -> tuple[StoredObject, str] | None:
        """The object, if it exists, and its final address: by HEAD, or a GET of its first byte."""
        for method, headers in (("HEAD", {}), ("GET", {"Range": "bytes=0-0"})):
            try:
                with self._ask(method, headers) as answer:
                    size, told, url = _size(answer), answer.headers, answer.url
            except StoreError as error:
                status, cause = _status(error), error.__cause__
                if status in (404, 410):
                    return None
                if method == "HEAD" and status in _NO_HEAD:
                    continue
                if method == "HEAD" or status != 416:
                    raise
                assert isinstance(cause, urllib.error.HTTPError)
                size, told, url = 0, cause.headers, cause.url  # an empty file has no first byte
            if size is not None:
                return StoredObject(key=self.uri, size=size, version=_header_version(told)), url
        raise StoreError(f"{self.uri}: the server does not say its size", hint=_OTHER)

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
        reason = getattr(error, "reason", None) or error
        words = getattr(reason, "strerror", None) or reason
        text = f"{status} {getattr(error, 'reason', '')}" if status else words
        return StoreError(f"{self.uri}: {text}", hint="check the URL, then try again")

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


def _size(answer: Any) -> int | None:
    """Bytes of the whole object; None if the answer does not say."""
    text = answer.headers.get("Content-Length") or ""
    if answer.status == 206:
        text = (answer.headers.get("Content-Range") or "").rpartition("/")[2]
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def _header_version(headers: Message) -> str:
    """Strong ETag, else the time of the last change; "" if the server has neither. A weak ETag does
    not identify bytes (RFC 9110, 8.8.3)."""
    tag = str(headers.get("ETag") or "")
    return tag if tag.startswith('"') else str(headers.get("Last-Modified") or "")


def _condition(version: str) -> dict[str, str]:
    """https://www.rfc-editor.org/rfc/rfc9110#section-13.1"""
    if not version:
        return {}
    name = "If-Match" if version.startswith('"') else "If-Unmodified-Since"
    return {name: version}


DataStore = BucketData | FileData | HttpsData
"""Input data under one URI, read with this machine's credentials: a prefix, or one object."""
