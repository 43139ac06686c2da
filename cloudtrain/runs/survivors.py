"""The other nodes while a lost one is waited for: kept, or given back, by what waiting costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cloudtrain.artifacts.land import Pending, by_folder, land_so_far
from cloudtrain.cluster.provision import shown_journal
from cloudtrain.cluster.ready_time import ready_time
from cloudtrain.cluster.session import Session
from cloudtrain.console.times import duration
from cloudtrain.core.cloud import is_cloud
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.events import RemovalBegun, pending_nodes
from cloudtrain.core.model import ON_DEMAND, Node
from cloudtrain.core.paths import some
from cloudtrain.core.run_record import Run
from cloudtrain.money.estimate import price_of, total
from cloudtrain.money.prices import dollars
from cloudtrain.runs.pending_artifacts import ask_unlanded, land_again, runs_of
from cloudtrain.runs.session_landing import landing_of, nodes_of
from cloudtrain.runs.tasks import end_orphans

AT_LEAST = 120.0
"""Seconds that surviving nodes are kept at least with `limits.give_back: auto`."""


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """Time for which the surviving nodes are kept, from the beginning of the wait."""

    seconds: float | None = None
    """None: as long as the wait lasts."""
    ready: float | None = None
    """Seconds that creating them anew would take; None if not known."""


WHOLE_WAIT = Keeping()


def keeping(session: Session) -> Keeping:
    """Time for which the nodes that are left may wait for a lost one.

    `limits.give_back: auto`: as long as it took to make them ready. From then on the wait has cost
    as much as creating them anew does, so that whatever comes, at most twice of the lesser of the
    two is paid. Without checkpoints their work would be lost, and nodes on demand with GPUs may not
    be had again: both are kept. A duration decides it for all nodes with checkpoints.
    """
    wanted, there = session.config.limits.give_back, surviving(session)
    checkpoints = session.config.train.checkpoints
    if wanted is None or checkpoints is None or not there or not is_cloud(session.config.provider):
        return WHOLE_WAIT
    ready = ready_time(session.records.events())
    if wanted != "auto":
        return Keeping(seconds=wanted, ready=ready)
    if ready is None or any(_is_scarce(session, node) for node in there):
        return WHOLE_WAIT
    return Keeping(seconds=max(AT_LEAST, ready), ready=ready)


def surviving(session: Session) -> tuple[Node, ...]:
    return tuple(node for node in session.nodes if node.state in ("starting", "running"))


def _is_scarce(session: Session, node: Node) -> bool:
    """On demand with GPUs, reserved, or from a queue."""
    bought = node.provisioning
    return not bought.spot and (
        bought != ON_DEMAND or session.plan.accelerator(node.name) is not None
    )


def billed_meanwhile(session: Session) -> str:
    """`billed meanwhile: mnist-chief0, 0.38 $/hour`; "" where nothing is billed by the hour."""
    if not is_cloud(session.config.provider):
        return ""
    there = surviving(session)
    if not there:
        return "nothing is billed meanwhile"
    text = _dollars(session, there, 3600.0) or "price not known"
    per_hour = "/hour" if text.endswith("$") else ""
    return f"billed meanwhile: {some([node.name for node in there])}, {text}{per_hour}"


def _dollars(session: Session, nodes: Sequence[Node], seconds: float) -> str:
    """`0.38 $` for so many seconds of these nodes, `at most 0.38 $`, or "" if nobody knows."""
    prices = [price_of(session.config, node) for node in nodes]
    price = total(each.per_hour for each in prices)
    if price is not None:
        return dollars(price * seconds / 3600)
    ceiling = total(each.most for each in prices)
    return "" if ceiling is None else f"at most {dollars(ceiling * seconds / 3600)}"


def give_back(session: Session, run: Run, keep: Keeping, waited: float) -> Session:
    """Land everything that the surviving nodes hold, delete them, and return the session without
    them; as it is, with a warning, if that fails: nodes whose files have not landed are kept.

    The tasks of the last attempt have ended. A killed call is finished by the next request for
    nodes, by `down` or by `gc`: what the journal's `exchange` names has landed.
    """
    there = surviving(session)
    session.console.warn(_reason(session, there, keep, waited))
    try:
        left = _landed(session.patient(), run)
        if left:
            session.console.warn(
                f"{some([node.name for node in there])} kept: {len(left)} files are only there: "
                f"{by_folder(left)}"
            )
            return session
        _delete(session, there)
    except CloudtrainError as error:
        session.console.warn(f"{some([node.name for node in there])} kept: {error.message}")
    return session.refreshed()


def _reason(session: Session, there: Sequence[Node], keep: Keeping, waited: float) -> str:
    names, spent = some([node.name for node in there]), _dollars(session, there, waited)
    anew = "" if keep.ready is None else f", making them ready took {duration(keep.ready)}"
    if keep.ready is not None and (cost := _dollars(session, there, keep.ready)):
        anew += f" ({cost})"
    set_by = session.config.limits.give_back
    field = "auto" if set_by == "auto" else duration(float(set_by or 0.0))
    return (
        f"{names}: waiting has cost {spent or 'money'} in {duration(waited)}{anew}: landing what "
        "they hold and deleting them, so that nothing is billed while the wait goes on "
        f"(limits.give_back: {field})"
    )


def _landed(session: Session, run: Run) -> tuple[Pending, ...]:
    """Land what these nodes hold of any run; returns what is only on them after that."""
    end_orphans(session)
    left = ask_unlanded(session)
    for run_id in runs_of(left):
        if run_id == run.id:  # its manifest stays open: the run goes on
            land_so_far(landing_of(session), run, nodes_of(session, run))
        else:
            land_again(session, run_id, left)
    return ask_unlanded(session) if left else ()


def _delete(session: Session, there: Sequence[Node]) -> None:
    """Delete the whole cluster, network resources included: the next one may be elsewhere."""
    names = tuple(node.name for node in session.nodes)
    session.records.journal(RemovalBegun(nodes=names, whole=True))
    late = pending_nodes(session.records.events())
    with session.console.stage(f"delete on {session.provider.name}", len(there)) as stage:
        journal = shown_journal(session, stage)
        session.provider.destroy(session.config.name, journal, late)
        for node in there:
            stage.done(node.name, "gone")
