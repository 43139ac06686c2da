"""`up --shrink`, `up --replace`: lands what some nodes hold, then deletes exactly those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cloudtrain.cluster.drift import Drift, drift, refuse_drift
from cloudtrain.cluster.lifetime import new_end
from cloudtrain.cluster.provision import shown_journal
from cloudtrain.cluster.recorded_drift import fixed_end, fixed_ends
from cloudtrain.cluster.session import Session
from cloudtrain.core.errors import UsageError
from cloudtrain.core.events import ClusterEnd, RemovalBegun, nodes_leaving, pending_nodes
from cloudtrain.runs.landing_steps import land_everything


@dataclass(frozen=True, kw_only=True)
class AllowedChanges:
    """Changes that `up` may make to nodes that differ from the config."""

    shrink: bool = False
    """Delete those that the config does not name."""
    replace: bool = False
    """Recreate those that differ."""


NOTHING = AllowedChanges()


@dataclass(frozen=True, kw_only=True)
class DriftDecision:
    """Decision of `up` on the drift."""

    to_delete: tuple[str, ...] = ()
    """Nodes to delete first."""
    end: ClusterEnd | None = None
    """New expiry of the others."""


def decide_drift(session: Session, allowed: AllowedChanges) -> DriftDecision:
    """Decide about the drift, before anything is changed. Raises UsageError for a difference that
    is not allowed.
    """
    events, config = session.records.events(), session.config
    found = drift(session.plan, session.nodes, events)
    found = replace(found, changes=(*found.changes, *fixed_ends(session.plan, session.nodes)))
    end = None if fixed_end(config) else new_end(session)
    kept = tuple(change for change in found.changes if not (allowed.replace and change.replaces))
    refuse_drift(Drift(extra=() if allowed.shrink else found.extra, changes=kept), config)
    extra = found.extra if allowed.shrink else ()
    differing = found.differing if allowed.replace else ()
    return DriftDecision(to_delete=(*extra, *differing), end=end)


def delete_nodes(session: Session, names: Sequence[str]) -> Session:
    """Land what these nodes hold, then delete them; the others are left as they are.

    Raises UsageError during a run, NotLanded with every node kept, LeftoverError. After a kill, the
    next call continues: what the journal's `exchange` names had landed by then.
    """
    refuse_while_a_run_goes_on(session)
    due = [name for name in names if name not in nodes_leaving(session.records.events())]
    if due:
        session.console.say(f"landing what is only on the nodes before deleting {', '.join(due)}")
        land_everything(session)
    everything = {node.name for node in session.nodes} <= set(names)
    session.records.journal(RemovalBegun(nodes=tuple(names), whole=everything))
    late = pending_nodes(session.records.events())
    with session.console.stage(f"delete on {session.provider.name}", len(names)) as stage:
        journal = shown_journal(session, stage)
        if everything:  # network resources may have to be replaced too
            session.provider.destroy(session.config.name, journal, late)
        else:
            session.provider.remove(session.config.name, names, journal, late)
        for name in names:
            stage.done(name, "gone")
    return session.refreshed()


def refuse_while_a_run_goes_on(session: Session) -> None:
    active = session.records.active_run()
    if active is not None and active.state != "landing":
        name = session.config.name
        raise UsageError(
            f"run {active.id} of {name} is still active: its nodes are not deleted",
            hint=f"run `cloudtrain stop-run {name}` to end and land it, or wait for its end",
        )
