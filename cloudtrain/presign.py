"""Presigned requests: a node's right to store or read one file of a store, and no credential."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cloudtrain.shell import Secret


@dataclass(frozen=True, kw_only=True)
class PresignedRequest:
    """One HTTP request with which a node stores bytes of one file, or a GET with which it reads
    one.

    `url` and `headers` are the right to do so: short-lived, for this object alone. The body is
    `length` bytes of the file from `offset` (None: to its end), between `before` and `after`.
    In url and before, `{md5}` stands for the MD5 of those bytes in base64, `{block}` for a name
    made of the offset and that MD5. Without `before` it is sent as Content-MD5 too, so that the
    service refuses what did not arrive as it was sent.
    """

    url: Secret
    method: str = "PUT"
    headers: Mapping[str, str | Secret] = field(default_factory=dict)
    offset: int = 0
    length: int | None = None
    before: str = ""
    after: str = ""


@dataclass(frozen=True, kw_only=True)
class UploadedPart:
    """What a node tells of one request that was done: the part's ETag, and the block's name."""

    etag: str
    block: str
    size: int
    md5: str
    """Of the bytes, in hex."""


@dataclass(frozen=True, kw_only=True)
class PresignedUpload:
    """A node's right to store one file, made here without a call where that can be.

    With several requests the file is visible after `complete` alone. `uploaded`: names of blocks,
    `{block}`, that the store has of an earlier try: a node does not send them again.
    `resumable`: its one request is a Google resumable session, sent in chunks of `chunk` bytes.
    """

    path: str
    requests: tuple[PresignedRequest, ...]
    upload_id: str = ""
    """The store's own name of what `complete` ends."""
    uploaded: frozenset[str] = frozenset()
    chunk: int = 0

    @property
    def resumable(self) -> bool:
        return self.chunk > 0


class Presigner(Protocol):
    """Signs requests for nodes. One for each kind of store whose service takes such: in
    stores/presign. Raises StoreError."""

    def sign_upload(
        self, path: str, size: int | None, *, expires_in: float
    ) -> PresignedUpload | None:
        """Let a node store the file itself, within that many seconds; None: it must come here.

        `size` None: not known yet, one request for whatever it will be, 4 GiB at most.
        """

    def sign_download(self, path: str, *, expires_in: float) -> PresignedRequest | None:
        """Let a node read the file itself, within that many seconds; None: it must come here."""

    def complete(self, upload: PresignedUpload, parts: Sequence[UploadedPart]) -> None:
        """Make a file of several requests visible, whole, once all of them were done."""
