"""Artifacts in Azure Blob Storage, with azure-storage-blob."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from azure.core.pipeline.transport import RequestsTransport

from cloudtrain.core import errors, moments
from cloudtrain.core.protocols import SMALL, StoredObject, Swapped
from cloudtrain.core.retry import CLOCK, Clock, Retry, poll_until
from cloudtrain.identities.azure import identity
from cloudtrain.stores import StoreWishes
from cloudtrain.stores.objects import AGAIN, CountingReader, ObjectStore, age_of, split
from cloudtrain.stores.presign.az import MOST_BLOCKS, AzurePresigner, quoted, signer_of

PART = 4 << 20
"""Bytes in a block uploaded by this machine; later blocks of a very long stream are larger."""

SIDE_BY_SIDE = 4

RETRIES: dict[str, Any] = {
    "retry_total": 5,
    "initial_backoff": 1,
    "increment_base": 2,
    "random_jitter_range": 1,
}
"""Retries for about half a minute; the SDK's own start with a pause of 15 s."""

COPIES = Retry(pause=0.1, backoff=2.0, longest=5.0)
"""Polling of a copy within the store."""

COPY_SECONDS = 120.0
"""Seconds without progress after which a copy goes through this machine instead."""


def opened(
    uri: str, *, endpoint: str | None, project: str | None, wishes: StoreWishes
) -> ObjectStore:
    """Open `az://ACCOUNT/CONTAINER/prefix`. Uses the credentials in AZURE_STORAGE_CONNECTION_STRING
    if it names this account, else azure-identity's standard chain."""
    account, container, prefix = split(uri)
    return ObjectStore(uri, _Container(account, container, endpoint, CLOCK), prefix)


