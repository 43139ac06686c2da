"""`up --shrink`, `up --replace`: lands what some nodes hold, then deletes exactly those."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from cloudtrain.drift import Drift, Made, drift, made_with, refuse_drift, standing
from cloudtrain.errors import CloudtrainError, UsageError
from cloudtrain.model import Plan
from cloudtrain.nodes import asked_for, leaving, shown
from cloudtrain.plan import make_plan
from cloudtrain.records import Records
from cloudtrain.session import Session, recorded_config
from cloudtrain.verbs.down import land_everything


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """What `up` may do to nodes that are not as the config says."""

    shrink: bool = False
    """Delete those that the config does not name."""
    replace: bool = False
    """Exchange those that differ."""


NOTHING = Allowed()


def settle_drift(session: Session, allowed: Allowed) -> tuple[str, ...]:
    """Names of the nodes to be deleted before `up` goes on. Raises UsageError for anything that
    differs and is not allowed; nothing was changed then."""
    events = session.records.events()
    found = drift(session.plan, session.nodes, events)
    kept = tuple(change for change in found.changes if not (allowed.replace and change.replaces))
    refuse_drift(Drift(extra=() if allowed.shrink else found.extra, changes=kept), session.config)
    extra = found.extra if allowed.shrink else ()
    differing = found.differing if allowed.replace else ()
    return (*extra, *differing)


def on_record(plan: Plan) -> dict[str, Made]:
    """The nodes that exist by the record here, each with what it was asked for; what a record of
    an earlier version does not tell is taken from the config that it has."""
    records = Records(plan.config.name)
    if not records.is_open():
        return {}
    found = standing(records.events())
    if any(not facts for facts in found.values()):
        with suppress(CloudtrainError):
            before = make_plan(recorded_config(records))
            known = {node.name: made_with(before.config, node) for node in before.nodes}
            return {name: facts or known.get(name, {}) for name, facts in found.items()}
    return found


def delete_nodes(session: Session, names: Sequence[str]) -> Session:
    """What these hold is landed, then they are deleted; the others are left as they are.

    Raises UsageError while a run goes on, NotLanded with every node kept, LeftoverError. After a
    kill the same again goes on: what the journal's `exchange` names had landed by then.
    """
    refuse_while_a_run_goes_on(session)
    due = [name for name in names if name not in leaving(session.records.events())]
    if due:
        session.console.say(f"landing what is only on the nodes, before {', '.join(due)} go")
        land_everything(session)
    session.records.journal("exchange", nodes=list(names))
    everything = {node.name for node in session.nodes} <= set(names)
    late = asked_for(session.records.events())
    with session.console.stage(f"delete on {session.provider.name}", len(names)) as stage:
        journal = shown(session, stage)
        if everything:  # what they stood on may have to be another too
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
            f"run {active.id} of {name} goes on: its nodes are not deleted",
            hint=f"`cloudtrain stop-run {name}` ends and lands it; or wait for its end",
        )
