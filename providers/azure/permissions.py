"""Permissions of the role for cloudtrain. The tests compare them with the calls that the stand-in
records.

Names: https://learn.microsoft.com/azure/role-based-access-control/permissions/compute and related
pages. tools/generate_docs.py writes them into docs/azure.md.
"""

from __future__ import annotations

import json
from typing import Any

COMPUTE, NETWORK = "Microsoft.Compute", "Microsoft.Network"
RESOURCES = "Microsoft.Resources/subscriptions"
MACHINES = f"{COMPUTE}/virtualMachines"

NEEDED = (
    *(f"{RESOURCES}/resourceGroups/{verb}" for verb in ("read", "write", "delete")),
    *(f"{MACHINES}/{verb}" for verb in ("read", "write", "delete")),
    f"{MACHINES}/instanceView/read",
    f"{MACHINES}/start/action",
    f"{MACHINES}/deallocate/action",
    *(f"{COMPUTE}/disks/{verb}" for verb in ("write", "delete")),
    *(f"{COMPUTE}/proximityPlacementGroups/{verb}" for verb in ("read", "write", "delete")),
    *(
        f"{NETWORK}/{kind}/{verb}"
        for kind in ("networkInterfaces", "publicIPAddresses", "networkSecurityGroups")
        for verb in ("read", "write", "delete", "join/action")
    ),
    *(f"{NETWORK}/virtualNetworks/{verb}" for verb in ("read", "write", "delete")),
    f"{NETWORK}/virtualNetworks/subnets/join/action",
)
"""Permissions that `up` and `down` need."""
ENDING = tuple(f"Microsoft.DevTestLab/schedules/{verb}" for verb in ("read", "write", "delete"))
"""Permissions needed as well if Azure is to end the nodes."""
DEADLINES = (
    "Microsoft.ComputeSchedule/locations/virtualMachinesSubmitDeallocate/action",
    "Microsoft.ComputeSchedule/locations/virtualMachinesGetOperationStatus/action",
    "Microsoft.ComputeSchedule/locations/virtualMachinesCancelOperations/action",
)
"""Permissions needed to end the nodes at a date and time. The service acts with the caller's
permission to deallocate.
"""
REGISTERING = (
    f"{COMPUTE}/register/action",
    f"{NETWORK}/register/action",
    "Microsoft.DevTestLab/register/action",
    "Microsoft.ComputeSchedule/register/action",
)
"""Permissions needed once per subscription, unless the providers are already registered."""
TOLD = (
    f"{RESOURCES}/read",
    f"{RESOURCES}/locations/read",
    f"{RESOURCES}/providers/read",
    f"{RESOURCES}/resources/read",
    f"{RESOURCES}/operationresults/read",
    "Microsoft.Authorization/permissions/read",
    f"{MACHINES}/retrieveBootDiagnosticsData/action",
    f"{COMPUTE}/skus/read",
    f"{COMPUTE}/locations/operations/read",
    f"{COMPUTE}/locations/usages/read",
    f"{COMPUTE}/locations/publishers/artifacttypes/offers/skus/versions/read",
    f"{NETWORK}/locations/operations/read",
    f"{NETWORK}/locations/usages/read",
    "Microsoft.Features/providers/features/read",
    "Microsoft.Storage/storageAccounts/read",
    "Microsoft.Storage/storageAccounts/blobServices/read",
    "Microsoft.Resources/deployments/validate/action",
)
"""Permissions for checks; the last one is for `check --deep`."""
ACTIONS = tuple(sorted({*NEEDED, *ENDING, *DEADLINES, *REGISTERING, *TOLD}))

ON_IDENTITY = tuple(
    f"Microsoft.ManagedIdentity/userAssignedIdentities/{verb}" for verb in ("read", "assign/action")
)
"""Permissions that are needed on the identity of `identity`; Managed Identity Operator has them:
https://learn.microsoft.com/azure/role-based-access-control/built-in-roles/identity"""

BLOBS = "Microsoft.Storage/storageAccounts/blobServices"
STORE_ACTIONS = (
    f"{BLOBS}/containers/read",
    f"{BLOBS}/containers/write",
    f"{BLOBS}/generateUserDelegationKey/action",
)
STORE_DATA = tuple(f"{BLOBS}/containers/blobs/{verb}" for verb in ("read", "write", "delete"))
"""Data actions of an `az://` store: those of Storage Blob Data Contributor that are used.
https://learn.microsoft.com/rest/api/storageservices/authorize-with-azure-active-directory"""


def role() -> dict[str, Any]:
    """Return a custom role in the format of `az role definition create`."""
    return {
        "Name": "cloudtrain",
        "IsCustom": True,
        "Description": "What cloudtrain calls for check, up, status, down and gc",
        "AssignableScopes": ["/subscriptions/SUBSCRIPTION"],
        "Actions": [*ACTIONS, *STORE_ACTIONS],
        "NotActions": [],
        "DataActions": list(STORE_DATA),
        "NotDataActions": [],
    }


def block() -> str:
    """Return the block in docs/azure.md for users to paste."""
    lines = ["az role definition create --role-definition role.json"]
    lines += ["az role assignment create --role cloudtrain --assignee YOU@example.com \\"]
    lines += ["  --scope /subscriptions/SUBSCRIPTION"]
    shell = "\n".join(lines)
    more = (
        f"With [`identity:`](#an-identity-for-scripts), also `{'`, `'.join(ON_IDENTITY)}` on that "
        "identity alone (Managed Identity Operator has both). `check` reads the role assignments "
        "of its storage accounts if you have `Microsoft.Authorization/roleAssignments/read`.\n"
    )
    pasted = f"```json\n{json.dumps(role(), indent=1)}\n```\n\n```sh\n{shell}\n```\n"
    return f"{pasted}\n{more}"
