"""Presigns requests to Google Cloud Storage: with a downscoped token for small files, with a
resumable session for large ones.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from cloudtrain.core.presign import PresignedRequest, PresignedUpload, UploadedPart
from cloudtrain.core.shell import Secret
from cloudtrain.stores.presign.gs_tokens import DownscopedTokens

SMALL = 16 << 20
"""Maximum size in bytes of a file that a node sends in one request, without a preparatory call from
this machine.
"""

CHUNK = 1 << 30
"""Bytes of a larger file that a node sends between two progress queries; a multiple of 256 KiB. Few
chunks are fast: https://cloud.google.com/storage/docs/resumable-uploads
"""

SOON = 2 * 3600.0
"""Maximum validity in seconds of uploads with a token; longer ones use a session."""

WEEK = 7 * 86400.0
"""Maximum validity of a V4 signature, in seconds:
https://cloud.google.com/storage/docs/access-control/signed-urls"""

BEGUN = 30.0
"""Seconds within which a large file's upload must begin; otherwise the file goes through this
machine.
"""

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
        credentials. `payer`: the project that is billed for reads of data.
        """
        self._client, self._name, self._prefix = client, name, prefix
        self._connected, self._endpoint, self._retry = connected, endpoint, retry
        self._payer = payer
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
        https://cloud.google.com/storage/docs/json_api/v1/objects/get
        """
        right: dict[str, str | Secret] = {}
        if self._tokens is not None:
            token = self._tokens.reading(key)
            if token is None:
                return None
            right["Authorization"] = Secret(f"Bearer {token.reveal()}")
        url = (
            f"{self._client._connection.API_BASE_URL}/storage/v1/b/"
            f"{quote(self._name, safe='')}/o/{quote(key, safe='')}?alt=media"
        )
        return PresignedRequest(url=Secret(url), method="GET", headers=right)

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
            token = self._tokens.reading_below(inside, key, self._opened)
            if token is None:
                return self._signed_by_key(key, version, headers, expires_in)
            headers["Authorization"] = Secret(f"Bearer {token.reveal()}")
        url = (
            f"{self._client._connection.API_BASE_URL}/storage/v1/b/{quote(self._name, safe='')}"
            f"/o/{quote(key, safe='')}?alt=media&generation={version}"
        )
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
        """Return the authorization header for all keys in a task's folder; empty for an emulator,
        None without a token.
        """
        if self._tokens is None:
            return {}
        start = len(self._prefix) + 1 if self._prefix else 0
        folders = key[start:].split("/")[:-1]
        if not folders:
            return None
        token = self._tokens.token(key[:start] + "/".join(folders[:2]) + "/")
        return {"Authorization": Secret(f"Bearer {token.reveal()}")} if token else None

    def _whole(self, key: str, right: dict[str, str | Secret]) -> PresignedRequest:
        """Return the request that uploads a whole object:
        https://cloud.google.com/storage/docs/uploading-objects#uploading-an-object, multipart
        """
        mark = uuid.uuid4().hex
        name = json.dumps(key).replace(
            "{", r"\u007b"
        )  # the name must not contain the node's placeholders
        facts = f'{{"name": {name}, "contentType": "{BYTES}", "md5Hash": "{{md5}}"}}'
        return PresignedRequest(
            url=Secret(
                f"{self._client._connection.API_BASE_URL}/upload/storage/v1/b/"
                f"{quote(self._name, safe='')}/o?uploadType=multipart"
            ),
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

        https://cloud.google.com/storage/docs/resumable-uploads#session-uris
        """
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
