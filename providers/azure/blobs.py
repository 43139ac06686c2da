"""Checks whether Blob Storage keeps, and bills for, files that were deleted or overwritten."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.errors import CloudError
from cloudtrain.protocols import Finding
from cloudtrain.providers.azure.client import ArmClient, ask_or_none
from cloudtrain.providers.azure.http import Tree


def retention(arm: ArmClient, store: str | None) -> Iterator[Finding]:
    """Report soft delete and versioning; the finding never fails. Yields nothing if these
    credentials cannot see the account.
    """
    if store is None or not store.startswith("az://"):
        return
    account = store.removeprefix("az://").partition("/")[0]
    try:
        properties = _properties(arm, account)
    except CloudError:
        return
    if properties is None:
        return
    soft, days = _retention(properties.get("deleteRetentionPolicy"))
    versions = bool(properties.get("isVersioningEnabled"))
    reasons = [f"soft delete ({days} days)"] if soft else []
    reasons += ["versioning"] if versions else []
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
    """Return the ID of a storage account; None if these credentials cannot see it."""
    listed = arm.pages_if_told(f"{arm.path}/providers/Microsoft.Storage/storageAccounts")
    ids = (str(one["id"]) for one in listed if str(one.get("name", "")).lower() == account.lower())
    return next(ids, None)


def _properties(arm: ArmClient, account: str) -> Tree | None:
    id = account_id(arm, account)
    answer = ask_or_none(lambda: arm.get(f"{id}/blobServices/default")) if id else None
    return None if answer is None else answer.get("properties") or {}


def _retention(policy: Tree | None) -> tuple[bool, int]:
    return bool((policy or {}).get("enabled")), int((policy or {}).get("days") or 0)
