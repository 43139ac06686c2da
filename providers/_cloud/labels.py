"""The labels that everything of ours bears; what has none of them is never touched."""

from __future__ import annotations

import getpass
import re
from collections.abc import Mapping
from dataclasses import dataclass

CLUSTER = "cloudtrain-cluster"
ROLE = "cloudtrain-role"
INDEX = "cloudtrain-index"
OWNER = "cloudtrain-owner"
EXPIRES = "cloudtrain-expires"
"""Unix time in whole seconds."""


def owner() -> str:
    """This user's name, fit for a label of any cloud: `[a-z0-9_-]{1,63}`."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "unknown"
    return re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-")[:63] or "unknown"


def of_cluster(cluster: str) -> dict[str, str]:
    """For what belongs to no single node."""
    return {CLUSTER: cluster, OWNER: owner()}


def of_node(cluster: str, role: str, index: int, expires: float | None) -> dict[str, str]:
    found = {**of_cluster(cluster), ROLE: role, INDEX: str(index)}
    return {**found, EXPIRES: str(int(expires))} if expires is not None else found


@dataclass(frozen=True, kw_only=True)
class Labels:
    """What labels say; all that somebody else wrote into them is taken as it comes."""

    cluster: str
    role: str
    index: int
    owner: str
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
        owner=labels.get(OWNER, ""),
        expires=float(expires) if expires.isdecimal() else None,
    )


def group_name(cluster: str) -> str:
    """The name of the cluster's network, firewall, resource group: what a cloud has no label for
    is found by it. At most 41 characters of `[a-z0-9-]`."""
    return f"cloudtrain-{cluster}"


def cluster_of(name: str) -> str | None:
    """The cluster whose `group_name` starts `name`; None where it is not ours."""
    found = re.match(r"cloudtrain-([a-z][a-z0-9-]{0,29})\Z", name)
    return found[1] if found else None
