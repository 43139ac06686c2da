"""Labels on all our resources; resources without them are never touched.

Anyone in the account may write labels, so this module alone reads them: a value that this program
never writes makes a resource foreign, which is shown and never changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import NameTakenError, Scope
from cloudtrain.core.model import Owner, Plan
from cloudtrain.core.owner import login
from cloudtrain.core.partial_list import NotAsked
from cloudtrain.core.task_id import CLUSTER_NAME, NODE_INDEX, ROLE_NAME, TaskId

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
HOSTS = "cloudtrain-hosts"
"""Number of hosts of a TPU: while it is created, its endpoints are not listed yet."""
DESK = "cloudtrain-desk"
"""Only on what `run --away` makes for a desk: the id of its life, and a hash of the order key."""
LONGER = 2700.0
"""Seconds that shared resources are labelled as being created for longer than nodes: they are kept
from one place to the next, and nothing else shows that somebody is at work."""


def of_cluster(cluster: str, owner: Owner | None = None) -> dict[str, str]:
    """The labels of a resource that does not belong to a single node."""
    whose = owner if owner and owner.id else Owner(id=login())
    values = {OWNER: whose.id, OWNER_NAME: whose.name, MACHINE: whose.machine}
    return {CLUSTER: cluster, **{key: value for key, value in values.items() if value}}


def on_resources(plan: Plan) -> dict[str, str]:
    """The labels of a plan's shared resources, with the user's own tags."""
    return {**plan.config.tags, **of_cluster(plan.config.name, plan.owner), **of_creation(plan)}


def of_creation(plan: Plan, longer: float = LONGER) -> dict[str, str]:
    """The labels that tell one creation from another of the same name."""
    if not plan.generation:
        return {}
    desk = {DESK: plan.config.away.mark} if plan.config.away.mark else {}
    until = plan.creating_until
    end = {} if until is None else {CREATING: str(int(until + longer))}
    return {GENERATION: plan.generation, **end, **desk}


def on_node(plan: Plan, task: TaskId, expires: float | None) -> dict[str, str]:
    """The labels of a plan's node and its parts, with the user's own tags."""
    own = of_node(plan.config.name, task, expires, plan.owner)
    return {**plan.config.tags, **own, **of_creation(plan, longer=0.0)}


def of_node(
    cluster: str, task: TaskId, expires: float | None, owner: Owner | None = None
) -> dict[str, str]:
    found = {**of_cluster(cluster, owner), ROLE: task.role, INDEX: str(task.index)}
    return {**found, EXPIRES: str(int(expires))} if expires is not None else found


def with_expiry(labels: Mapping[str, str], expires: float | None) -> dict[str, str]:
    """A node's labels with a different end."""
    others = {key: value for key, value in labels.items() if key != EXPIRES}
    return others if expires is None else {**others, EXPIRES: str(int(expires))}


@dataclass(frozen=True, kw_only=True)
class Labels(TaskId):
    """Labels of a resource of ours. Without a role, it does not belong to a single node."""

    cluster: str
    owner: Owner
    expires: float | None
    generation: str
    creating_until: float | None
    hosts: int
    desk: str

    @property
    def resource_fields(self) -> dict[str, Any]:
        """The fields of any resource that labels tell."""
        names = ("owner", "generation", "creating_until", "desk")
        return {name: getattr(self, name) for name in names}

    @property
    def node_fields(self) -> dict[str, Any]:
        return {"role": self.role, "index": self.index, **self.resource_fields}


@dataclass(frozen=True, kw_only=True)
class NotOurs:
    """Labels that this program never writes."""

    reason: str

    def on(self, what: str) -> NotAsked:
        """The resource that has them, named as it is shown to people."""
        return NotAsked(place=what, why=self.reason, foreign=True)


_WORD = re.compile(r"[a-z0-9_-]{1,63}\Z")
"""`owner.label`: what a display name, a login name or a machine becomes."""
_NAME = re.compile(r"[a-z][a-z0-9-]*\Z")
_TIME = re.compile(r"[0-9]{1,11}\Z")
_FORMS: Mapping[str, re.Pattern[str]] = {
    CLUSTER: CLUSTER_NAME,
    ROLE: ROLE_NAME,
    INDEX: NODE_INDEX,
    OWNER: _WORD,
    OWNER_NAME: _WORD,
    MACHINE: _WORD,
    EXPIRES: _TIME,
    GENERATION: re.compile(r"[0-9a-f]{12}\Z"),
    CREATING: _TIME,
    HOSTS: re.compile(r"[1-9][0-9]{0,3}\Z"),
    DESK: re.compile(r"[0-9a-z-]{1,63}\Z"),
}
"""What this program writes, of any version."""
_SHOWN = 40
"""Characters of a foreign value that are shown."""


