"""Code shared by all object stores: keys, streams, the check, error messages."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Protocol
from urllib.parse import unquote_to_bytes

from cloudtrain.core import moments
from cloudtrain.core.errors import CloudtrainError, StoreError, UsageError
from cloudtrain.core.model import Artifact
from cloudtrain.core.network import HINT, no_network
from cloudtrain.core.paths import is_inside
from cloudtrain.core.presign import PresignedRequest, PresignedUpload, Presigner, UploadedPart
from cloudtrain.core.protocols import StoredObject, Swapped

CHECKS = ".cloudtrain-check/"
"""Prefix of the objects that `check` writes; they are not artifacts."""


class DataBucket(Protocol):
    """One bucket or container as a source of data. Raises the SDK's own exceptions."""

    def stat(self, key: str) -> StoredObject | None: ...

    def objects(self, prefix: str) -> Iterator[StoredObject]: ...

    def read(self, key: str, version: str, offset: int) -> Iterator[bytes]: ...

    def sign_read(
        self, key: str, version: str, *, inside: str, expires_in: float
    ) -> PresignedRequest | None:
        """`inside`: start of the names of all objects of this data."""

    def location(self) -> str: ...


class Bucket(DataBucket, Protocol):
    """One bucket or container; objects are named by their full keys. Raises the SDK's own
    exceptions.
    """

    @property
    def url(self) -> str:
        """URL of the service."""

    @property
    def presigner(self) -> Presigner | None:
        """The presigner, which takes full keys too; None if the bucket has none."""

    def put(self, key: str, data: io.RawIOBase) -> str:
        """Upload; returns the version of an object whose MD5 is not listed, else ""."""

    def get(self, key: str) -> Iterator[bytes]: ...

    def keys(self, prefix: str) -> Iterator[StoredObject]:
        """Yield each object, sorted by key; its MD5 if that is one."""

    def copy(self, source: str, target: str) -> None:
        """Copy within the store."""

    def delete(self, key: str) -> None: ...

    def swap(self, key: str, data: bytes | None, version: str) -> Swapped:
        """Same as StoreBackend.swap."""

    def peek(self, key: str) -> Swapped:
        """Same as StoreBackend.peek."""

    def create(self, location: str | None, tags: Mapping[str, str] | None = None) -> bool:
        """Create a missing bucket, private to its owner, with these tags if its service has any;
        False if it already exists.
        """

    def explain(self, error: Exception) -> CloudtrainError | None:
        """Convert an exception of the SDK to ours; None for any other."""


Explained = Callable[[str], contextlib.AbstractContextManager[None]]
"""Returns, for a path, a context that converts the SDK's exceptions to ours."""


class ObjectStore:
    """StoreBackend in one bucket. An object becomes visible only when it is complete."""

    def __init__(self, uri: str, bucket: Bucket, prefix: str) -> None:
        self.uri = uri
        self.bucket = bucket
        self.prefix = f"{prefix}/" if prefix else ""
        self.presigner: Presigner | None = (
            _Presigner(bucket, self._key, self.explained) if bucket.presigner else None
        )

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

    def list(self, prefix: str = "") -> Iterator[Artifact]:
        start = self.prefix + encode_key(prefix)
        with self.explained(prefix):
            for found in self.bucket.keys(start):
                path = decode_key(found.key[len(self.prefix) :])
                if is_inside(path) and not path.startswith(CHECKS):
                    yield Artifact(
                        path=path,
                        size=found.size,
                        sha256="",
                        md5=found.md5,
                        version=found.version,
                    )

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

    def _key(self, path: str) -> str:
        if not is_inside(path):
            raise StoreError(f"{self.uri}: {path!r} is not a path inside the store")
        return self.prefix + encode_key(path)

    @contextlib.contextmanager
    def explained(self, path: str) -> Iterator[None]:
        why = no_network(self.bucket.url, made_up=True)
        if why is not None:
            raise StoreError(f"{self.uri}: {why}", hint=HINT)
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


