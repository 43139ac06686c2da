"""Presigned requests: let a node upload or download one file of a store without a credential."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.shell import Secret


@dataclass(frozen=True, kw_only=True)
class PresignedRequest:
    """One HTTP request with which a node uploads bytes of one file, or a GET to download one.

    `url` and `headers` grant access: short-lived, for this object only. The body is `length` bytes
    of the file from `offset` (None: to its end), between `before` and `after`. In `url` and
    `before`, `{md5}` is replaced by the MD5 of those bytes in base64, `{block}` by a name of the
    offset and that MD5. Without `before`, the MD5 is also sent as Content-MD5, so that the service
    refuses corrupted data."""

    url: Secret
    method: str = "PUT"
    headers: Mapping[str, str | Secret] = field(default_factory=dict)
    offset: int = 0
    length: int | None = None
    before: str = ""
    after: str = ""


@dataclass(frozen=True, kw_only=True)
class UploadedPart:
    """A node's report of one completed request: the part's ETag, and the block's name."""

    etag: str
    block: str
    size: int
    md5: str
    """Of the bytes, in hex."""


@dataclass(frozen=True, kw_only=True)
class PresignedUpload:
    """Requests with which a node uploads one file, signed locally where possible.

    With several requests the file is visible only after `complete`. `uploaded`: names of blocks
    (`{block}`) that the store has from an earlier attempt: a node does not send them again.
    `resumable`: its one request is a Google resumable session, sent in chunks of `chunk` bytes."""

    path: str
    requests: tuple[PresignedRequest, ...]
    upload_id: str = ""
    """The store's id of the upload that `complete` ends."""
    uploaded: frozenset[str] = frozenset()
    chunk: int = 0

    @property
    def resumable(self) -> bool:
        return self.chunk > 0


class Presigner(Protocol):
    """Signs requests for nodes, one for each kind of store (stores/presign). Raises StoreError."""

    def sign_upload(
        self, path: str, size: int | None, *, expires_in: float
    ) -> PresignedUpload | None:
        """Let a node upload the file itself, within that many seconds; None if it cannot. `size`
        None: not known yet; one request for up to 4 GiB."""

    def sign_download(self, path: str, *, expires_in: float) -> PresignedRequest | None:
        """Let a node download the file itself, within that many seconds; None if it cannot."""

    def complete(self, upload: PresignedUpload, parts: Sequence[UploadedPart]) -> str:
        """Make a file of several requests visible once all of them are done; returns the store's
        version of it, "" if not reported."""
