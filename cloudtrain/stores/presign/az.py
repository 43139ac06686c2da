"""Presigns requests to Azure Blob Storage, one for each block of a large file."""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote, urlencode

from cloudtrain.core import moments
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.presign import PresignedRequest, PresignedUpload, UploadedPart
from cloudtrain.core.retry import Clock
from cloudtrain.core.shell import Secret

# ── shared access signatures ───────────────────────────────────────────────────
# The SDK's own signatures are not used: they are only for its newest version of the service, whose
# user delegation keys an emulator or an older private cloud does not support.


VERSION = "2020-12-06"
"""Version of the service. Since 2019-12-12, a request may have 5,000 MiB and a block 4,000 MiB."""

WRITE, READ = "cw", "r"

WEEK = 7 * 86400.0
"""Maximum validity of a user delegation key, in seconds."""

SKEW = 900.0
"""Seconds by which clocks may differ, as the service's documentation advises."""

REFUSED = 60.0
"""Seconds for which a refusal is cached."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """Signing key in base64. `facts`: fields of a user delegation key that a signature includes."""

    value: Secret
    facts: Mapping[str, str] = field(default_factory=dict)
    expires: float = float("inf")
    """Unix time at which the key, and every signature by it, expires."""


Signer = Callable[[float], Key]
"""Function for a key that is valid for at least so many seconds."""


def blob_sas(
    account: str,
    container: str,
    blob: str,
    key: Key,
    *,
    expires: float,
    https: bool,
    right: str = WRITE,
) -> str:
    """A query string that lets its bearer create and write this blob, or read it, and nothing else.

    It has no start time, so that it is valid at once even if clocks differ. `https`: valid only
    over TLS. https://learn.microsoft.com/rest/api/storageservices/create-service-sas
    https://learn.microsoft.com/rest/api/storageservices/create-user-delegation-sas
    """
    start, end = "", _moment(min(expires, key.expires)).strftime("%Y-%m-%dT%H:%M:%SZ")
    protocol = "https" if https else ""
    policy, address, snapshot, scope, answer = "", "", "", "", [""] * 5
    # After the key's facts: on whose behalf, and the correlation id of the customer's log.
    by = [*key.facts.values(), "", "", ""] if key.facts else [policy]
    name = f"/blob/{account}/{container}/{blob}"
    about = [address, protocol, VERSION, "b", snapshot, scope, *answer]
    signed = "\n".join([right, start, end, name, *by, *about])
    digest = hmac.digest(base64.b64decode(key.value.reveal()), signed.encode(), hashlib.sha256)
    query = {"sv": VERSION, "sr": "b", "sp": right, "se": end, "spr": protocol, **key.facts}
    query["sig"] = base64.b64encode(digest).decode()
    return urlencode({name: value for name, value in query.items() if value})


class DelegationKey:
    """Signs with a user delegation key that the service issues, requested as rarely as possible."""

    def __init__(self, service: Any, clock: Callable[[], float] = moments.now) -> None:
        self._service, self._clock = service, clock
        self._lock = threading.Lock()
        self._key: Key | None = None
        self._refusal: Exception | None = None
        self._refused_until = 0.0

    def key(self, lasts: float) -> Key:
        """A key valid for `lasts` seconds, or nearly a week. Raises the service's refusal."""
        with self._lock:
            now = self._clock()
            if self._refusal is not None and now < self._refused_until:
                raise self._refusal
            if self._key is None or self._key.expires < now + min(lasts, WEEK - 4 * SKEW):
                self._key = self._asked(now)
            return self._key

    def _asked(self, now: float) -> Key:
        expires = now + WEEK - 2 * SKEW
        try:
            got = self._service.get_user_delegation_key(_moment(now - SKEW), _moment(expires))
        except Exception as error:
            self._refusal, self._refused_until = error, now + REFUSED
            raise
        facts = {
            "skoid": got.signed_oid,
            "sktid": got.signed_tid,
            "skt": got.signed_start,
            "ske": got.signed_expiry,
            "sks": got.signed_service,
            "skv": got.signed_version,
        }
        return Key(value=Secret(got.value), facts=facts, expires=expires)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(int(seconds), timezone.utc)


# ── requests ───────────────────────────────────────────────────────────────────


SMALL = 16 << 20
"""Maximum size in bytes of a file that a node uploads in one request."""

MOST_BLOCKS = 50_000
"""https://learn.microsoft.com/azure/storage/blobs/scalability-targets"""

HEADERS = {"x-ms-version": VERSION}


class AzurePresigner:
    """Presigner for one container; blobs are named by key. Raises the SDK's exceptions."""

    def __init__(
        self, account: str, name: str, container: Any, signer: Signer, clock: Clock
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

    def sign_read(
        self, key: str, version: str, *, inside: str, expires_in: float
    ) -> PresignedRequest:
        """Sign a GET of one blob. The node adds the condition: a signature has none."""
        url = Secret(self._signed(key, READ, expires_in))
        return PresignedRequest(url=url, method="GET", headers={**HEADERS, "If-Match": version})

    def complete(self, upload: PresignedUpload, parts: Sequence[UploadedPart]) -> str:
        names = [base64.b64decode(part.block).decode() for part in parts]
        blob = self._container.get_blob_client(upload.path)
        made = blob.commit_block_list([self._blob.BlobBlock(name) for name in names])
        return quoted(made["etag"])

    def _signed(self, key: str, right: str, expires_in: float) -> str:
        url: str = self._container.url
        query = blob_sas(
            self._account,
            self._name,
            key,
            self._signer(expires_in),
            expires=self._clock.now() + expires_in,
            https=url.startswith("https:"),
            right=right,
        )
        return f"{url}/{quote(key, safe='/~')}?{query}"

    def _uploaded(self, key: str) -> frozenset[str]:
        """The blocks that an earlier attempt left, by the names that nodes give them."""
        try:
            _, found = self._container.get_blob_client(key).get_block_list("uncommitted")
        except self._errors.HttpResponseError:  # none, or no right to list them: all are sent
            return frozenset()
        return frozenset(base64.b64encode(block.id.encode()).decode() for block in found)


def signer_of(service: Any, refuses_keys: Callable[[], bool]) -> Signer | None:
    """Signer for a service's credentials; None if they are themselves only a signature. The key of
    the account itself signs, unless the account turned out to refuse it."""
    delegation, key = DelegationKey(service), getattr(service.credential, "account_key", None)
    if key:
        own = Key(value=Secret(key))
        return lambda lasts: delegation.key(lasts) if refuses_keys() else own
    return delegation.key if hasattr(service.credential, "get_token") else None


def quoted(tag: object) -> str:
    """Listings have an ETag without its quotes, answers with them."""
    text = str(tag)
    return text if text.startswith('"') else f'"{text}"'


def _parts(size: int) -> Iterator[tuple[int, int | None]]:
    """Yield offsets and lengths of parts; the last one, None, ends with the file at its upload."""
    length = max(SMALL, -(-size // (MOST_BLOCKS << 20)) << 20)
    last = (size - 1) // length * length
    for offset in range(0, last, length):
        yield offset, length
    yield last, None
