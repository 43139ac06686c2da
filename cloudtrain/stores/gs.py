"""Artifacts in Google Cloud Storage, with google-cloud-storage."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

from cloudtrain.errors import CloudtrainError, CredentialsError, PermissionsError, StoreError
from cloudtrain.protocols import Receipt, Ticket
from cloudtrain.stores.objects import Chained, ObjectStore, split

CHUNK = 1 << 20
PART = 8 << 20
"""Of a resumable upload; a multiple of 256 KiB."""


class GoogleStore(ObjectStore):
    """`gs://BUCKET/prefix`. Credentials are the application default ones."""

    def __init__(self, uri: str, *, endpoint: str | None = None) -> None:
        bucket, prefix = split(uri, "gs://BUCKET/prefix", 1)
        super().__init__(uri, _Bucket(bucket, endpoint), prefix)


class _Bucket:
    def __init__(self, name: str, endpoint: str | None) -> None:
        import google.api_core.exceptions
        import google.auth.exceptions
        import requests
        from google.cloud import storage

        self._api, self._auth = google.api_core.exceptions, google.auth.exceptions
        self._requests = requests.exceptions
        options = {"api_endpoint": endpoint} if endpoint else None
        try:
            client = storage.Client(client_options=options)
        except google.auth.exceptions.GoogleAuthError as error:
            raise CredentialsError(
                f"Google Cloud Storage: {error}", hint="`gcloud auth application-default login`"
            ) from error
        except OSError as error:  # what the library raises where it finds no project
            raise CredentialsError(
                f"Google Cloud Storage: {error}", hint="set GOOGLE_CLOUD_PROJECT"
            ) from error
        self._bucket: Any = client.bucket(name)

    def put(self, key: str, data: io.RawIOBase) -> None:
        first = data.read(PART) or b""
        if len(first) < PART:  # one request where the whole of it is here
            self._bucket.blob(key).upload_from_string(
                first, content_type="application/octet-stream", checksum="crc32c"
            )
            return
        whole = Chained(first, data)
        self._bucket.blob(key, chunk_size=PART).upload_from_file(whole, checksum="crc32c")

    def get(self, key: str) -> Iterator[bytes]:
        blob = self._bucket.get_blob(key)
        if blob is None:
            raise StoreError(f"{key}: there is no such object")
        if not blob.size:
            return  # no range of it could be asked for
        whole = self._bucket.blob(key, generation=blob.generation)  # though it be replaced now
        with whole.open("rb", chunk_size=PART) as file:
            while data := file.read(CHUNK):
                yield data

    def keys(self, prefix: str) -> Iterator[tuple[str, int, str]]:
        for blob in self._bucket.list_blobs(prefix=prefix or None, fields=_FIELDS):
            yield blob.name, blob.size, ""

    def copy(self, source: str, target: str) -> None:
        self._bucket.copy_blob(self._bucket.blob(source), self._bucket, target)

    def create(self, location: str | None) -> bool:
        raise NotImplementedError

    def ticket(self, key: str, size: int | None, *, lasts: float) -> Ticket | None:
        return None

    def commit(self, ticket: Ticket, receipts: Sequence[Receipt]) -> None:
        raise NotImplementedError

    def delete(self, key: str) -> None:
        self._bucket.blob(key).delete()

    def explain(self, error: Exception) -> CloudtrainError | None:
        if isinstance(error, self._auth.GoogleAuthError):
            return CredentialsError(str(error), hint="`gcloud auth application-default login`")
        if isinstance(error, self._api.Unauthorized):
            return CredentialsError(error.message, hint="`gcloud auth application-default login`")
        if isinstance(error, self._api.Forbidden):
            return PermissionsError(error.message, hint="roles/storage.objectUser on the bucket")
        if isinstance(error, self._api.NotFound):
            hint = "`gcloud storage buckets create gs://BUCKET` makes a bucket"
            return StoreError(error.message, hint=hint)
        if isinstance(error, self._api.GoogleAPIError | self._requests.RequestException):
            return StoreError(str(error), hint="run the same command again; it goes on from here")
        return None


_FIELDS = "items(name,size),nextPageToken"
