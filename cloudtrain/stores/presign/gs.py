"""Presigns requests to Google Cloud Storage: downscoped tokens, and sessions for large files."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Sequence
from datetime import timezone
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

from cloudtrain.core import moments
from cloudtrain.core.presign import PresignedRequest, PresignedUpload, UploadedPart
from cloudtrain.core.shell import Secret

SMALL = 16 << 20
"""Maximum bytes of a file that a node sends in one request, which this machine does not begin."""

CHUNK = 1 << 30
"""Bytes of a larger file that a node sends between two progress queries; a multiple of 256 KiB. Few
chunks are fast: https://cloud.google.com/storage/docs/resumable-uploads"""

SOON = 2 * 3600.0
"""Maximum validity in seconds of uploads with a token; longer ones use a session."""

WEEK = 7 * 86400.0
"""Maximum validity of a V4 signature, in seconds:
https://cloud.google.com/storage/docs/access-control/signed-urls"""

BEGUN = 30.0
"""Seconds within which a large file's upload begins, or it goes through this machine."""

BYTES = "application/octet-stream"


class GooglePresigner:
    """Presigner for one bucket; objects are named by key. Raises the SDK's exceptions."""

    def __init__(
        self,
        client: Any,
        name: str,
        prefix: str,
        *,
        credentials: Any,
        connected: Callable[[Any], Any],
        endpoint: str | None,
        retry: Any,
        payer: str | None = None,
    ) -> None:
        """`credentials` is None for an emulator. `connected` returns a client that uses other
        credentials. `payer`: the project that is billed for reads of data."""
        self._client, self._name, self._prefix = client, name, prefix
        self._connected, self._endpoint, self._retry = connected, endpoint, retry
        self._payer = payer
        self._base = client._connection.API_BASE_URL
        self._objects = f"/storage/v1/b/{quote(name, safe='')}/o"
        self._bucket: Any = client.bucket(name)
        self._tokens = DownscopedTokens(credentials, name, self._begun) if credentials else None

    def sign_upload(self, key: str, size: int | None, *, expires_in: float) -> PresignedUpload:
        if size is not None and size <= SMALL and expires_in <= SOON:
            right = self._right(key)
            if right is not None:
                return PresignedUpload(path=key, requests=(self._whole(key, right),))
        url = Secret(self._session(self._bucket, key))
        return PresignedUpload(path=key, requests=(PresignedRequest(url=url),), chunk=CHUNK)

    def sign_download(self, key: str, *, expires_in: float) -> PresignedRequest | None:
        """Presign a download with a token, which is valid for at most an hour:
        https://cloud.google.com/storage/docs/json_api/v1/objects/get"""
        right: dict[str, str | Secret] = {}
        if self._tokens is not None:
            token = self._tokens.reading(key)
            if token is None:
                return None
            right = _bearer(token)
        return PresignedRequest(url=Secret(self._media(key)), method="GET", headers=right)

    def _media(self, key: str) -> str:
        return f"{self._base}{self._objects}/{quote(key, safe='')}?alt=media"

    def sign_read(
        self, key: str, version: str, *, inside: str, expires_in: float
    ) -> PresignedRequest | None:
        """Sign a GET of one generation: with a token that reads what starts with `inside`, valid
        for at most an hour, else with a service account's own key.

        Objects that are stored compressed are sent as stored:
        https://cloud.google.com/storage/docs/transcoding
        Who pays is in the query: https://cloud.google.com/storage/docs/using-requester-pays. No
        page says whether a token of less scope may name a payer: it is tried once.
        """
        headers: dict[str, str | Secret] = {"Accept-Encoding": "gzip"}
        if self._tokens is not None:
            token = self._tokens.kept(inside, READER, key, self._opened)
            if token is None:
                return self._signed_by_key(key, version, headers, expires_in)
            headers |= _bearer(token)
        url = f"{self._media(key)}&generation={version}"
        if self._payer:
            url += f"&userProject={quote(self._payer, safe='')}"
        return PresignedRequest(url=Secret(url), method="GET", headers=headers)

    def _signed_by_key(
        self, key: str, version: str, headers: dict[str, str | Secret], expires_in: float
    ) -> PresignedRequest | None:
        """Sign with the private key of a service account, if this machine has it."""
        from google.oauth2 import service_account

        if not isinstance(self._client._credentials, service_account.Credentials):
            return None
        url = self._bucket.blob(key).generate_signed_url(
            version="v4",
            expiration=int(min(expires_in, WEEK)),
            method="GET",
            generation=version,
            query_parameters={"userProject": self._payer} if self._payer else None,
        )
        return PresignedRequest(url=Secret(url), method="GET", headers=headers)

    def complete(self, upload: PresignedUpload, parts: Sequence[UploadedPart]) -> str:
        """Do nothing: every upload is a single request, whose MD5 is listed."""
        return ""

    def _right(self, key: str) -> dict[str, str | Secret] | None:
        """Authorization for a task's folder; empty for an emulator, None without a token."""
        if self._tokens is None:
            return {}
        start = len(self._prefix) + 1 if self._prefix else 0
        folders = key[start:].split("/")[:-1]
        if not folders:
            return None
        token = self._tokens.token(key[:start] + "/".join(folders[:2]) + "/")
        return _bearer(token) if token else None

    def _whole(self, key: str, right: dict[str, str | Secret]) -> PresignedRequest:
        """The request that uploads a whole object:
        https://cloud.google.com/storage/docs/uploading-objects#uploading-an-object, multipart"""
        mark = uuid.uuid4().hex
        # The name must not contain the node's placeholders.
        name = json.dumps(key).replace("{", r"\u007b")
        facts = f'{{"name": {name}, "contentType": "{BYTES}", "md5Hash": "{{md5}}"}}'
        return PresignedRequest(
            url=Secret(f"{self._base}/upload{self._objects}?uploadType=multipart"),
            method="POST",
            headers={"Content-Type": f'multipart/related; boundary="{mark}"', **right},
            before=(
                f"--{mark}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n"
                f"{facts}\r\n--{mark}\r\nContent-Type: {BYTES}\r\n\r\n"
            ),
            after=f"\r\n--{mark}--\r\n",
        )

    def _session(self, bucket: Any, key: str) -> str:
        """Begin an upload. Returns its URL, which allows writing only that object, for a week.
        https://cloud.google.com/storage/docs/resumable-uploads#session-uris"""
        url: str = bucket.blob(key).create_resumable_upload_session(
            content_type=BYTES, retry=self._retry.with_deadline(BEGUN)
        )
        if self._endpoint:  # a server behind another address returns its own
            ours = urlsplit(self._endpoint)
            url = urlsplit(url)._replace(scheme=ours.scheme, netloc=ours.netloc).geturl()
        return url

    def _opened(self, credentials: Any, key: str) -> object:
        """Read an object's description."""
        client = self._connected(credentials)
        return client.bucket(self._name, user_project=self._payer).blob(key).reload()

    def _begun(self, credentials: Any, key: str) -> object:
        return self._session(self._connected(credentials).bucket(self._name), key)


