"""Code shared by all object stores: keys, streams, the check, error messages."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import sys
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import chain
from typing import Protocol
from urllib.parse import unquote_to_bytes

from cloudtrain.core import moments
from cloudtrain.core.errors import CloudtrainError, StoreError, UsageError
from cloudtrain.core.model import Artifact
from cloudtrain.core.network import HINT, no_network
from cloudtrain.core.paths import is_inside
from cloudtrain.core.presign import PresignedRequest, PresignedUpload, Presigner, UploadedPart
from cloudtrain.core.protocols import StoredObject, Swapped
from cloudtrain.core.store_kinds import kind_of

AGAIN = "run the command again to continue"

PAGE = 1000
"""Objects in one answer of S3 and Cloud Storage, at most."""

RANGES = 8
"""Parts of a listing that are asked for side by side."""

CHECKS = ".cloudtrain-check/"
"""Prefix of the objects that `check` writes; they are not artifacts."""


class BucketPresigner(Presigner, Protocol):
    """Signs requests for the objects of one bucket, by their full keys."""

    def sign_read(
        self, key: str, version: str, *, inside: str, expires_in: float
    ) -> PresignedRequest | None:
        """`inside`: start of the names of all objects of this data."""


class Bucket(Protocol):
    """One bucket or container, its objects by their full keys. Raises the SDK's own exceptions."""

    @property
    def url(self) -> str:
        """URL of the service."""

    @property
    def presigner(self) -> BucketPresigner | None: ...

    def put(self, key: str, data: CountingReader) -> str:
        """Upload; returns the version of an object whose MD5 is not listed, else ""."""

    def get(self, key: str) -> Iterator[bytes]: ...

    def read(self, key: str, version: str, offset: int) -> Iterator[bytes]: ...

    def stat(self, key: str) -> StoredObject | None: ...

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """Yield each object, sorted by key; its MD5 if what is listed certainly is one."""

    def between(
        self, prefix: str, after: str, last: str, *, page: int
    ) -> list[StoredObject] | None:
        """Objects with keys after the one, up to and including the other, `page` at a time; "" is
        no limit. None if the service does not list so."""

    def location(self) -> str: ...

    def copy(self, source: str, target: str) -> None:
        """Copy within the store."""

    def delete(self, key: str) -> None: ...

    def swap(self, key: str, data: bytes | None, version: str) -> Swapped: ...

    def peek(self, key: str) -> Swapped: ...

    def create(self, location: str | None, tags: Mapping[str, str] | None = None) -> bool:
        """Create a private bucket with these tags, if its service has any; False if it exists."""

    def explain(self, error: Exception) -> CloudtrainError | None:
        """Convert an exception of the SDK to ours; None for any other."""


