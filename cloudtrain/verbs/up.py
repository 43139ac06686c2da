"""`cloudtrain up`: creates the cluster and makes it ready; run again, it repairs and continues."""

from __future__ import annotations

from collections.abc import Collection

from cloudtrain.cluster.provision import make_whole
from cloudtrain.cluster.session import (
    Handle,
    Session,
    is_of_the_nodes_cloud,
    open_session,
    record,
    refuse_other_account,
    refuse_other_folder,
)
from cloudtrain.events import ResourceRequested, UpBegun, UpCompleted
from cloudtrain.lease import leased
from cloudtrain.lifetime import announce, move_ends, settle_end
from cloudtrain.model import Cluster, ClusterConfig, Plan
from cloudtrain.protocols import Console
from cloudtrain.ready import make_ready
from cloudtrain.training.background import idle_is_watched
from cloudtrain.verbs.before import missing_script
from cloudtrain.verbs.check import refuse
from cloudtrain.verbs.exchange import NOTHING, Allowed, Settled, delete_nodes, settle_drift
from cloudtrain.verbs.roll_back import what_runs_is_told


def up(
    plan: Plan,
    *,
    allowed: Allowed = NOTHING,
    adopt: bool = False,
    ignore: Collection[str] = (),
    give_back: bool = False,
    console: Console,
) -> Cluster:
    """Every node of the plan exists, answers over SSH and has what `setup:` and `code:` name.

    Raises UsageError where nodes that exist differ from the config and that is not `allowed` to
    be cured; what its provider raises, StepFailed for a playbook, LockedError. `give_back`: where
    it fails, the nodes that it made are deleted.
    """
    handle, config = Handle(plan.config, plan), plan.config
    records = handle.records
    with idle_is_watched(records), records.lock("up"), leased(handle, "up", console):
        refuse_other_account(config, records)
        refuse_other_folder(config, records, adopt=adopt)
        refuse(handle, ignore)
        missing = missing_script(config)
        if missing is not None:
            console.warn(missing)
        records.create()
        with open_session(handle, console) as session:
            settled = settle_drift(session, allowed)
            record(config, records)
            make_store(handle, console)
            with what_runs_is_told(session, settled.going, back=give_back):
                session = raise_cluster(session, settled)
                make_ready(session)
            records.journal(UpCompleted())
    if config.limits.idle is not None:
        console.say(f"without a run for {config.limits.idle:g} s it goes down (limits.idle)")
    return Cluster(name=config.name, nodes=session.nodes)


def make_store(handle: Handle, console: Console) -> None:
    """The bucket, where `artifacts.create` asks for it and there is none, tried by writing."""
    config = handle.config
    if not config.artifacts.create or config.artifacts.store is None:
        return
    store = handle.store
    handle.records.journal(ResourceRequested(what="store", name=store.uri))
    if store.create(_near(config)):
        console.say(f"made the store {store.uri}, which is never deleted by cloudtrain")
        store.check()


def _near(config: ClusterConfig) -> str | None:
    """The first placement, where nodes and store are of one cloud."""
    near = is_of_the_nodes_cloud(config.artifacts.store or "", config) and config.placement
    return config.placement[0] if near else None


def raise_cluster(session: Session, settled: Settled) -> Session:
    """Every node exists, answers and has the end that it is to have, after what is settled was
    done: for who holds the lock already."""
    if settled.going:
        session = delete_nodes(session, settled.going)
    if settled.end is not None and session.nodes:
        announce(session, settled.end)
        session = move_ends(session, settled.end)
    session.records.journal(UpBegun(nodes=session.plan.names))
    before = bool(session.nodes)
    session = make_whole(session)
    if settled.end is not None and before:
        session = settle_end(session, settled.end)
    # A node of an `up` that was cut off may have been listed only now.
    settle_drift(session, NOTHING)
    return session
