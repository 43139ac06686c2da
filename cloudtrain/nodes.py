"""Nodes made, found and given back: what `up` and a restart have in common."""

from __future__ import annotations

from dataclasses import replace

from cloudtrain.keys import create_identity
from cloudtrain.model import Plan
from cloudtrain.session import Session, ask_nodes, write_ssh_config


def make_whole(session: Session) -> Session:
    """Every node of the plan exists and runs: lost ones are made again, same role, same index."""
    return created(session, session.plan)


def revive(session: Session) -> Session:
    """Stopped nodes are started again, with their disks as they were; nothing new is made."""
    session = session.refreshed()
    stopped = {node.name for node in session.nodes if node.state == "stopped"}
    plans = tuple(node for node in session.plan.nodes if node.name in stopped)
    return created(session, replace(session.plan, nodes=plans)) if plans else session


def created(session: Session, plan: Plan) -> Session:
    identity = create_identity(session.records.folder, [node.name for node in session.plan.nodes])
    with session.console.stage(f"nodes on {session.provider.name}", len(plan.nodes)) as stage:
        session.provider.create(plan, identity, session.records.journal)
        nodes = ask_nodes(session.provider, session.plan)
        made = {node.name for node in plan.nodes}
        for node in nodes:
            if node.name in made:
                stage.done(node.name, node.address)
    write_ssh_config(session.records, identity, nodes)
    return replace(session, identity=identity, nodes=nodes)
