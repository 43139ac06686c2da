"""The labels that everything of ours bears; what has none of them is never touched."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cloudtrain.errors import NameTakenError
from cloudtrain.model import Owner
from cloudtrain.owner import login

CLUSTER = "cloudtrain-cluster"
ROLE = "cloudtrain-role"
INDEX = "cloudtrain-index"
OWNER = "cloudtrain-owner"
"""A short hash of the account's principal; the login name, where no OWNER_NAME stands beside it."""
OWNER_NAME = "cloudtrain-owner-name"
MACHINE = "cloudtrain-machine"
EXPIRES = "cloudtrain-expires"
"""Unix time in whole seconds."""


def of_cluster(cluster: str, owner: Owner | None = None) -> dict[str, str]:
    """For what belongs to no single node."""
    whose = owner if owner and owner.id else Owner(id=login())
    told = {OWNER: whose.id, OWNER_NAME: whose.name, MACHINE: whose.machine}
    return {CLUSTER: cluster, **{key: value for key, value in told.items() if value}}


def of_node(
    cluster: str, role: str, index: int, expires: float | None, owner: Owner | None = None
) -> dict[str, str]:
    found = {**of_cluster(cluster, owner), ROLE: role, INDEX: str(index)}
    return {**found, EXPIRES: str(int(expires))} if expires is not None else found


def with_end(labels: Mapping[str, str], expires: float | None) -> dict[str, str]:
    """The same labels for a node whose end is another one now."""
    others = {key: value for key, value in labels.items() if key != EXPIRES}
    return others if expires is None else {**others, EXPIRES: str(int(expires))}


@dataclass(frozen=True, kw_only=True)
class Labels:
    """What labels say; all that somebody else wrote into them is taken as it comes."""

    cluster: str
    role: str
    index: int
    owner: Owner
    expires: float | None


def read(labels: Mapping[str, str]) -> Labels | None:
    """None where it is not ours."""
    cluster = labels.get(CLUSTER)
    if not cluster:
        return None
    index, expires = labels.get(INDEX, ""), labels.get(EXPIRES, "")
    return Labels(
        cluster=cluster,
        role=labels.get(ROLE, ""),
        index=int(index) if index.isdecimal() else 0,
        owner=_owner(labels),
        expires=float(expires) if expires.isdecimal() else None,
    )


def _owner(labels: Mapping[str, str]) -> Owner:
    id = labels.get(OWNER, "")
    return Owner(id=id, name=labels.get(OWNER_NAME) or id, machine=labels.get(MACHINE, ""))


def is_of_another(there: Owner, owner: Owner) -> bool:
    """Whether labels tell of two owners; one who has not told who they are is nobody else."""
    if not there.id or there.is_login or not owner.id:
        return False
    return there.id != owner.id and there.machine != owner.machine


def refuse_other_owner(what: str, there: Owner, owner: Owner) -> None:
    """What another's cluster of this name stands on is not ours to use. Raises NameTakenError."""
    if is_of_another(there, owner):
        raise NameTakenError(
            f"{what} is of a cluster of {there}", hint="give this cluster another `name:`"
        )


def group_name(cluster: str) -> str:
    """The name of the cluster's network, firewall, resource group: what a cloud has no label for
    is found by it. At most 41 characters of `[a-z0-9-]`."""
    return f"cloudtrain-{cluster}"


def cluster_of(name: str) -> str | None:
    """The cluster whose `group_name` starts `name`; None where it is not ours."""
    found = re.match(r"cloudtrain-([a-z][a-z0-9-]{0,29})\Z", name)
    return found[1] if found else None