def read(
    labels: Mapping[str, str], *, of: str | None = None, named: str | None = None
) -> Labels | NotOurs | None:
    """Parse labels; None without ours. `of`: this cluster's alone. `named`: name of a
    node at its cloud, which has to be that of its role and index."""
    if CLUSTER not in labels or of not in (None, labels[CLUSTER]):
        return None
    odd = [
        key
        for key, form in _FORMS.items()
        if key in labels and not (isinstance(labels[key], str) and form.match(labels[key]))
    ]
    if odd:
        shown = ", ".join(f"{key}: {_shown(labels[key])}" for key in odd)
        return NotOurs(reason=f"has cloudtrain labels that cloudtrain never wrote: {shown}")
    id = labels.get(OWNER, "")
    found = Labels(
        cluster=labels[CLUSTER],
        role=labels.get(ROLE, ""),
        index=int(labels.get(INDEX, "0")),
        owner=Owner(id=id, name=labels.get(OWNER_NAME) or id, machine=labels.get(MACHINE, "")),
        expires=_time(labels.get(EXPIRES)),
        generation=labels.get(GENERATION, ""),
        creating_until=_time(labels.get(CREATING)),
        hosts=int(labels.get(HOSTS, "0")),
        desk=labels.get(DESK, ""),
    )
    whole = found.node_name(found.cluster) if ROLE in labels and INDEX in labels else named
    if named and (named != whole or not _NAME.match(named)):
        whose = f" of {whole}, which is not its name" if whole != named else ", and no name of ours"
        return NotOurs(reason=f"has the cloudtrain labels{whose}")
    return found


def ours(labels: Mapping[str, str], *, of: str | None = None) -> Labels | None:
    """Parse labels; None for what is not ours, or whose labels this program never wrote."""
    found = read(labels, of=of)
    return found if isinstance(found, Labels) else None


def _shown(value: object) -> str:
    """A foreign value on one line, without what could control a terminal."""
    text = "".join(c if c.isprintable() else " " for c in str(value)[: 2 * _SHOWN])
    text = " ".join(text.split()) or "(empty)"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _time(text: str | None) -> float | None:
    return None if text is None else float(text)


def belongs_to_other_owner(there: Owner, owner: Owner) -> bool:
    """True if labels name two different owners; labels without an owner are not another's."""
    if not there.id or there.is_login or not owner.id:
        return False
    return there.id != owner.id and there.machine != owner.machine


def refuse_other_owner(what: str, there: Owner, owner: Owner) -> None:
    """Raise NameTakenError if `there` is another owner, whose cluster already uses this name."""
    if belongs_to_other_owner(there, owner):
        raise NameTakenError(
            f"{what} belongs to a cluster of {there}", hint="give this cluster another `name:`"
        )


def refuse_foreign(
    what: str, there: Labels | NotOurs | None, plan: Plan, scope: Scope = "account"
) -> None:
    """Raise NameTakenError unless `what` has labels of the plan's cluster and owner."""
    if not isinstance(there, Labels) or there.cluster != plan.config.name:
        raise NameTakenError(
            f"{what} exists, and cloudtrain did not create it",
            hint="choose another `name:` for the cluster, or delete it",
            scope=scope,
        )
    refuse_other_owner(what, there.owner, plan.owner)


def group_name(cluster: str) -> str:
    """The name of a cluster's network, firewall and group: at most 41 characters of `[a-z0-9-]`.
    Resources that the cloud cannot label are found by this name."""
    return f"cloudtrain-{cluster}"


def cluster_of(name: str) -> str | None:
    """The cluster whose `group_name` is a prefix of `name`; None if the name is not ours."""
    cluster = name.removeprefix("cloudtrain-")
    return cluster if cluster != name and CLUSTER_NAME.match(cluster) else None