class _Presigner:
    """Wraps a bucket's presigner: takes paths in the store, and converts the SDK's exceptions to
    ours.
    """

    def __init__(self, bucket: Bucket, key: Callable[[str], str], explained: Explained) -> None:
        self._bucket, self._key, self._explained = bucket, key, explained

    def sign_upload(
        self, path: str, size: int | None, *, expires_in: float
    ) -> PresignedUpload | None:
        with self._explained(path):
            made = self._its.sign_upload(self._key(path), size, expires_in=expires_in)
        return made and replace(made, path=path)

    def sign_download(self, path: str, *, expires_in: float) -> PresignedRequest | None:
        with self._explained(path):
            return self._its.sign_download(self._key(path), expires_in=expires_in)

    def complete(self, upload: PresignedUpload, parts: Sequence[UploadedPart]) -> str:
        with self._explained(upload.path):
            return self._its.complete(replace(upload, path=self._key(upload.path)), parts)

    @property
    def _its(self) -> Presigner:
        """The bucket's presigner. Fetched each time, as it changes when the bucket is created."""
        presigner = self._bucket.presigner
        assert presigner is not None
        return presigner


class CountingReader(io.RawIOBase):
    """File object over chunks, for SDKs to read; counts and digests the bytes."""

    def __init__(self, data: Iterable[bytes]) -> None:
        self._chunks = iter(data)
        self._left = b""
        self.size = 0
        self.sha256, self.md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        """Read exactly `size` bytes; fewer only at the end of the data."""
        wanted = None if size is None or size < 0 else size
        parts, have = [self._left], len(self._left)
        while wanted is None or have < wanted:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            parts.append(chunk)
            have += len(chunk)
        data = b"".join(parts)
        end = have if wanted is None else min(wanted, have)
        result, self._left = data[:end], data[end:]
        self.size += len(result)
        self.sha256.update(result)
        self.md5.update(result)
        return result

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)


class ChainedReader(io.RawIOBase):
    """Stream whose first bytes have already been read: yields these, then the rest."""

    def __init__(self, first: bytes, rest: io.RawIOBase) -> None:
        self._first = first
        self._rest = rest
        self._at = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        wanted = -1 if size is None else size
        if self._first and 0 <= wanted <= len(self._first):
            data, self._first = self._first[:wanted], self._first[wanted:]
        else:
            left = wanted - len(self._first) if wanted >= 0 else -1
            data, self._first = self._first + (self._rest.read(left) or b""), b""
        self._at += len(data)
        return data


def age_of(written: datetime, date: str | None) -> float:
    """The age in seconds, by the clock of the service that wrote the `Date` header (RFC 9110,
    6.6.1).
    """
    here = datetime.fromtimestamp(moments.now(), timezone.utc)
    now = parsedate_to_datetime(date) if date else here
    return (now - written).total_seconds()


_ODD = re.compile("[\x00-\x1f\x7f%\\\\\udc80-\udcff]")


def encode_key(path: str) -> str:
    """Encode a path as part of a key: bytes that are not text, and characters that some service
    changes, become `%41`; all others stay.
    """
    return _ODD.sub(
        lambda odd: "".join(f"%{byte:02X}" for byte in odd[0].encode("utf-8", "surrogateescape")),
        path,
    )


def decode_key(key: str) -> str:
    return unquote_to_bytes(key).decode("utf-8", "surrogateescape")


def split(uri: str, shape: str, parts: int) -> list[str]:
    """Split a URI into its first `parts` names and the prefix after them. Raises UsageError."""
    names = uri.partition("://")[2].rstrip("/").split("/")
    if len(names) < parts or not all(names):
        raise UsageError(f"artifacts.store: {uri}: invalid, use {shape}")
    prefix = "/".join(names[parts:])
    if prefix and not is_inside(prefix):
        raise UsageError(f"artifacts.store: {uri}: {prefix!r} is not a valid prefix")
    return [*names[:parts], prefix]
