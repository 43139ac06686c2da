"""Permissions of the role for cloudtrain. The tests compare them with the calls that the stand-in
records.

Names: https://learn.microsoft.com/azure/role-based-access-control/permissions/compute and related
pages. tools/generate_docs.py writes them into docs/azure.md.
"""

from __future__ import annotations

import json
import os
from typing import Any

from cloudtrain.core.model import ClusterConfig
from cloudtrain.providers.azure import paths

COMPUTE, NETWORK = "Microsoft.Compute", "Microsoft.Network"
RESOURCES = "Microsoft.Resources/subscriptions"
MACHINES = f"{COMPUTE}/virtualMachines"

JOIN = f"{NETWORK}/virtualNetworks/subnets/join/action"
"""Permission on the subnet of `network.subnet`, which may be in another group."""

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
    JOIN,
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

MAKING_GROUPS = tuple(f"{RESOURCES}/resourceGroups/{verb}" for verb in ("write", "delete"))
"""Permissions of NEEDED that `resource_group` makes superfluous."""
IN_GROUP = tuple(
    sorted(
        {
            *(action for action in (*NEEDED, *ENDING) if action not in MAKING_GROUPS),
            f"{COMPUTE}/disks/read",
            "Microsoft.Authorization/permissions/read",
            f"{MACHINES}/retrieveBootDiagnosticsData/action",
            "Microsoft.Resources/deployments/validate/action",
        }
    )
)
"""Permissions on the group of `resource_group`; none is needed on the subscription."""

ON_TERMS = "Microsoft.MarketplaceOrdering/offerTypes/publishers/offers/plans/agreements/read"
"""Permission with which `check` reads the terms of an image with a purchase plan."""
ON_IDENTITY = tuple(
    f"Microsoft.ManagedIdentity/userAssignedIdentities/{verb}" for verb in ("read", "assign/action")
)
"""Permissions that are needed on the identity of `identity`; Managed Identity Operator has them:
https://learn.microsoft.com/azure/role-based-access-control/built-in-roles/identity"""

_GROUPS = f"{COMPUTE}/capacityReservationGroups"
DEPLOY = f"{_GROUPS}/deploy/action"
ON_RESERVATION = (
    f"{_GROUPS}/read",
    DEPLOY,
    f"{_GROUPS}/capacityReservations/read",
    f"{_GROUPS}/capacityReservations/deploy/action",
)
"""Permissions that are needed on the capacity reservation group of `provisioning:`. Those to deploy
are in the list of operations of Microsoft.Compute; which of the two Azure asks for, no page says:
https://learn.microsoft.com/azure/role-based-access-control/permissions/compute"""

WITH_BASTION = (f"{NETWORK}/bastionHosts/read", f"{NETWORK}/virtualNetworks/subnets/read")
"""Permissions that are needed on the Bastion's network with `network.ssh_proxy.bastion`; Reader has
them, and what a tunnel needs: https://learn.microsoft.com/azure/bastion/native-client"""

BLOBS = "Microsoft.Storage/storageAccounts/blobServices"
STORE_ACTIONS = (
    f"{BLOBS}/containers/read",
    f"{BLOBS}/containers/write",
    f"{BLOBS}/generateUserDelegationKey/action",
)
STORE_DATA = tuple(f"{BLOBS}/containers/blobs/{verb}" for verb in ("read", "write", "delete"))
"""Data actions of an `az://` store: those of Storage Blob Data Contributor that are used.
https://learn.microsoft.com/rest/api/storageservices/authorize-with-azure-active-directory"""


def role(
    name: str = "cloudtrain",
    scope: str = "/subscriptions/SUBSCRIPTION",
    actions: tuple[str, ...] = ACTIONS,
) -> dict[str, Any]:
    """A custom role in the format of `az role definition create`."""
    return {
        "Name": name,
        "IsCustom": True,
        "Description": "What cloudtrain calls for check, up, status, down and gc",
        "AssignableScopes": [scope],
        "Actions": [*actions, *STORE_ACTIONS],
        "NotActions": [],
        "DataActions": list(STORE_DATA),
        "NotDataActions": [],
    }


