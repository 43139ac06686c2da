"""Artifacts in Google Cloud Storage, with google-cloud-storage."""

from __future__ import annotations

import base64
import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from cloudtrain.core import moments
from cloudtrain.core.errors import (
    CloudtrainError,
    CredentialsError,
    NoBucketError,
    PermissionsError,
    StoreAway,
    StoreError,
    UsageError,
)
from cloudtrain.core.protocols import SMALL, StoredObject, Swapped
from cloudtrain.identities import google as identity
from cloudtrain.stores import StoreWishes
from cloudtrain.stores.objects import AGAIN, CountingReader, ObjectStore, age_of, split
from cloudtrain.stores.presign.gs import BYTES, GooglePresigner

CHUNK = 1 << 20
PART = 8 << 20
"""Bytes of a part of a resumable upload; a multiple of 256 KiB."""

AT_ONCE = 32
"""Connections to keep open: the number of files transferred in parallel."""

EMULATOR = "STORAGE_EMULATOR_HOST"


def opened(
    uri: str, *, endpoint: str | None, project: str | None, wishes: StoreWishes
) -> ObjectStore:
    """Open `gs://BUCKET/prefix`. Uses the application default credentials."""
    bucket, prefix = split(uri)
    return ObjectStore(uri, _Bucket(bucket, prefix, endpoint, project, wishes), prefix)


