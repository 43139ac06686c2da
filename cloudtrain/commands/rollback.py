"""When `up` fails: reports what is still billed, or deletes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from cloudtrain.cloud import is_cloud
from cloudtrain.cluster.provision import shown_journal
from cloudtrain.cluster.session import Session
from cloudtrain.commands.billing_notice import billed
from cloudtrain.errors import CloudtrainError
from cloudtrain.events import nodes_requested, nodes_standing, not_given_back, pending_nodes


@contextmanager
def report_or_roll_back(
    session: Session, to_delete: Sequence[str], *, rollback: bool
) -> Iterator[None]:
    """On any error inside, report nodes that are billed.

    `rollback`: first delete what was created inside; nodes of `to_delete` were to be recreated.
    """
    kept = {node.name for node in session.nodes} - set(to_delete)
    start = len(session.records.events())
    try:
        yield
    except BaseException as error:
        if rollback:
            roll_back(session, kept, start)
        report_existing(session)
        if not isinstance(error, CloudtrainError):
            report_interrupted(session)
        raise


def roll_back(session: Session, kept: set[str], start: int) -> None:
    """Delete nodes that were requested since the journal's entry `start`; they have run nothing.

    A node that existed before may hold work, and is never among them.
    """
    events = session.records.events()
    created = nodes_requested(events[start:]).keys() - kept
    if not created:
        return
    name, provider, late = session.config.name, session.provider, pending_nodes(events)
    try:
        with session.console.stage(f"roll back on {provider.name}", len(created)) as stage:
            journal = shown_journal(session, stage)
            if kept:
                provider.remove(name, sorted(created), journal, late)
            else:
                provider.destroy(name, journal, late)
            for node in sorted(created):
                stage.done(node, "gone")
    except CloudtrainError as error:
        session.console.warn(f"the rollback of this `up` failed too: {error}")


def report_existing(session: Session) -> None:
    """Report the nodes that exist and are billed; by the record if the cloud does not answer."""
    if not is_cloud(session.config.provider):
        return
    try:
        nodes = session.provider.nodes(session.config.name)
    except CloudtrainError:
        with suppress(CloudtrainError):
            events = session.records.events()
            names = ", ".join(not_given_back(events) or nodes_standing(events))
            if names:
                session.console.warn(
                    f"{session.provider.name} could not be queried; by the record, {names} are "
                    f"billed until `cloudtrain down {session.config.name}` has destroyed them"
                )
        return
    if nodes:
        session.console.warn(
            f"{billed(session.config, nodes)}; `cloudtrain up` continues with them, "
            f"`cloudtrain down {session.config.name}` destroys them (`up --give-back` deletes "
            "what it created when it fails)"
        )


def report_interrupted(session: Session) -> None:
    """Report what an interrupted `up` leaves, if `report_existing` had nothing to say."""
    name, ways = session.config.name, "`cloudtrain up` continues, `cloudtrain down"
    try:
        nodes = session.provider.nodes(name)
    except CloudtrainError:
        return
    if nodes and is_cloud(session.config.provider):
        return
    if nodes:
        session.console.warn(f"interrupted: {len(nodes)} nodes are kept; {ways} {name}` ends them")
    elif pending_nodes(session.records.events()):
        late = "requested nodes may be listed later"
        session.console.warn(f"interrupted: no node of {name} exists yet; {late}: {ways} {name}`")
    else:
        session.console.warn(f"interrupted: no node of {name} exists, nothing is billed")
