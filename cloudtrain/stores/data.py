"""Opens the input data of a URI: a prefix or an object of a store, a local file, or a URL."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.core.errors import if_told
from cloudtrain.core.presign import PresignedRequest
from cloudtrain.core.protocols import DataStore, StoredObject
from cloudtrain.stores import open_store, scheme_of
from cloudtrain.stores.file_data import FileData
from cloudtrain.stores.https_data import HttpsData
from cloudtrain.stores.objects import ObjectStore
from cloudtrain.stores.wishes import NO_WISHES, Wishes


def open_data(
    uri: str,
    *,
    endpoint: str | None = None,
    project: str | None = None,
    wishes: Wishes = NO_WISHES,
) -> DataStore:
    """Open the data of a URI. Sends no request yet. Raises UsageError, CredentialsError."""
    scheme = scheme_of(uri)
    if scheme == "https":
        return HttpsData(uri)
    if scheme == "file":
        return FileData(uri)
    uri_of_store = uri.rstrip("/")
    store = open_store(
        uri_of_store, endpoint=endpoint, project=project, field="data", wishes=wishes
    )
    assert isinstance(store, ObjectStore)
    return BucketData(uri, store)


class BucketData:
    """DataStore of an object store."""

    def __init__(self, uri: str, store: ObjectStore) -> None:
        self.uri, self._store = uri, store
        self._bucket = store.bucket
        self.prefix = store.prefix.rstrip("/")
        self._inside = f"{self.prefix}/" if self.prefix else ""

    def stat(self) -> StoredObject | None:
        if not self.prefix:
            return None
        with self._store.explained(""):
            return self._bucket.stat(self.prefix)

    def objects(self) -> Iterator[StoredObject]:
        with self._store.explained(""):
            yield from self._bucket.objects(self._inside)

    def read(self, key: str, version: str, offset: int = 0) -> Iterator[bytes]:
        with self._store.explained(key):
            yield from self._bucket.read(key, version, offset)

    def sign(self, key: str, version: str, *, expires_in: float) -> PresignedRequest | None:
        inside = self._inside if key.startswith(self._inside) else key
        with self._store.explained(key):
            return self._bucket.sign_read(key, version, inside=inside, expires_in=expires_in)

    def location(self) -> str:
        """Return where the bucket is; "" if that is not told, as without storage.buckets.get, which
        roles that may read every object lack."""

        def ask() -> str:
            with self._store.explained(""):
                return self._bucket.location()

        return if_told(ask, "")
