"""Check the managed identity of `identity`: it exists, may be attached, and may use the buckets.

https://learn.microsoft.com/rest/api/managedidentity/user-assigned-identities/get and
https://learn.microsoft.com/rest/api/authorization/role-assignments/list-for-scope, read 2026-11-22;
not tried on a real subscription.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from cloudtrain.core.errors import CloudError, NotFoundError, PermissionsError, if_told
from cloudtrain.core.model import Plan
from cloudtrain.core.protocols import Finding
from cloudtrain.core.store_kinds import own_uris
from cloudtrain.providers.azure import blobs, faults, paths, permissions
from cloudtrain.providers.azure.client import ArmClient
from cloudtrain.providers.azure.facts import FACTS
from cloudtrain.providers.base.findings import NotChecked, finding
from cloudtrain.providers.base.http import Tree
from cloudtrain.providers.base.words import NOT_REPORTED

READS, ASSIGNS = permissions.ON_IDENTITY
ROLES = {
    # https://learn.microsoft.com/azure/role-based-access-control/built-in-roles/storage, 2026-11-22
    "b7e6dc6d-f1e8-4753-8033-0f276bb0955b": "Storage Blob Data Owner",
    "ba92f5b4-2d11-453d-a403-e96b0029c9fe": "Storage Blob Data Contributor",
    "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1": "Storage Blob Data Reader",
}


def check(arm: ArmClient, plan: Plan) -> Iterator[Finding]:
    """Yield the findings; none without `identity`. What cannot be asked fails nothing."""
    if plan.config.identity is None:
        return
    id, principals = paths.identity(arm.subscription, plan.config.identity), []

    def attachable() -> str:
        found = _identity(arm, id)
        principals.append(str((found.get("properties") or {}).get("principalId") or ""))
        return _attachable(arm, id)

    first = finding("identity", attachable)
    yield first
    for principal in principals if first.ok else ():
        for uri in own_uris(plan.config, FACTS.bucket_schemes):
            yield finding("identity", partial(_account, arm, principal, uri.bucket))


def _identity(arm: ArmClient, id: str) -> Tree:
    """The identity. Raises PermissionsError if there is none, NotChecked if it cannot be read."""
    try:
        return arm.get(id)
    except CloudError as error:
        if error.code in _ABSENT:
            text = f"no managed identity {id}: {error.message}"
            raise PermissionsError(text, hint=faults.NO_IDENTITY, code=error.code) from error
        if isinstance(error, NotFoundError) or faults.is_unknown_question(error):
            raise NotChecked(f"{paths.last(id)}: {NOT_REPORTED}") from error
        if isinstance(error, PermissionsError):
            raise NotChecked(f"{paths.last(id)}: could not be checked: {error.message}") from error
        raise


_ABSENT = frozenset(
    {"ResourceNotFound", "ResourceGroupNotFound", "SubscriptionNotFound", "InvalidSubscriptionId"}
)


def _attachable(arm: ArmClient, id: str) -> str:
    rights = arm.rights(id)
    name = paths.last(id)
    if not rights:
        raise NotChecked(f"{name} exists; whether it may be attached could not be checked")
    if permissions.lacking(rights, ASSIGNS):
        raise PermissionsError(f"{name}: not allowed: {ASSIGNS}", hint=faults.ATTACH)
    return f"{name} may be attached"


def _account(arm: ArmClient, principal: str, account: str) -> str:
    """Report the identity's roles on a storage account, also inherited ones; those of its groups
    are not listed, so that their absence proves nothing.
    """
    id = blobs.account_id(arm, account)
    if id is None:
        raise NotChecked(
            f"{account}: could not be checked: not a visible account of this subscription"
        )
    path = f"{id}/providers/Microsoft.Authorization/roleAssignments"
    wanted = {"$filter": f"principalId eq '{principal}'"}
    found = if_told(lambda: arm.pages(path, **wanted), None)
    if found is None:
        raise NotChecked(f"{account}: could not be checked: its role assignments are not readable")
    definitions = {
        paths.last(str((one.get("properties") or {}).get("roleDefinitionId"))) for one in found
    }
    roles = sorted(ROLES[each] for each in definitions if each in ROLES)
    if roles:
        return f"{account}: has {', '.join(roles)}"
    raise NotChecked(
        f"{account}: has none of the roles {', '.join(sorted(ROLES.values()))}; one of a group, or "
        "a custom role, could not be checked"
    )