class _Bucket:
    def __init__(
        self, name: str, prefix: str, endpoint: str | None, project: str | None, wishes: StoreWishes
    ) -> None:
        import google.api_core.exceptions
        import google.auth.exceptions
        import requests
        from google import resumable_media
        from google.cloud import storage
        from google.cloud.storage.retry import DEFAULT_RETRY

        self._api: Any = google.api_core.exceptions
        self._auth = google.auth.exceptions
        self._media, self._requests = resumable_media, requests.exceptions
        self._storage, self._endpoint = storage, endpoint or os.environ.get(EMULATOR)
        self._retry: Any = DEFAULT_RETRY  # every call here may be repeated
        self._name = name
        self.url = self._endpoint or "https://storage.googleapis.com"
        credentials, found = None, os.environ.get("GOOGLE_CLOUD_PROJECT")
        if not os.environ.get(EMULATOR):  # emulators are used without credentials
            credentials, found = identity.find()
        self._of_somebody = credentials is not None
        self._client = self._connected(credentials, project or found)
        payer = _payer(credentials, project or found) if wishes.requester_pays else None
        self._bucket: Any = self._client.bucket(name, user_project=payer)
        self.presigner = GooglePresigner(
            self._client,
            name,
            prefix,
            payer=payer,
            credentials=credentials,
            connected=self._connected,
            endpoint=self._endpoint,
            retry=self._retry,
        )

    def _connected(self, credentials: Any, project: str | None = None) -> Any:
        from requests.adapters import HTTPAdapter

        options = {"api_endpoint": self._endpoint} if self._endpoint else None
        client = self._storage.Client(
            project=project, credentials=credentials, client_options=options
        )
        for scheme in ("https://", "http://"):
            client._http.mount(scheme, HTTPAdapter(pool_maxsize=AT_ONCE))
        if not self._endpoint:
            client._http.hooks["response"].append(heard)
        return client

    def put(self, key: str, data: CountingReader) -> str:
        """Upload with the MD5, which the service verifies; crc32c is slow in pure Python."""
        options = {"content_type": BYTES, "checksum": "md5", "retry": self._retry}
        if len(data.ahead(PART)) < PART:  # one request where the whole of it is here
            self._bucket.blob(key).upload_from_string(data.read(), **options)
        else:
            self._bucket.blob(key, chunk_size=PART).upload_from_file(data, **options)
        return ""

    def get(self, key: str) -> Iterator[bytes]:
        blob = self._bucket.get_blob(key)
        if blob is None:
            raise StoreError(f"{key}: no such object")
        if not blob.size:
            return  # an empty object has no range to request
        # Even if it is replaced meanwhile.
        with self._bucket.blob(key, generation=blob.generation).open("rb", chunk_size=PART) as file:
            yield from iter(partial(file.read, CHUNK), b"")

    def stat(self, key: str) -> StoredObject | None:
        blob = self._bucket.blob(key)
        try:
            blob.reload(retry=self._retry)
        except self._api.NotFound:  # also the bucket: the listing tells
            return None
        return _described(blob)

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """List objects; one composed of others has no MD5."""
        for blob in self._bucket.list_blobs(prefix=prefix or None, fields=_DESCRIPTION):
            yield _described(blob)

    def between(
        self, prefix: str, after: str, last: str, *, page: int
    ) -> list[StoredObject] | None:
        """https://cloud.google.com/storage/docs/json_api/v1/objects/list: startOffset is included,
        endOffset is not."""
        found: list[StoredObject] = []
        blobs = self._bucket.list_blobs(
            prefix=prefix or None, fields=_DESCRIPTION, start_offset=after or None, page_size=page
        )
        for blob in blobs:
            if after and blob.name < after:
                return None
            if last and blob.name > last:
                break
            if blob.name != after:
                found.append(_described(blob))
            if blob.name == last:
                break
        return found

    def read(self, key: str, version: str, offset: int) -> Iterator[bytes]:
        blob = self._bucket.blob(key, generation=int(version))
        # As stored: an object with Content-Encoding: gzip would otherwise be decompressed.
        with blob.open("rb", chunk_size=PART, raw_download=True) as file:
            file.seek(offset)
            yield from iter(partial(file.read, CHUNK), b"")

    def location(self) -> str:
        """The bucket's location: `US-EAST4`, or `US` for a multi-region."""
        self._bucket.reload(retry=self._retry)
        return str(self._bucket.location or "").lower()

    def copy(self, source: str, target: str) -> None:
        """Copy within the store. A large object takes several calls:
        https://cloud.google.com/storage/docs/json_api/v1/objects/rewrite"""
        old, new, token = self._bucket.blob(source), self._bucket.blob(target), None
        while True:
            token, _, _ = new.rewrite(old, token=token, retry=self._retry)
            if token is None:
                return

    def create(self, location: str | None, tags: Mapping[str, str] | None = None) -> bool:
        """Create the bucket, with access by IAM only. One that exists need not be inspected."""
        try:
            if self._bucket.exists(retry=self._retry):
                return False
        except self._api.Forbidden:
            return False
        if self._of_somebody and self._client.project is None:
            raise StoreError(
                "the bucket does not exist, and no project is set to create it in",
                hint="set GOOGLE_CLOUD_PROJECT, or run `gcloud config set project`",
            )
        new = self._client.bucket(self._name)
        new.iam_configuration.uniform_bucket_level_access_enabled = True
        new.iam_configuration.public_access_prevention = "enforced"
        new.labels = dict(tags or {})
        try:
            self._client.create_bucket(new, location=location and region(location))
        except self._api.Conflict:  # it exists now
            return False
        return True

    def delete(self, key: str) -> None:
        with contextlib.suppress(self._api.NotFound):
            self._bucket.blob(key).delete(retry=self._retry)

    def swap(self, key: str, data: bytes | None, version: str) -> Swapped:
        """https://cloud.google.com/storage/docs/request-preconditions"""
        blob, condition = self._bucket.blob(key), {"if_generation_match": int(version or 0)}
        try:
            if data is not None:
                blob.upload_from_string(data, content_type=BYTES, retry=self._retry, **condition)
                return Swapped(done=True, version=str(blob.generation))
            if version:
                blob.delete(retry=self._retry, **condition)
            return Swapped(done=True)
        except self._api.PreconditionFailed:
            pass
        except self._api.NotFound:
            if data is not None:
                raise  # the bucket
        return self.peek(key)

    def peek(self, key: str) -> Swapped:
        blob = self._bucket.blob(key)
        base = f"{self._client._connection.API_BASE_URL}/storage/v1"
        answer = self._client._http.get(f"{base}{blob.path}")
        if answer.status_code == 404:
            return Swapped(done=False)
        if not answer.ok:
            raise self._api.from_http_response(answer)
        facts = answer.json()
        whole = self._bucket.blob(key, generation=int(facts["generation"]))
        written = datetime.fromisoformat(facts["updated"].replace("Z", "+00:00"))
        try:
            found = whole.download_as_bytes(retry=self._retry, end=SMALL - 1)
        except self._api.NotFound:  # it was just replaced
            found = b""
        return Swapped(
            done=False,
            version=facts["generation"],
            data=found,
            age=age_of(written, answer.headers.get("Date")),
        )

    def explain(self, error: Exception) -> CloudtrainError | None:
        """https://cloud.google.com/storage/docs/json_api/v1/status-codes"""
        if isinstance(error, self._api.RetryError) and isinstance(error.cause, Exception):
            return self.explain(error.cause)
        if isinstance(error, self._media.InvalidResponse):  # after many retries
            status = error.response.status_code
            error = self._api.from_http_status(status, "", response=error.response)
        text = _words(error)
        if isinstance(error, self._auth.TransportError):  # of the service that renews tokens
            return StoreAway(text, hint=AGAIN)
        if isinstance(error, self._auth.GoogleAuthError):
            refusal = identity.explained("signing in to Google", error)
            return refusal if isinstance(refusal, CloudtrainError) else StoreAway(text, hint=AGAIN)
        kinds: tuple[tuple[Any, type[CloudtrainError], str | None], ...] = (
            (self._api.Unauthorized, CredentialsError, identity.LOGIN),
            (self._api.Forbidden, PermissionsError, _hint(text) or _ROLE),
            (self._api.NotFound, NoBucketError, _CREATE),
            (self._api.TooManyRequests | self._api.ServerError, StoreAway, AGAIN),
            (self._api.RetryError, StoreAway, AGAIN),
            (self._api.GoogleAPIError, StoreError, _hint(text)),  # a permanent one: 400, 409, 412
            (self._requests.ConnectionError | self._requests.Timeout, StoreAway, AGAIN),
            (self._requests.RequestException | self._media.DataCorruption, StoreError, AGAIN),
        )
        found = (kind(text, hint=hint) for types, kind, hint in kinds if isinstance(error, types))
        return next(found, None)


