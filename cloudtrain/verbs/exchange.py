"""`up --shrink`, `up --replace`: lands what some nodes hold, then deletes exactly those."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from cloudtrain.config.place import place_in_file
from cloudtrain.drift import (
    FIXED_END,
    Change,
    Drift,
    Made,
    drift,
    drift_by_record,
    made_with,
    refuse_drift,
    standing,
)
from cloudtrain.errors import CloudtrainError, UsageError
from cloudtrain.lifetime import End, known_end, new_end, words
from cloudtrain.model import Node, Plan
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


@dataclass(frozen=True, kw_only=True)
class Settled:
    """What `up` does about the drift."""

    going: tuple[str, ...] = ()
    """Nodes to be deleted first."""
    end: End | None = None
    """To be the end of the others."""


def settle_drift(session: Session, allowed: Allowed) -> Settled:
    """Raises UsageError for anything that differs and is not allowed; nothing was changed then."""
    events, config = session.records.events(), session.config
    found = drift(session.plan, session.nodes, events)
    found = replace(found, changes=(*found.changes, *fixed_ends(session.plan, session.nodes)))
    end = None if config.provider in FIXED_END else new_end(session)
    kept = tuple(change for change in found.changes if not (allowed.replace and change.replaces))
    refuse_drift(Drift(extra=() if allowed.shrink else found.extra, changes=kept), config)
    extra = found.extra if allowed.shrink else ()
    differing = found.differing if allowed.replace else ()
    return Settled(going=(*extra, *differing), end=end)


def fixed_ends(plan: Plan, nodes: Iterable[Node | str]) -> tuple[Change, ...]:
    """Another lifetime, where the cloud cannot move the end of a node that runs."""
    config = plan.config
    known = known_end(Records(config.name).events())
    wanted = config.limits.max_lifetime
    if config.provider not in FIXED_END or known is None or known.lifetime == wanted:
        return ()
    planned = [node.name for node in plan.nodes]
    names = [node if isinstance(node, str) else node.name for node in nodes]
    return (
        Change(
            nodes=tuple(name for name in names if name in planned),
            field="limits.max_lifetime",
            there=f"made with max_lifetime {words(known.lifetime)} ({FIXED_END[config.provider]})",
            wanted=words(wanted),
        ),
    )


def recorded_drift(plan: Plan) -> Drift:
    """Against the nodes that are on record here; nobody is asked."""
    nodes = on_record(plan)
    if not nodes:
        return Drift()
    found = drift_by_record(plan, nodes)
    return replace(found, changes=(*found.changes, *fixed_ends(plan, nodes)))


def lifetime_note(plan: Plan) -> tuple[str, ...]:
    """What `up` would do about another lifetime, by the record here."""
    config = plan.config
    known = known_end(Records(config.name).events())
    wanted = config.limits.max_lifetime
    if config.provider in FIXED_END or known is None or known.lifetime == wanted:
        return ()
    place = place_in_file(config, "limits.max_lifetime")
    return (
        f"{config.name} is made with max_lifetime {words(known.lifetime)}, {place} says "
        f"{words(wanted)}: `up` moves the end of its nodes",
    )


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
    everything = {node.name for node in session.nodes} <= set(names)
    session.records.journal("exchange", nodes=list(names), whole=everything)
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