class ObjectStore:
    """StoreBackend in one bucket, and its presigner if it has one. Objects appear whole."""

    def __init__(self, uri: str, bucket: Bucket, prefix: str) -> None:
        self.uri, self.bucket = uri, bucket
        self.prefix = f"{prefix}/" if prefix else ""
        self.presigner: Presigner | None = self if bucket.presigner else None
        self._is_reached = False

    def create(self, location: str | None, tags: Mapping[str, str] | None = None) -> bool:
        with self.explained(""):
            return self.bucket.create(location, tags)

    def check(self) -> None:
        path = f"{CHECKS}{uuid.uuid4().hex}"
        self.upload(path, [b"cloudtrain"])
        try:
            if b"".join(self.download(path)) != b"cloudtrain":
                raise StoreError(f"{self.uri}: an object read back differs from what was written")
        finally:
            self.delete(path)

    def upload(self, path: str, data: Iterable[bytes]) -> Artifact:
        stream = CountingReader(data)
        with self.explained(path):
            version = self.bucket.put(self._key(path), stream)
        return Artifact(
            path=path,
            size=stream.size,
            sha256=stream.sha256.hexdigest(),
            md5=stream.md5.hexdigest(),
            version=version,
        )

    def list(self, prefix: str = "", known: Collection[str] = ()) -> Iterator[Artifact]:
        with self.explained(prefix):
            for found in self._objects(self.prefix + encode_key(prefix), known):
                path = decode_key(found.key[len(self.prefix) :])
                if is_inside(path) and not path.startswith(CHECKS):
                    yield Artifact(
                        path=path, size=found.size, sha256="", md5=found.md5, version=found.version
                    )

    def _objects(self, prefix: str, known: Collection[str]) -> Iterator[StoredObject]:
        """A page of a listing begins where the one before ended: where that will be, known keys
        tell before. What they lead to counts if it has all of them."""
        keys = sorted(self.prefix + encode_key(path) for path in known)
        each = len(keys) // (len(keys) * 10 // (PAGE * 9) + 2) + 1  # others may be between them
        if len(keys) > PAGE // 2:
            starts = keys[each::each]
            between = partial(self.bucket.between, prefix, page=min(PAGE, each + each // 8))
            with ThreadPoolExecutor(RANGES) as pool:
                listed = list(pool.map(between, ["", *starts], [*starts, ""]))
            found = {each.key: each for each in chain.from_iterable(filter(None, listed))}
            if found.keys() >= set(keys):
                return iter(found.values())
        return self.bucket.objects(prefix)

    def download(self, path: str) -> Iterator[bytes]:
        with self.explained(path):
            yield from self.bucket.get(self._key(path))

    def copy(self, source: str, target: str) -> None:
        with self.explained(source):
            self.bucket.copy(self._key(source), self._key(target))

    def delete(self, path: str) -> None:
        with self.explained(path):
            self.bucket.delete(self._key(path))

    def swap(self, path: str, data: bytes | None, version: str) -> Swapped:
        with self.explained(path):
            return self.bucket.swap(self._key(path), data, version)

    def peek(self, path: str) -> Swapped:
        with self.explained(path):
            return self.bucket.peek(self._key(path))

    def sign_upload(
        self, path: str, size: int | None, *, expires_in: float
    ) -> PresignedUpload | None:
        with self.explained(path):
            made = self._signer.sign_upload(self._key(path), size, expires_in=expires_in)
        return made and replace(made, path=path)

    def sign_download(self, path: str, *, expires_in: float) -> PresignedRequest | None:
        with self.explained(path):
            return self._signer.sign_download(self._key(path), expires_in=expires_in)

    def complete(self, upload: PresignedUpload, parts: Sequence[UploadedPart]) -> str:
        with self.explained(upload.path):
            return self._signer.complete(replace(upload, path=self._key(upload.path)), parts)

    @property
    def _signer(self) -> BucketPresigner:
        """The bucket's presigner. Fetched each time, as it changes when the bucket is created."""
        signer = self.bucket.presigner
        assert signer is not None
        return signer

    def _key(self, path: str) -> str:
        if not is_inside(path):
            raise StoreError(f"{self.uri}: {path!r} is not a path inside the store")
        return self.prefix + encode_key(path)

    @contextlib.contextmanager
    def explained(self, path: str) -> Iterator[None]:
        if not self._is_reached:
            if why := no_network(self.bucket.url, made_up=True):
                raise StoreError(f"{self.uri}: {why}", hint=HINT)
            self._is_reached = True
        try:
            yield
        except CloudtrainError:
            raise
        except Exception as error:
            explained = self.bucket.explain(error)
            if explained is None:
                raise
            where = f"{self.uri}: {path}" if path else self.uri
            # Not `from error`: the SDKs' own errors contain the URLs given to nodes.
            raise explained.copy_with(what=where) from None


class CountingReader(io.RawIOBase):
    """File object over chunks, for SDKs to read; counts and digests the bytes."""

    def __init__(self, data: Iterable[bytes]) -> None:
        self._chunks = iter(data)
        self._left = b""
        self.size = 0
        self.sha256, self.md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def ahead(self, size: int) -> bytes:
        """The next `size` bytes, fewer at the end of the data; `read` yields them again."""
        parts, have = [self._left], len(self._left)
        while have < size and (chunk := next(self._chunks, None)) is not None:
            parts.append(chunk)
            have += len(chunk)
        self._left = b"".join(parts)
        return self._left[:size]

    def read(self, size: int | None = -1) -> bytes:
        """Read exactly `size` bytes; fewer only at the end of the data."""
        result = self.ahead(sys.maxsize if size is None or size < 0 else size)
        self._left = self._left[len(result) :]
        self.size += len(result)
        self.sha256.update(result)
        self.md5.update(result)
        return result

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)


def age_of(written: datetime, date: str | None) -> float:
    """Age in seconds by the clock of the service that wrote the `Date` header (RFC 9110, 6.6.1)."""
    here = datetime.fromtimestamp(moments.now(), timezone.utc)
    now = parsedate_to_datetime(date) if date else here
    return (now - written).total_seconds()


_ODD = re.compile("[\x00-\x1f\x7f%\\\\\udc80-\udcff]")


def encode_key(path: str) -> str:
    """Encode a path as part of a key: bytes that are not text, and characters that some service
    changes, become `%41`; all others stay."""
    return _ODD.sub(
        lambda odd: "".join(f"%{byte:02X}" for byte in odd[0].encode("utf-8", "surrogateescape")),
        path,
    )


def decode_key(key: str) -> str:
    return unquote_to_bytes(key).decode("utf-8", "surrogateescape")


def split(uri: str) -> list[str]:
    """Split a URI into its bucket, with its account before it if it has one, and the prefix after
    them. Raises UsageError."""
    kind = kind_of(uri)
    assert kind is not None, "the scheme of a store"
    parts = 2 if kind.in_account else 1
    names = uri.partition("://")[2].rstrip("/").split("/")
    if len(names) < parts or not all(names):
        raise UsageError(f"artifacts.store: {uri}: invalid, use {kind.form}")
    prefix = "/".join(names[parts:])
    if prefix and not is_inside(prefix):
        raise UsageError(f"artifacts.store: {uri}: {prefix!r} is not a valid prefix")
    return [*names[:parts], prefix]