def commands(config: ClusterConfig) -> str:
    """The commands that give all that this file needs, and no more, to paste: a custom role, and
    built-in ones on what else the file names.
    """
    subscription = config.project or os.environ.get("AZURE_SUBSCRIPTION_ID") or "SUBSCRIPTION"
    whole = f"/subscriptions/{subscription}"
    base = paths.Group(subscription, config.resource_group).path if config.resource_group else whole
    name, groups = f"cloudtrain-{config.name}", config.nodes.values()
    bought = [g.provisioning.name for g in groups if g.provisioning.name]
    bastion = config.network.ssh_proxy.bastion if config.network.ssh_proxy else None
    more = [*(ON_RESERVATION if bought else ()), *(WITH_BASTION if bastion else ())]
    more += [ON_TERMS] if ":" in config.image else []
    stores = [(config.artifacts.store or "", "Contributor")]
    stores += [(each.source, "Reader") for each in config.data.values()]
    blobs = [(uri.split("/")[2], part) for uri, part in stores if uri.startswith("az://")]
    actions = {*(IN_GROUP if config.resource_group else ACTIONS), *more}
    if not blobs:
        actions = {each for each in actions if not each.startswith("Microsoft.Storage/")}
    made = {**role(name, base), "Actions": sorted(actions), "DataActions": []}
    scopes = [(name, base), (name, config.network.subnet)]
    scopes += [(name, paths.reservation_group(subscription, each)) for each in bought]
    scopes += [(name, paths.bastion(subscription, bastion))] if bastion else []
    identities = filter(None, (config.identity, config.away.identity))
    scopes += [
        ("Managed Identity Operator", paths.identity(subscription, each)) for each in identities
    ]
    scopes += [("Reader", paths.disk_key(subscription, config.disk_key))]
    covered = [(r, s) for r, s in scopes if s and (r != name or s == base or whole != base)]
    shown = [
        f'az role assignment create --role "{r}" --assignee YOU@example.com --scope {s}'
        for r, s in covered
    ]
    shown += [
        f'az role assignment create --role "Storage Blob Data {part}" --assignee YOU@example.com '
        f'--scope "$(az storage account show --name {account} --query id --output tsv)"'
        for account, part in blobs
    ]
    text = f"az role definition create --role-definition '{json.dumps(made, indent=1)}'"
    return "\n".join(dict.fromkeys([text, *shown])) + "\n"


def group_role() -> dict[str, Any]:
    """The role for `resource_group`, which is enough on that group alone."""
    scope = "/subscriptions/SUBSCRIPTION/resourceGroups/GROUP"
    return role("cloudtrain in a group", scope, IN_GROUP)


def block() -> str:
    """The block in docs/azure.md for users to paste."""
    lines = ["az role definition create --role-definition role.json"]
    lines += ["az role assignment create --role cloudtrain --assignee YOU@example.com \\"]
    lines += ["  --scope /subscriptions/SUBSCRIPTION"]
    shell = "\n".join(lines)
    more = (
        f"With [`identity:`](#an-identity-for-scripts), also `{'`, `'.join(ON_IDENTITY)}` on that "
        "identity alone (Managed Identity Operator has both). `check` reads the role assignments "
        "of its storage accounts if you have `Microsoft.Authorization/roleAssignments/read`.\n\n"
        f"With `network.ssh_proxy.bastion`, also `{'`, `'.join(WITH_BASTION)}` on its network, and "
        "Reader on the VMs and their network interfaces ([private-nodes.md](private-nodes.md)).\n"
    )
    more += (
        "\nWith [`provisioning: {reservation: …}`](#capacity-reservations), also "
        f"`{'`, `'.join(ON_RESERVATION)}` on that group (the first one on the subscription, if you "
        "name the group without its resource group).\n"
    )
    pasted = f"```json\n{json.dumps(role(), indent=1)}\n```\n\n```sh\n{shell}\n```\n"
    more += (
        "\nWith an image that has [a purchase plan](companies.md#images-with-a-purchase-plan), "
        f"`check` reads its terms if you have `{ON_TERMS}`.\n"
    )
    group = (
        "With [`resource_group:`](companies.md#a-resource-group), this role on that group is "
        f"enough:\n\n```json\n{json.dumps(group_role(), indent=1)}\n```\n"
    )
    return f"{pasted}\n{more}\n{group}"
