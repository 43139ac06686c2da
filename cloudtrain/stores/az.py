"""Artifacts in Azure Blob Storage, with azure-storage-blob."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from typing import Any

from cloudtrain.errors import CloudtrainError, CredentialsError, PermissionsError, StoreError
from cloudtrain.protocols import Receipt, Ticket
from cloudtrain.stores.objects import Chained, ObjectStore, Stream, split

PART = 4 << 20


class AzureStore(ObjectStore):
    """`az://ACCOUNT/CONTAINER/prefix`. Credentials are AZURE_STORAGE_CONNECTION_STRING's where it
    names this account, otherwise those of azure-identity's own chain."""

    def __init__(self, uri: str, *, endpoint: str | None = None) -> None:
        account, container, prefix = split(uri, "az://ACCOUNT/CONTAINER/prefix", 2)
        super().__init__(uri, _Container(account, container, endpoint), prefix)


class _Container:
    def __init__(self, account: str, container: str, endpoint: str | None) -> None:
        import azure.core.exceptions

        self._errors = azure.core.exceptions
        self._container: Any = _service(account, endpoint).get_container_client(container)

    def put(self, key: str, data: io.RawIOBase) -> None:
        blob = self._container.get_blob_client(key)
        first = data.read(PART) or b""
        # The SDK asks an empty stream for more for ever, in several threads.
        whole = first if len(first) < PART else Chained(first, data)
        blob.upload_blob(whole, overwrite=True, max_concurrency=4, validate_content=True)

    def get(self, key: str) -> Iterator[bytes]:
        yield from self._container.get_blob_client(key).download_blob(max_concurrency=4).chunks()

    def keys(self, prefix: str) -> Iterator[tuple[str, int, str]]:
        for blob in self._container.list_blobs(name_starts_with=prefix or None):
            yield blob.name, blob.size, ""

    def copy(self, source: str, target: str) -> None:
        self.put(target, Stream(self.get(source)))

    def create(self, location: str | None) -> bool:
        raise NotImplementedError

    def ticket(self, key: str, size: int | None, *, lasts: float) -> Ticket | None:
        return None

    def commit(self, ticket: Ticket, receipts: Sequence[Receipt]) -> None:
        raise NotImplementedError

    def delete(self, key: str) -> None:
        self._container.get_blob_client(key).delete_blob()

    def explain(self, error: Exception) -> CloudtrainError | None:
        """Codes: the REST reference, "Blob service error codes"."""
        if isinstance(error, self._errors.HttpResponseError):
            words = (error.message or str(error)).split("\n")[0]
            if isinstance(error, self._errors.ClientAuthenticationError):
                code = str(getattr(error, "error_code", ""))
                if "Authorization" in code:
                    return PermissionsError(words, hint=_ROLE)
                return CredentialsError(words, hint="`az login`")
            if error.status_code == 403:
                return PermissionsError(words, hint=_ROLE)
            if error.status_code == 404:
                return StoreError(words, hint="`az storage container create` makes a container")
        if isinstance(error, self._errors.AzureError):
            return StoreError(str(error), hint="run the same command again; it goes on from here")
        return None


_ROLE = "the role `Storage Blob Data Contributor` on the container"


def _service(account: str, endpoint: str | None) -> Any:
    from azure.storage.blob import BlobServiceClient

    told = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    if told:
        try:
            service = BlobServiceClient.from_connection_string(told)
        except ValueError as error:
            raise CredentialsError(
                f"AZURE_STORAGE_CONNECTION_STRING: {error}", hint="take it from the portal anew"
            ) from None
        if service.account_name == account:
            return service
    from azure.identity import DefaultAzureCredential

    url = endpoint or f"https://{account}.blob.core.windows.net"
    return BlobServiceClient(url, credential=DefaultAzureCredential())
