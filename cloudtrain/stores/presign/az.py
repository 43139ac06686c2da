"""Presigns requests to Azure Blob Storage with a shared access signature, one request for each
block of a large file.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

from cloudtrain.core.presign import PresignedRequest, PresignedUpload, UploadedPart
from cloudtrain.core.retry import Clock
from cloudtrain.core.shell import Secret
from cloudtrain.stores.presign.sas import READ, VERSION, WRITE, AccountKey, DelegationKey, blob_sas

SMALL = 16 << 20
"""Maximum size in bytes of a file that a node uploads in one request."""

MOST_BLOCKS = 50_000
"""https://learn.microsoft.com/azure/storage/blobs/scalability-targets"""

HEADERS = {"x-ms-version": VERSION}


class AzurePresigner:
    """Presigner for one container; blobs are named by key. Raises the SDK's exceptions."""

    def __init__(
        self,
        account: str,
        name: str,
        container: Any,
        signer: AccountKey | DelegationKey,
        clock: Clock,
    ) -> None:
        import azure.core.exceptions
        import azure.storage.blob

        self._errors = azure.core.exceptions
        self._blob = azure.storage.blob
        self._account, self._name = account, name
        self._container, self._signer, self._clock = container, signer, clock

    def sign_upload(self, key: str, size: int | None, *, expires_in: float) -> PresignedUpload:
        url = self._signed(key, WRITE, expires_in)
        if size is None or size <= SMALL:
            headers = {**HEADERS, "x-ms-blob-type": "BlockBlob"}
            whole = PresignedRequest(url=Secret(url), headers=headers)
            return PresignedUpload(path=key, requests=(whole,))
        block = Secret(f"{url}&comp=block&blockid={{block}}")
        parts = tuple(
            PresignedRequest(url=block, headers=HEADERS, offset=offset, length=length)
            for offset, length in _parts(size)
        )
        return PresignedUpload(path=key, requests=parts, uploaded=self._uploaded(key))

    def sign_download(self, key: str, *, expires_in: float) -> PresignedRequest:
        url = Secret(self._signed(key, READ, expires_in))
        return PresignedRequest(url=url, method="GET", headers=HEADERS)

    def sign_read(self, key: str, version: str, *, expires_in: float) -> PresignedRequest:
        """Sign a GET of one blob. The node adds the condition: a signature has none."""
        url = Secret(self._signed(key, READ, expires_in))
        return PresignedRequest(url=url, method="GET", headers={**HEADERS, "If-Match": version})

    def complete(self, upload: PresignedUpload, parts: Sequence[UploadedPart]) -> str:
        names = [base64.b64decode(part.block).decode() for part in parts]
        blob = self._container.get_blob_client(upload.path)
        made = blob.commit_block_list([self._blob.BlobBlock(name) for name in names])
        tag = str(made["etag"])
        return tag if tag.startswith('"') else f'"{tag}"'

    def _signed(self, key: str, right: str, expires_in: float) -> str:
        url: str = self._container.url
        query = blob_sas(
            self._account,
            self._name,
            key,
            self._signer.key(expires_in),
            expires=self._clock.now() + expires_in,
            https=url.startswith("https:"),
            right=right,
        )
        return f"{url}/{quote(key, safe='/~')}?{query}"

    def _uploaded(self, key: str) -> frozenset[str]:
        """Return the blocks that an earlier attempt left, by the names that nodes give them."""
        try:
            _, found = self._container.get_blob_client(key).get_block_list("uncommitted")
        except self._errors.HttpResponseError:  # none, or no right to list them: all are sent
            return frozenset()
        return frozenset(base64.b64encode(block.id.encode()).decode() for block in found)


def signer_of(service: Any, refuses_keys: Callable[[], bool]) -> AccountKey | DelegationKey | None:
    """Signer for a service's credentials; None if they are themselves only a signature."""
    key = getattr(service.credential, "account_key", None)
    if key:
        return AccountKey(key, DelegationKey(service), refuses_keys)
    return DelegationKey(service) if hasattr(service.credential, "get_token") else None


def _parts(size: int) -> Iterator[tuple[int, int | None]]:
    """Yield offsets and lengths of parts. The last has no length: it extends to the end of the file
    at the time of the upload.
    """
    length = max(SMALL, -(-size // (MOST_BLOCKS << 20)) << 20)
    last = (size - 1) // length * length
    for offset in range(0, last, length):
        yield offset, length
    yield last, None
