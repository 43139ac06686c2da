"""Lands what the nodes of a session have made: in its store, by its config's rules."""

from __future__ import annotations

from cloudtrain.artifacts.landing import Landing, own_manifests
from cloudtrain.cluster.session import Session
from cloudtrain.core.cloud import facts_of
from cloudtrain.core.model import Node
from cloudtrain.core.run_record import Run


def landing_of(session: Session) -> Landing:
    return Landing(
        cluster=session.config.name,
        rules=session.config.artifacts,
        checkpoints=session.config.train.checkpoints,
        transport=session.transport,
        store=session.store,
        console=session.console,
        logs=session.records.log_path,
        home=not facts_of(session.config.provider).takes_hosts,
        own=own_manifests(session.records),
    )


def nodes_of(session: Session, run: Run) -> dict[str, Node]:
    """Existing nodes by task."""
    return {task.name: node for task in run.tasks if (node := session.node(task.node)) is not None}
