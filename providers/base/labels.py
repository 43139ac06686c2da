"""Labels on all our resources; resources without them are never touched."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cloudtrain.errors import NameTakenError
from cloudtrain.model import Owner, Plan
from cloudtrain.owner import login
from cloudtrain.task_id import TaskId

CLUSTER = "cloudtrain-cluster"
ROLE = "cloudtrain-role"
INDEX = "cloudtrain-index"
OWNER = "cloudtrain-owner"
"""Short hash of the account's principal; without OWNER_NAME, the login name."""
OWNER_NAME = "cloudtrain-owner-name"
MACHINE = "cloudtrain-machine"
EXPIRES = "cloudtrain-expires"
"""Unix time in whole seconds."""
GENERATION = "cloudtrain-generation"
"""At random, the same on everything that one creation makes: a later cluster of the same name has
another. Earlier versions set none."""
CREATING = "cloudtrain-creating"
"""Unix time in whole seconds until which this may be being created."""
LONGER = 2700.0
"""Seconds that shared resources are labelled as being created for longer than nodes: they are kept
from one place to the next, and nothing else shows that somebody is at work."""


def of_cluster(cluster: str, owner: Owner | None = None) -> dict[str, str]:
    """Return the labels of a resource that does not belong to a single node."""
    whose = owner if owner and owner.id else Owner(id=login())
    values = {OWNER: whose.id, OWNER_NAME: whose.name, MACHINE: whose.machine}
    return {CLUSTER: cluster, **{key: value for key, value in values.items() if value}}


def on_resources(plan: Plan) -> dict[str, str]:
    """Return the labels of a plan's shared resources, with the user's own tags."""
    return {**plan.config.tags, **of_cluster(plan.config.name, plan.owner), **of_creation(plan)}


def of_creation(plan: Plan, longer: float = LONGER) -> dict[str, str]:
    """Return the labels that tell one creation from another of the same name."""
    if not plan.generation:
        return {}
    until = plan.creating_until
    end = {} if until is None else {CREATING: str(int(until + longer))}
    return {GENERATION: plan.generation, **end}


def on_node(plan: Plan, task: TaskId, expires: float | None) -> dict[str, str]:
    """Return the labels of a plan's node and its parts, with the user's own tags."""
    own = of_node(plan.config.name, task, expires, plan.owner)
    return {**plan.config.tags, **own, **of_creation(plan, longer=0.0)}


def of_node(
    cluster: str, task: TaskId, expires: float | None, owner: Owner | None = None
) -> dict[str, str]:
    found = {**of_cluster(cluster, owner), ROLE: task.role, INDEX: str(task.index)}
    return {**found, EXPIRES: str(int(expires))} if expires is not None else found


def with_expiry(labels: Mapping[str, str], expires: float | None) -> dict[str, str]:
    """Return a node's labels with a different end."""
    others = {key: value for key, value in labels.items() if key != EXPIRES}
    return others if expires is None else {**others, EXPIRES: str(int(expires))}


@dataclass(frozen=True, kw_only=True)
class Labels(TaskId):
    """Parsed labels. Values are not validated: anyone may have set them."""

    cluster: str
    owner: Owner
    expires: float | None
    generation: str
    creating_until: float | None


def read(labels: Mapping[str, str]) -> Labels | None:
    """Parse labels; None if the resource is not ours."""
    cluster = labels.get(CLUSTER)
    if not cluster:
        return None
    index = labels.get(INDEX, "")
    return Labels(
        cluster=cluster,
        role=labels.get(ROLE, ""),
        index=int(index) if index.isdecimal() else 0,
        owner=_owner(labels),
        expires=_time(labels.get(EXPIRES, "")),
        generation=labels.get(GENERATION, ""),
        creating_until=_time(labels.get(CREATING, "")),
    )


def _time(text: str) -> float | None:
    return float(text) if text.isdecimal() else None


def _owner(labels: Mapping[str, str]) -> Owner:
    id = labels.get(OWNER, "")
    return Owner(id=id, name=labels.get(OWNER_NAME) or id, machine=labels.get(MACHINE, ""))


def belongs_to_other_owner(there: Owner, owner: Owner) -> bool:
    """True if labels name two different owners; labels without an owner do not count as
    another's.
    """
    if not there.id or there.is_login or not owner.id:
        return False
    return there.id != owner.id and there.machine != owner.machine


def refuse_other_owner(what: str, there: Owner, owner: Owner) -> None:
    """Raise NameTakenError if `there` is another owner, whose cluster already uses this name."""
    if belongs_to_other_owner(there, owner):
        raise NameTakenError(
            f"{what} belongs to a cluster of {there}", hint="give this cluster another `name:`"
        )


def group_name(cluster: str) -> str:
    """Return the name of the cluster's network, firewall and resource group: at most 41 characters
    of `[a-z0-9-]`.

    Resources that the cloud cannot label are found by this name.
    """
    return f"cloudtrain-{cluster}"


def cluster_of(name: str) -> str | None:
    """Return the cluster whose `group_name` is a prefix of `name`; None if the name is not ours."""
    found = re.match(r"cloudtrain-([a-z][a-z0-9-]{0,29})\Z", name)
    return found[1] if found else None
