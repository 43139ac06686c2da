"""Permissions of the role for cloudtrain. The tests compare them with the calls that the stand-in
records.

permissions.csv says what each is for; tools/generate_docs.py writes them into docs/azure.md."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Any

from cloudtrain.core.model import ClusterConfig
from cloudtrain.providers.azure import paths
from cloudtrain.providers.azure.facts import FOLDER
from cloudtrain.providers.base import fact_tables
from cloudtrain.providers.base.http import Tree

JOIN = "Microsoft.Network/virtualNetworks/subnets/join/action"
"""Permission on the subnet of `network.subnet`, which may be in another group."""
DEADLINES = fact_tables.actions(FOLDER, kind="deadline")
_KINDS = ("up", "end", "deadline", "register", "check")
ACTIONS = tuple(sorted(each for kind in _KINDS for each in fact_tables.actions(FOLDER, kind=kind)))
IN_GROUP = tuple(sorted(fact_tables.actions(FOLDER, in_group="yes")))
(ON_TERMS,) = fact_tables.actions(FOLDER, kind="terms")
ON_IDENTITY = fact_tables.actions(FOLDER, kind="identity")
ON_RESERVATION = fact_tables.actions(FOLDER, kind="reservation")
DEPLOY = "Microsoft.Compute/capacityReservationGroups/deploy/action"
WITH_BASTION = fact_tables.actions(FOLDER, kind="bastion")
STORE_ACTIONS = fact_tables.actions(FOLDER, kind="store")
STORE_DATA = fact_tables.actions(FOLDER, kind="blobs")


def needed(*, ends: bool, in_group: bool) -> tuple[str, ...]:
    """List the actions of `up` and `down`. `ends`: Azure is to end the nodes; `in_group`: in a
    group of the user's."""
    kinds = (*(("group",) if in_group else ()), "up", *(("end",) if ends else ()))
    within = {"in_group": "yes"} if in_group else {}
    return tuple(
        each for kind in kinds for each in fact_tables.actions(FOLDER, kind=kind, **within)
    )


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
    built-in ones on what else the file names."""
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


def lacking(rights: Sequence[Tree], *actions: str) -> list[str]:
    """List the actions that the role definitions do not allow; none if the endpoint reports no
    definitions. https://learn.microsoft.com/azure/role-based-access-control/role-definitions"""
    return [action for action in actions if rights and not _allowed(action, rights)]


def _allowed(action: str, rights: Sequence[Tree]) -> bool:
    def matches(patterns: Sequence[str]) -> bool:
        return any(
            re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), action, re.IGNORECASE)
            for pattern in patterns
        )

    return any(
        matches(each.get("actions") or ()) and not matches(each.get("notActions") or ())
        for each in rights
    )
