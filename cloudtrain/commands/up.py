"""`cloudtrain up`: creates the cluster and sets it up; run again, it repairs and continues."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from cloudtrain.checks.check import refuse
from cloudtrain.checks.node_notes import without_end
from cloudtrain.checks.notes import open_notes
from cloudtrain.checks.script_code import missing_script
from cloudtrain.cluster.drift import override_notes
from cloudtrain.cluster.lease import holding_cluster
from cloudtrain.cluster.lifetime import (
    confirm_own_ends,
    moment,
    move_ends,
    paid_until,
    record_move,
    refuse_unpaid,
    settle_end,
)
from cloudtrain.cluster.place_choice import in_first_with_room
from cloudtrain.cluster.provision import ensure_nodes, lost_as_no_capacity
from cloudtrain.cluster.rollback import existing_reported, report_or_roll_back
from cloudtrain.cluster.session import (
    Handle,
    Session,
    is_of_the_nodes_cloud,
    open_session,
    record_cluster,
    refuse_other_use,
)
from cloudtrain.core import moments
from cloudtrain.core.events import ResourceRequested, UpBegun, UpCompleted, known_end
from cloudtrain.core.model import Cluster, ClusterConfig, Plan
from cloudtrain.core.protocols import Console
from cloudtrain.runs import own_ends
from cloudtrain.runs.idle import recorded_budget, starting_idle_process
from cloudtrain.runs.landing_steps import (
    NOTHING,
    AllowedChanges,
    DriftDecision,
    decide_drift,
    delete_nodes,
)
from cloudtrain.runs.node_agents import start_agents, watch_idle_nodes
from cloudtrain.runs.supervise import ended_with_everything_landed
from cloudtrain.setup.prepare import prepare_nodes
from cloudtrain.state import Records


def up(
    plan: Plan,
    *,
    allowed: AllowedChanges = NOTHING,
    adopt: bool = False,
    ignore: Collection[str] = (),
    give_back: bool = False,
    wait: float | None = None,
    console: Console,
) -> Cluster:
    """Create every node of the config, reachable over SSH and with what `setup:` and `code:` name.

    With candidates, in the first of them that has room. Raises UsageError if existing nodes differ
    from the config in a way that is not `allowed`; the provider's errors, StepFailed for a
    playbook, LockedError. `give_back`: on failure, delete the nodes that this call created. `wait`:
    seconds to wait for capacity and quota, with nothing billed meanwhile."""
    handle, config = Handle(plan.config, plan), plan.config

    def accept(handle: Handle, console: Console) -> None:
        with existing_reported(handle, console):
            refuse(handle, console, ignore)

    create = partial(create_and_set_up, allowed=allowed, give_back=give_back)
    with starting_idle_process(handle.records), holding_cluster(handle, "up", console):
        refuse_other_use(config, handle.records, adopt=adopt)
        # Variables that override the file, open ports, and a script that is missing.
        for note in (*override_notes(config), *open_notes(config), missing_script(config)):
            if note is not None:
                console.warn(note)
        cluster = in_first_with_room(handle, accept, create, console, wait=wait)
    say_when_it_ends(config, handle.records, console)
    return cluster


def create_and_set_up(
    handle: Handle, console: Console, *, allowed: AllowedChanges, give_back: bool
) -> Cluster:
    """Create or repair the cluster in one place, and set up its nodes."""
    records = handle.records
    records.create()
    with open_session(handle, console) as session:
        with existing_reported(handle, console):
            settled = decide_drift(session, allowed)
            record_cluster(handle.config, records)
            make_store(handle, console)
        with report_or_roll_back(session, settled.to_delete, rollback=give_back):
            ended_with_everything_landed(session)
            session = set_up(create_cluster(session, settled))
        records.journal(UpCompleted())
    return Cluster(name=handle.config.name, nodes=session.nodes)


def say_when_it_ends(config: ClusterConfig, records: Records, console: Console) -> None:
    spent = recorded_budget(records, moments.now())
    if spent is not None and spent.end is not None:
        console.say(f"{spent}; its rest lasts until {moment(spent.end)} (limits.budget)")
    if config.limits.idle is not None:
        off = own_ends.said_of_their_ends(config)
        console.say(f"taken down after {config.limits.idle:g} s without a run (limits.idle){off}")


def set_up(session: Session) -> Session:
    """Prepare the nodes; returns the session with what those say of their own ends."""
    with lost_as_no_capacity(session):
        prepare_nodes(session.patient())
        session = confirm_own_ends(session)
        watch_idle_nodes(session)
    for node in without_end(session.nodes, session.clock.now()):
        session.console.warn(
            f"{node.name}: NO END: {node.no_end}: `cloudtrain up --replace` replaces it, "
            f"`cloudtrain down {session.config.name}` deletes it"
        )
    return session


def make_store(handle: Handle, console: Console) -> None:
    """Create the bucket if `artifacts.create` is set and it does not exist; test it by writing."""
    config = handle.config
    if not config.artifacts.create or config.artifacts.store is None:
        return
    store = handle.store
    handle.records.journal(ResourceRequested(what="store", name=store.uri))
    is_near = is_of_the_nodes_cloud(config.artifacts.store, config)
    place = config.placement[0] if is_near and config.placement else None
    if store.create(place, config.tags if is_near else {}):
        console.say(f"created the store {store.uri}; cloudtrain never deletes it")
        store.check()


def renew_agents(session: Session) -> None:
    """Give the agents of an unattended run the new end: before the old one they would end its
    tasks."""
    run = session.records.active_run()
    if run is not None:
        start_agents(session, run)


def create_cluster(session: Session, settled: DriftDecision) -> Session:
    """Apply the settled changes; then create or repair every node and set its expiry. The caller
    holds the lock."""
    if settled.to_delete:
        session = delete_nodes(session, settled.to_delete)
    if settled.end is not None and session.nodes:
        refuse_unpaid(session, session.plan)  # else the end would be moved by a refused `up`
        record_move(session, settled.end)
        session = move_ends(session, settled.end)
        renew_agents(session)
    own_ends.keep_connected(session)
    session.records.journal(UpBegun(nodes=session.plan.names))
    before = {node.name: node.expires for node in session.nodes}
    session = ensure_nodes(session)
    known = known_end(session.records.events())
    if settled.end is not None and before and known is not None and known.moving is not None:
        # No later than the budget allows now: nodes may have been added or started.
        end, paid = settled.end, paid_until(session, session.plan)
        if paid is not None and (end.expires is None or end.expires > paid):
            end = replace(end, expires=paid)
        session = settle_end(session, end)
    if any(node.expires != before.get(node.name, node.expires) for node in session.nodes):
        renew_agents(session)
    # A node of an interrupted `up` may have been listed only now.
    decide_drift(session, NOTHING)
    return session
