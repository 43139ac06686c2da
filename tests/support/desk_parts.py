"""A desk as tests need it: its node in an account, its record here, and the keys that count."""

from __future__ import annotations

from dataclasses import replace

from cloudtrain.away.desk_cluster import ROLE, desk_name
from cloudtrain.cluster.lease import PROGRAM
from cloudtrain.cluster.session import record_cluster
from cloudtrain.core.model import ClusterConfig, Code, Node, NodeGroup
from cloudtrain.state import Records
from cloudtrain.training.strategies import CUSTOM
from tests.support.nodes_here import node


def desk_node(cluster: str, mark: str) -> dict[str, Node]:
    """The only node of a desk, by its name, as an account lists it."""
    name = f"{desk_name(cluster)}-{ROLE}0"
    return {name: replace(node(name), role=ROLE, desk=mark)}


def record_desk(config: ClusterConfig) -> Records:
    """Record the desk's own cluster here, as `run --away` does before it creates it."""
    records = Records(desk_name(config.name))
    own = replace(
        config,
        name=records.name,
        strategy=CUSTOM.name,
        nodes={ROLE: NodeGroup(machine="e2-standard-2")},
        code=Code(path=str(records.folder / PROGRAM)),
    )
    record_cluster(own, records)
    return records
