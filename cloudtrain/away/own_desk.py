"""Tells a cluster's desk from any other cluster of that name.

A name proves nothing: `mnist-desk` may be a cluster of the user's own. A desk has the role `desk`
and the label that `run --away` gives it, or is on record here as the desk of that cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cloudtrain.away.desk_cluster import ROLE
from cloudtrain.cluster.creations import is_recorded_desk
from cloudtrain.cluster.ownership import is_recorded
from cloudtrain.cluster.session import Handle, recorded_config
from cloudtrain.core.cloud import facts_of
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.model import Away, ClusterConfig, Node
from cloudtrain.core.partial_list import PartialList
from cloudtrain.core.task_id import CLUSTER_NAME
from cloudtrain.state import Records
from cloudtrain.state.away_record import AwayRecord, mark_of


def marked(desk: Handle, record: AwayRecord) -> Handle:
    """The desk with its label, on all that is created for it from now on."""
    return Handle(replace(desk.config, away=Away(mark=mark_of(record))))


def own_desk(config: ClusterConfig) -> Handle | None:
    """The desk's own cluster: what the account has of it, or a record here says was created for it.
    None if there is neither. Raises CloudError.
    """
    if not may_have_desk(config):
        return None
    desk, name = desk_handle(config), f"{config.name}-{ROLE}"
    there = [node for node in desk.provider.find(name) if node.state != "gone"]
    if there:
        return desk if are_desk(config.name, there) else None
    if is_recorded_desk(config.name):
        return desk if desk.records.is_open() else None
    held = (each for each in desk.provider.sweep() if each.cluster == name)
    return desk if any(each.desks for each in held) else None


def desk_nodes(config: ClusterConfig) -> PartialList[Node]:
    """Nodes of the cluster's desk as the account lists them, and the places that do not answer.
    Raises CloudError.
    """
    if not may_have_desk(config):
        return PartialList(())
    found = desk_handle(config).provider.find(f"{config.name}-{ROLE}")
    there = [node for node in found if node.state != "gone"]
    mine = there if are_desk(config.name, there) else []
    return PartialList(mine, found.not_asked)


def desk_marks(config: ClusterConfig) -> tuple[str, ...]:
    """Labels of the cluster's desks; none if the account does not answer."""
    try:
        return tuple(filter(None, (node.desk for node in desk_nodes(config))))
    except CloudtrainError:
        return ()


def may_have_desk(config: ClusterConfig) -> bool:
    """False where no machine is rented, and for a name that is too long for one."""
    fits = CLUSTER_NAME.match(f"{config.name}-{ROLE}") is not None
    return fits and not facts_of(config.provider).takes_hosts


def desk_handle(config: ClusterConfig) -> Handle:
    """The cluster of a desk's name, by its record here or by the config of the run's cluster."""
    name = f"{config.name}-{ROLE}"
    if is_recorded_desk(config.name):
        return Handle(recorded_config(Records(name)))
    return Handle(replace(config, name=name, away=Away(), candidates=()))


def are_desk(cluster: str, nodes: Sequence[Node]) -> bool:
    """True if these are the cluster's desk and nothing else. Earlier versions gave it no label: it
    then has to be on record here, and its keys with it.
    """
    own = Records(f"{cluster}-{ROLE}")
    if any(node.role != ROLE for node in nodes):
        return False
    if all(node.desk for node in nodes):
        return True
    return is_recorded_desk(cluster) and own.has_keys() and is_recorded(own, nodes)