def _payer(credentials: Any, project: str | None) -> str:
    """The project that is billed for reading: the config's, or that of the login. Its user needs
    serviceusage.services.use in it: https://cloud.google.com/storage/docs/requester-pays"""
    found = project or getattr(credentials, "quota_project_id", None)
    if not found:
        raise UsageError(
            "requester_pays: no project is set that pays",
            hint="set GOOGLE_CLOUD_PROJECT, or run `gcloud auth application-default "
            "set-quota-project PROJECT`",
        )
    return str(found)


def heard(response: Any, *_: Any, **__: Any) -> None:
    moments.answered(response, "Google Cloud")


def region(location: str) -> str:
    """Region of a zone (us-east4-c), as buckets are in regions; other locations are unchanged."""
    return re.sub(r"^([a-z]+-[a-z]+\d+)-[a-z]$", r"\1", location)


_ROLE = "grant roles/storage.objectUser on the bucket"
_CREATE = "run `gcloud storage buckets create gs://B`, or set `artifacts.create: true`"
_HINTS = (
    # https://cloud.google.com/storage/docs/bucket-lock and …/requester-pays, read 2026-11-26
    (
        r"retention policy|object retention|temporary hold|event-based hold",
        "the bucket keeps each object until then: write to one without a retention policy, or lift "
        "it by `gcloud storage buckets update gs://B --clear-retention-period`",
    ),
    (
        r"requester pays",
        "its owner has whoever reads pay: set `requester_pays: true` for `data:`; a store must be "
        "in a bucket whose owner pays",
    ),
    (
        r"[Bb]illing account|billing is disabled|absent billing",
        "link an active billing account: `gcloud billing projects link PROJECT --billing-account "
        "ID`, with an ID of `gcloud billing accounts list`",
    ),
    (
        r"serviceusage\.services\.use|use project",
        "you may not use the quota project of your login: `gcloud auth application-default "
        "set-quota-project PROJECT`",
    ),
    (
        r"publicAccessPrevention|VPC Service Controls|organization's policy",
        "a policy of your organization forbids it (docs/companies.md)",
    ),
)


def _hint(text: str) -> str | None:
    """Advice where a refusal is not about roles on the bucket."""
    return next((hint for pattern, hint in _HINTS if re.search(pattern, text)), None)


def _words(error: Exception) -> str:
    """The service's own message, without the queries of URLs: a session's is a secret."""
    response = getattr(error, "response", None)
    text = str(error)
    if response is not None and not response.ok:
        text = f"{response.status_code} {response.reason}"
        with contextlib.suppress(ValueError, KeyError, TypeError):
            text = f"{response.status_code} {response.json()['error']['message']}"
    return re.sub(r"\?[^\s)]+", "?…", text)


_DESCRIPTION = "items(name,size,md5Hash,crc32c,generation),nextPageToken"


def _described(blob: Any) -> StoredObject:
    return StoredObject(
        key=blob.name,
        size=blob.size,
        version=str(blob.generation),
        md5=base64.b64decode(blob.md5_hash or "").hex(),
        crc32c=base64.b64decode(blob.crc32c or "").hex(),
    )