# ── downscoped tokens ──────────────────────────────────────────────────────────
# With one a node can create objects, or read one, and nothing else.


ROLE = "inRole:roles/storage.objectCreator"
"""Role that can only create objects. It cannot read, list, delete or replace them (replacing needs
storage.objects.delete): https://cloud.google.com/storage/docs/access-control/iam-roles"""

READER = "inRole:roles/storage.objectViewer"
"""Role that can read objects; with a condition on their names, it cannot list them."""

SPARE = 900.0
"""Minimum remaining validity, in seconds, of a token that is given to a node."""

REFUSED = 300.0
"""Seconds before a retry after a refusal."""

CONNECT = 10.0


class DownscopedTokens:
    """Tokens downscoped by a Credential Access Boundary, one for each folder, kept in memory. They
    are valid as long as the token from which they derive, at most an hour:
    https://cloud.google.com/iam/docs/downscoping-short-lived-credentials"""

    def __init__(
        self,
        credentials: Any,
        bucket: str,
        opens: Callable[[Any, str], object],
        clock: Callable[[], float] = moments.now,
    ) -> None:
        """`opens` begins an upload of a key with these credentials, or raises an exception."""
        self._credentials, self._bucket = credentials, bucket
        self._opens, self._clock = opens, clock
        self._tokens: dict[str, tuple[Secret | None, float]] = {}
        self._locks: dict[str, threading.Lock] = {}

    def token(self, folder: str) -> Secret | None:
        """A token for uploads below `folder`; None if none is issued, or the bucket takes none."""
        return self.kept(folder, ROLE, f"{folder}.cloudtrain-{uuid.uuid4().hex}", self._opens)

    def reading(self, key: str) -> Secret | None:
        """A token for reading this key; None if Google issues none."""
        token, until = self._asked(key, READER)
        return token if until > self._clock() else None

    def kept(
        self, start: str, role: str, key: str, opens: Callable[[Any, str], object]
    ) -> Secret | None:
        """A token for keys that begin with `start`; None if Google issues none or the bucket does
        not accept it, which is checked once on `key`."""
        name = f"{role} {start}"
        with self._locks.setdefault(name, threading.Lock()):
            token, until = self._tokens.get(name, (None, 0.0))
            if self._clock() >= until:
                token, until = self._asked(start, role)
                refused = token is None or until <= self._clock()
                if token is None or refused or not self._is_taken(token.reveal(), key, opens):
                    token, until = None, self._clock() + REFUSED
                self._tokens[name] = (token, until)
            return token

    def _asked(self, start: str, role: str) -> tuple[Secret | None, float]:
        """Request a token for keys with this prefix. Returns it and until when nodes may get it."""
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request

        scoped = self._scoped(start, role)
        try:
            scoped.refresh(partial(Request(), timeout=CONNECT))
            expiry = scoped.expiry.replace(tzinfo=timezone.utc)  # google-auth's times are naive
            return Secret(scoped.token), expiry.timestamp() - SPARE
        except (GoogleAuthError, ValueError, AttributeError):  # also: no JSON, no time
            return None, 0.0

    def _scoped(self, folder: str, role: str) -> Any:
        from google.auth import downscoped as untyped

        downscoped: Any = untyped
        rule = downscoped.AccessBoundaryRule(
            available_resource=f"//storage.googleapis.com/projects/_/buckets/{self._bucket}",
            available_permissions=[role],
            availability_condition=downscoped.AvailabilityCondition(within(self._bucket, folder)),
        )
        return downscoped.Credentials(
            source_credentials=self._credentials,
            credential_access_boundary=downscoped.CredentialAccessBoundary([rule]),
            universe_domain=self._credentials.universe_domain,
        )

    def _is_taken(self, token: str, key: str, opens: Callable[[Any, str], object]) -> bool:
        """True if the bucket accepts the token; a bucket without uniform access accepts none.
        Checked once: for writing, by beginning an upload that leaves nothing behind."""
        from google.api_core.exceptions import GoogleAPIError
        from google.auth.exceptions import GoogleAuthError
        from google.oauth2 import credentials as untyped

        made: Any = untyped
        try:
            opens(made.Credentials(token, universe_domain=self._credentials.universe_domain), key)
        except (GoogleAPIError, GoogleAuthError, OSError):  # OSError: those of requests
            return False
        return True


def _bearer(token: Secret) -> dict[str, str | Secret]:
    return {"Authorization": Secret(f"Bearer {token.reveal()}")}


def within(bucket: str, folder: str) -> str:
    """The CEL condition that limits access to `folder`; strings in CEL are written as in JSON."""
    start = f"projects/_/buckets/{bucket}/objects/{folder}"
    return f"resource.name.startsWith({json.dumps(start, ensure_ascii=False)})"
