"""Lands what the nodes hold and no store has, compared with both."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from cloudtrain.artifacts.land import Pending, land_files, land_so_far, pending_files
from cloudtrain.cluster.plan import tasks as planned
from cloudtrain.cluster.session import Session
from cloudtrain.core.errors import CloudtrainError, NodeError, NodesError, NotLanded
from cloudtrain.core.run_record import Run
from cloudtrain.runs.session_landing import landing_of


def land_what_is_left(session: Session) -> tuple[Pending, ...]:
    """Land files that nodes created or kept after their run's end; returns what is only on the
    nodes after that.

    Raises NotLanded for nodes that cannot be queried, after the others' files have landed.
    """
    try:
        left = ask_unlanded(session)
    except NotLanded as error:
        land_from_others(session, failed_nodes(error))
        raise
    if not left:
        return ()
    for run_id in runs_of(left):
        session.console.say(f"landing run {run_id}")
        land_again(session, run_id, left)
    return ask_unlanded(session)


def land_from_others(session: Session, failed: Collection[str]) -> None:
    """Land what the other nodes hold; their runs' manifests stay open."""
    nodes = tuple(node for node in session.nodes if node.name not in failed)
    if not failed or not nodes:
        return
    others = replace(session, nodes=nodes)
    try:
        left = ask_unlanded(others)
        for run_id in runs_of(left):
            session.console.say(f"landing run {run_id} from the nodes that answer")
            run = run_known(session, run_id, left)
            land_so_far(landing_of(session), run, {node.task: node for node in nodes})
    except CloudtrainError as error:  # the first error is the one to report
        session.console.warn(error.message)


def failed_nodes(error: NotLanded) -> tuple[str, ...]:
    """Names of the nodes whose failure was the cause."""
    cause = error.__cause__
    if isinstance(cause, NodesError):
        each = cause.failures.values()
        return tuple(one.node for one in each if isinstance(one, NodeError))
    return (cause.node,) if isinstance(cause, NodeError) else ()


def runs_of(left: Iterable[Pending]) -> list[str]:
    return sorted({file.path.split("/")[0] for file in left})


def ask_unlanded(session: Session) -> tuple[Pending, ...]:
    """Compare everything with the nodes once more, which takes minutes for 100,000 files."""
    with session.console.stage("verify what has landed", len(session.nodes)) as stage:
        return pending_files(landing_of(session), session.nodes, stage)


def land_again(session: Session, run_id: str, left: tuple[Pending, ...]) -> None:
    run = run_known(session, run_id, left)
    nodes = {node.task: node for node in session.nodes}
    land_files(landing_of(session), run, nodes, certain=True)


def run_known(session: Session, run_id: str, left: tuple[Pending, ...]) -> Run:
    known = {run.id: run for run in session.records.runs()}
    return known.get(run_id) or unknown_run(session, run_id, left)


def unknown_run(session: Session, run_id: str, left: tuple[Pending, ...]) -> Run:
    """A run that only the nodes' disks know."""
    names = {file.path.split("/")[1] for file in left if file.path.startswith(f"{run_id}/")}
    tasks = tuple(task for task in planned(session.plan) if task.name in names)
    return Run(
        id=run_id,
        cluster=session.config.name,
        command="",
        tasks=tasks,
        state="landing",
        created=0.0,
    )
