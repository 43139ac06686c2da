"""Reports what is still billed after a failure, or deletes what a failed `up` has created."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from cloudtrain.cluster.provision import shown_journal
from cloudtrain.cluster.session import Handle, Session
from cloudtrain.core.cloud import is_cloud
from cloudtrain.core.errors import CloudtrainError, if_told
from cloudtrain.core.events import nodes_requested, nodes_standing, not_given_back, pending_nodes
from cloudtrain.core.model import ClusterConfig, Node
from cloudtrain.core.paths import some
from cloudtrain.core.protocols import Console, Provider
from cloudtrain.money.estimate import price_of, total
from cloudtrain.money.prices import dollars
from cloudtrain.state import Records


@contextmanager
def report_or_roll_back(
    session: Session, to_delete: Sequence[str], *, rollback: bool
) -> Iterator[None]:
    """On any error inside, report nodes that are billed. `rollback`: first delete what was created
    inside; nodes of `to_delete` were to be recreated."""
    kept = {node.name for node in session.nodes} - set(to_delete)
    start = len(session.records.events())
    try:
        yield
    except BaseException as error:
        if rollback:
            roll_back(session, kept, start)
        report_existing(session.config, session.provider, session.records, session.console)
        if not isinstance(error, CloudtrainError):
            report_interrupted(session)
        raise


def roll_back(session: Session, kept: set[str], start: int) -> None:
    """Delete nodes that were requested since the journal's entry `start`; they have run nothing. A
    node that existed before may hold work, and is never among them."""
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


@contextmanager
def existing_reported(handle: Handle, console: Console) -> Iterator[None]:
    """On any error inside, report nodes that exist since an earlier `up`, by the record here."""
    try:
        yield
    except CloudtrainError:
        if nodes_standing(handle.records.events()):
            report_existing(handle.config, handle.provider, handle.records, console)
        raise


def report_existing(
    config: ClusterConfig, provider: Provider, records: Records, console: Console
) -> None:
    """Report existing nodes and what they cost; by the record if the cloud does not answer."""
    name = config.name
    try:
        nodes = provider.nodes(name)
    except CloudtrainError:
        with suppress(CloudtrainError):
            events = records.events()
            names = ", ".join(not_given_back(events) or nodes_standing(events))
            if names and is_cloud(config.provider):
                console.warn(
                    f"{provider.name} could not be queried; by the record, {names} are "
                    f"billed until `cloudtrain down {name}` has destroyed them"
                )
        return
    if nodes and not is_cloud(config.provider):
        names = some([node.name for node in nodes], NAMED)
        console.warn(
            f"{len(nodes)} nodes are kept, nothing is billed: {names}; `cloudtrain up` continues "
            f"with them, `cloudtrain down {name}` ends them"
        )
    elif nodes:
        console.warn(
            f"{billed(config, nodes)}; `cloudtrain up` continues with them, `cloudtrain down "
            f"{name}` destroys them (`up --give-back` deletes what it created when it fails)"
        )


def report_interrupted(session: Session) -> None:
    """Report what an interrupted `up` leaves, if `report_existing` had nothing to say."""
    name, ways = session.config.name, "`cloudtrain up` continues, `cloudtrain down"
    try:
        nodes = session.provider.nodes(name)
    except CloudtrainError:
        return
    if nodes:
        return
    if pending_nodes(session.records.events()):
        late = "requested nodes may be listed later"
        session.console.warn(f"interrupted: no node of {name} exists yet; {late}: {ways} {name}`")
    else:
        session.console.warn(f"interrupted: no node of {name} exists, nothing is billed")


NAMED = 8
"""Nodes named in the line; the rest are counted."""


@contextmanager
def report_billed_on_failure(session: Session) -> Iterator[None]:
    """On any error inside, report which nodes are still billed, how much, and until when."""
    try:
        yield
    except CloudtrainError:
        report_billed(session.config, session.provider, session.console)
        raise


def report_billed(config: ClusterConfig, provider: Provider, console: Console) -> None:
    """Report billed nodes, if any. A cloud that does not answer hides no error."""
    if not is_cloud(config.provider):
        return
    nodes: tuple[Node, ...] = if_told(lambda: tuple(provider.nodes(config.name)), ())
    if nodes:
        console.warn(
            f"{billed(config, nodes)}; `cloudtrain down {config.name}` lands what they hold "
            "and destroys them"
        )


def billed(config: ClusterConfig, nodes: tuple[Node, ...]) -> str:
    """Format `still billed: m-chief0, m-worker0, 1.20 $/hour, until 2026-11-22 18:40 UTC`."""
    names = some([node.name for node in nodes], NAMED)
    price = total(price_of(config, node).per_hour for node in nodes)
    cost = f"{dollars(price)}/hour" if price is not None else "price not known"
    ends = [node.expires for node in nodes]
    last = max((end for end in ends if end is not None), default=None)
    until = "without a limit (limits.max_lifetime is off)"
    if last is not None and None not in ends:
        until = f"until {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(last))}"
    return f"still billed: {names}, {cost}, {until}"
