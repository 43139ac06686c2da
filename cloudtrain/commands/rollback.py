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
def report_or_roll_back(session: Session, going: Sequence[str], *, back: bool) -> Iterator[None]:
    """On any error inside, report nodes that are billed.

    `back`: delete first what was created in here; `going` were to be created again.
    """
    kept = {node.name for node in session.nodes} - set(going)
    start = len(session.records.events())
    try:
        yield
    except BaseException:
        if back:
            roll_back(session, kept, start)
        tell(session)
        raise


def roll_back(session: Session, kept: set[str], start: int) -> None:
    """Delete nodes that were requested since the journal's entry `start`; they have run nothing.

    A node that existed before may hold work, and is never among them.
    """
    events = session.records.events()
    made = nodes_requested(events[start:]).keys() - kept
    if not made:
        return
    name, provider, late = session.config.name, session.provider, pending_nodes(events)
    try:
        with session.console.stage(f"give back on {provider.name}", len(made)) as stage:
            journal = shown_journal(session, stage)
            if kept:
                provider.remove(name, sorted(made), journal, late)
            else:
                provider.destroy(name, journal, late)
            for node in sorted(made):
                stage.done(node, "gone")
    except CloudtrainError as error:
        session.console.warn(f"giving back what this `up` made failed too: {error}")


def tell(session: Session) -> None:
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
                    f"{session.provider.name} could not be asked what exists; by the record here: "
                    f"{names}: billed until `cloudtrain down {session.config.name}` has ended them"
                )
        return
    if nodes:
        session.console.warn(
            f"{billed(session.config, nodes)}; `cloudtrain up` goes on with them, "
            f"`cloudtrain down {session.config.name}` ends them (`up --give-back` gives back by "
            "itself what it made)"
        )