class _Container:
    def __init__(self, account: str, container: str, endpoint: str | None, clock: Clock) -> None:
        import azure.core.exceptions
        import azure.storage.blob

        self._errors = azure.core.exceptions
        self._blob = azure.storage.blob
        self._account, self._clock = account, clock
        service, by_key = _service(account, endpoint)
        self.url = str(service.url)
        signer = signer_of(service, lambda: by_key is not None and by_key.refuses_keys)
        self._container: Any = service.get_container_client(container)
        self.presigner = (
            AzurePresigner(account, container, self._container, signer, clock) if signer else None
        )

    def put(self, key: str, data: CountingReader) -> str:
        blob = self._container.get_blob_client(key)
        first = data.read(PART)
        if len(first) < PART:  # all of it is here: one request
            blob.upload_blob(first, overwrite=True, validate_content=True)
            return ""
        return quoted(blob.commit_block_list(list(self._staged(blob, first, data)))["etag"])

    def _staged(self, blob: Any, first: bytes, data: CountingReader) -> Iterator[Any]:
        """Stage blocks with the same kind of names that nodes use: all block names of a blob must
        have the same form, and blocks of a failed attempt stay for a week."""

        def stage(name: str, part: bytes) -> Any:
            blob.stage_block(name, part, length=len(part), validate_content=True)
            return self._blob.BlobBlock(name)

        waiting: deque[Future[Any]] = deque()
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            part, offset, number = first, 0, 0
            while part:
                name = f"{offset:016d}{hashlib.md5(part).hexdigest()}"
                waiting.append(pool.submit(stage, name, part))
                if len(waiting) > SIDE_BY_SIDE:
                    yield waiting.popleft().result()
                offset, number = offset + len(part), number + 1
                part = data.read(PART << number // (MOST_BLOCKS // 5))
            while waiting:
                yield waiting.popleft().result()

    def get(self, key: str) -> Iterator[bytes]:
        yield from self._container.get_blob_client(key).download_blob(max_concurrency=4).chunks()

    def stat(self, key: str) -> StoredObject | None:
        try:
            return _described(self._container.get_blob_client(key).get_blob_properties())
        except self._errors.ResourceNotFoundError:  # also the container: the listing tells
            return None

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """List blobs. Folders of a hierarchical namespace are blobs with this metadata:
        https://learn.microsoft.com/azure/storage/blobs/storage-blobs-list"""
        found = self._container.list_blobs(name_starts_with=prefix or None, include=["metadata"])
        yield from map(_described, found)

    def between(self, prefix: str, after: str, last: str, *, page: int) -> None:
        return None  # 5,000 in each page, and no way to begin after a name

    def read(self, key: str, version: str, offset: int) -> Iterator[bytes]:
        from azure.core import MatchConditions

        yield from (
            self._container.get_blob_client(key)
            .download_blob(
                offset=offset, etag=version, match_condition=MatchConditions.IfNotModified
            )
            .chunks()
        )

    def location(self) -> str:
        """Nothing: the account's region is not known to its blob service."""
        return ""

    def copy(self, source: str, target: str) -> None:
        try:
            done = self._copied(source, target)
        except self._errors.HttpResponseError:  # the other way succeeds, or reports it in full
            done = False
        if not done:
            self.put(target, CountingReader(self.get(source)))

    def _copied(self, source: str, target: str) -> bool:
        blob = self._container.get_blob_client(target)
        copy = blob.start_copy_from_url(self._container.get_blob_client(source).url)
        if copy["copy_status"] != "pending":
            return bool(copy["copy_status"] == "success")
        progress, deadline = None, self._clock.monotonic() + COPY_SECONDS

        def ended() -> bool | None:
            nonlocal progress, deadline
            now = blob.get_blob_properties().copy
            if now.status != "pending":
                return bool(now.status == "success")
            if now.progress != progress:
                progress, deadline = now.progress, self._clock.monotonic() + COPY_SECONDS
            elif self._clock.monotonic() > deadline:
                blob.abort_copy(copy["copy_id"])
                return False
            return None

        return bool(poll_until(ended, COPIES, clock=self._clock))

    def delete(self, key: str) -> None:
        with contextlib.suppress(self._errors.ResourceNotFoundError):
            self._container.delete_blob(key, delete_snapshots="include")

    def create(self, location: str | None, tags: Mapping[str, str] | None = None) -> bool:
        """Create the container in the account's region; private, as containers are by default. A
        container has no tags: those of its account count."""
        if self._container.exists():
            return False
        try:
            self._container.create_container()
        except self._errors.ResourceExistsError as error:
            if _code(error) != "ContainerAlreadyExists":
                raise
            return False
        return True

    def swap(self, key: str, data: bytes | None, version: str) -> Swapped:
        """https://learn.microsoft.com/rest/api/storageservices/specifying-conditional-headers-for-blob-service-operations"""
        from azure.core import MatchConditions

        blob = self._container.get_blob_client(key)
        condition = {"etag": version, "match_condition": MatchConditions.IfNotModified}
        try:
            if data is not None:
                wanted = condition if version else {}
                made = blob.upload_blob(data, overwrite=bool(version), **wanted)
                return Swapped(done=True, version=made["etag"])
            if version:
                blob.delete_blob(**condition)
            return Swapped(done=True)
        except (
            self._errors.ResourceExistsError,
            self._errors.ResourceModifiedError,
            self._errors.ResourceNotFoundError,
        ) as error:
            if _code(error) not in _NOT_THAT_VERSION:
                raise
        return self.peek(key)

    def peek(self, key: str) -> Swapped:
        blob = self._container.get_blob_client(key)
        dates: list[str] = []

        def hear(answer: Any) -> None:
            dates.append(answer.http_response.headers.get("Date", ""))

        try:
            found = blob.download_blob(raw_response_hook=hear)
            return Swapped(
                done=False,
                version=found.properties.etag,
                data=found.read(SMALL),
                age=age_of(found.properties.last_modified, dates[0] if dates else None),
            )
        except self._errors.ResourceNotFoundError as error:
            if _code(error) != "BlobNotFound":
                raise
            return Swapped(done=False)

    def explain(self, error: Exception) -> errors.CloudtrainError | None:
        if not isinstance(error, self._errors.AzureError):
            return None
        text = _SIGNATURE.sub(r"\1***", str(error.message or error).split("\n")[0])
        code, status = _code(error), getattr(error, "status_code", None)
        if code in _HINTS:
            kind = errors.NoBucketError if code == "ContainerNotFound" else errors.StoreError
            return kind(f"{code}: {text}", hint=_HINTS[code])
        if code in _UNKNOWN_CALLER or status == 401:
            return errors.CredentialsError(text, hint=_LOGIN)
        if status == 403:
            return errors.PermissionsError(f"{code}: {text}" if code else text, hint=_ROLE)
        if isinstance(error, self._errors.ClientAuthenticationError):  # azure-identity's own
            return errors.CredentialsError(text, hint=_LOGIN)
        if isinstance(error, self._errors.ServiceRequestError) and _NO_SUCH_HOST.search(text):
            hint = f"create one with `az storage account create --name {self._account} …`"
            return errors.StoreAway(text, hint=hint)  # or this machine has no network
        silent = (self._errors.ServiceRequestError, self._errors.ServiceResponseError)
        passes = isinstance(error, silent) or (status or 0) >= 500 or status == 429
        kind = errors.StoreAway if passes else errors.StoreError
        return kind(f"{code}: {text}" if code else text, hint=AGAIN)


def _described(blob: Any) -> StoredObject:
    return StoredObject(
        key=blob.name,
        size=blob.size,
        version=quoted(blob.etag),
        md5=bytes(blob.content_settings.content_md5 or b"").hex(),
        is_folder=(blob.metadata or {}).get("hdi_isfolder") == "true",
        is_archived=blob.blob_tier == "Archive",
    )


_LOGIN = "run `az login`, or set AZURE_STORAGE_CONNECTION_STRING with this account's own key"
_ROLE = (
    "you need the role `Storage Blob Data Contributor` on the storage account, "
    "and access through its firewall"
)
# https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes
# https://learn.microsoft.com/rest/api/storageservices/common-rest-api-error-codes
_HINTS = {
    "ContainerNotFound": "run `az storage container create`, or set `artifacts.create: true`",
    "ContainerBeingDeleted": "wait half a minute or more, then run the command again",
    "Md5Mismatch": "the data was damaged in transit; run the command again",
}
_NOT_THAT_VERSION = (
    "BlobAlreadyExists",
    "BlobNotFound",
    "ConditionNotMet",
    "TargetConditionNotMet",
    "UnauthorizedBlobOverwrite",
)
_UNKNOWN_CALLER = (
    "AuthenticationFailed",
    "InvalidAuthenticationInfo",
    "NoAuthenticationInformation",
)
_SIGNATURE = re.compile(r"(\bsig=)[^&\s'\"]+")
_NO_SUCH_HOST = re.compile("resolve|not known|getaddrinfo|No address associated", re.IGNORECASE)


def _code(error: Exception) -> str:
    """The service's own error code; the SDK uses an Enum for codes that it knows."""
    code = getattr(error, "error_code", None) or ""
    return str(getattr(code, "value", code))


def heard(answer: Any) -> None:
    moments.hear(answer.http_response.headers.get("Date"), asked=moments.since_boot(), who="Azure")


class KeyOrIdentity(RequestsTransport):  # type: ignore[misc]
    """Sends what the account's key signed; once the account refuses keys, by the user's identity.
    Companies turn keys off by policy, while the connection string stays in the environment:
    https://learn.microsoft.com/azure/storage/common/shared-key-authorization-prevent"""

    refuses_keys = False

    def send(self, request: Any, **given: Any) -> Any:
        if self.refuses_keys:
            return super().send(_by_identity(request), **given)
        answer = super().send(request, **given)
        refused = answer.headers.get("x-ms-error-code") == "KeyBasedAuthenticationNotPermitted"
        if not refused or not request.url.startswith("https:"):
            return answer
        self.refuses_keys = True
        return super().send(_by_identity(request), **given)


def _by_identity(request: Any) -> Any:
    token = identity().token("https://storage.azure.com/.default")
    request.headers["Authorization"] = f"Bearer {token}"
    return request


def _service(account: str, endpoint: str | None) -> tuple[Any, KeyOrIdentity | None]:
    from azure.storage.blob import BlobServiceClient

    connection = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    if connection:
        try:
            transport = KeyOrIdentity()
            service = BlobServiceClient.from_connection_string(
                connection, transport=transport, **RETRIES
            )
        except ValueError as error:
            text = _SIGNATURE.sub(r"\1***", str(error))
            raise errors.CredentialsError(
                f"AZURE_STORAGE_CONNECTION_STRING: {text}", hint="copy it from the portal again"
            ) from None
        if service.account_name == account:
            return service, transport
    own: dict[str, Any] = {} if endpoint else {"raw_response_hook": heard}
    url = endpoint or f"https://{account}.blob.core.windows.net"
    return BlobServiceClient(url, credential=identity(), **own, **RETRIES), None
