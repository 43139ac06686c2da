"""Checks whether Blob Storage keeps, and bills for, files that were deleted or overwritten."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.core.errors import if_told
from cloudtrain.core.protocols import Finding
from cloudtrain.providers.azure.client import ArmClient
from cloudtrain.providers.base.http import Tree


def retention(arm: ArmClient, store: str | None) -> Iterator[Finding]:
    """Report soft delete and versioning; the finding never fails. Yields nothing if these
    credentials cannot see the account."""
    if store is None or not store.startswith("az://"):
        return
    account = store.removeprefix("az://").partition("/")[0]
    properties = if_told(lambda: _properties(arm, account), None)
    if properties is None:
        return
    kept = properties.get("deleteRetentionPolicy") or {}
    reasons = [f"soft delete ({kept.get('days') or 0} days)"] if kept.get("enabled") else []
    reasons += ["versioning"] if properties.get("isVersioningEnabled") else []
    if not reasons:
        yield Finding(what="blobs", ok=True, text=f"{account} does not keep deleted files")
        return
    text = (
        f"{account} has {' and '.join(reasons)} enabled: each replaced checkpoint is still stored "
        "and billed for that time"
    )
    yield Finding(
        what="blobs",
        ok=True,
        text=text,
        hint="run `az storage account blob-service-properties update --enable-delete-retention "
        f"false --account-name {account}`, or use a separate account for training",
    )


def account_id(arm: ArmClient, account: str) -> str | None:
    """The ID of a storage account; None if these credentials cannot see it."""
    path = f"{arm.path}/providers/Microsoft.Storage/storageAccounts"
    listed = if_told(lambda: arm.pages(path), [])
    ids = (str(one["id"]) for one in listed if str(one.get("name", "")).lower() == account.lower())
    return next(ids, None)


def _properties(arm: ArmClient, account: str) -> Tree | None:
    id = account_id(arm, account)
    return arm.get(f"{id}/blobServices/default").get("properties") or {} if id else None
