"""Lands what the nodes hold and no store has, compared with both."""

from __future__ import annotations

from cloudtrain.artifacts.land import land_files, pending_files
from cloudtrain.artifacts.landing import landing_of
from cloudtrain.cluster.plan import tasks as planned
from cloudtrain.cluster.session import Session
from cloudtrain.run_record import Run


def land_what_is_left(session: Session) -> tuple[str, ...]:
    """Land files that nodes created or kept after their run's end; returns what is only on the
    nodes after that.
    """
    left = ask_unlanded(session)
    if not left:
        return ()
    for run_id in sorted({path.split("/")[0] for path in left}):
        session.console.say(f"landing run {run_id}")
        land_again(session, run_id, left)
    return ask_unlanded(session)


def ask_unlanded(session: Session) -> tuple[str, ...]:
    """Compare everything with the nodes once more, which takes minutes for 100,000 files."""
    with session.console.stage("verify what has landed", len(session.nodes)) as stage:
        return pending_files(landing_of(session), session.nodes, stage)


def land_again(session: Session, run_id: str, left: tuple[str, ...]) -> None:
    known = {run.id: run for run in session.records.runs()}
    run = known.get(run_id) or unknown_run(session, run_id, left)
    land_files(landing_of(session), run, {node.task: node for node in session.nodes})


def unknown_run(session: Session, run_id: str, left: tuple[str, ...]) -> Run:
    """A run that only the nodes' disks know."""
    names = {path.split("/")[1] for path in left if path.startswith(f"{run_id}/")}
    tasks = tuple(task for task in planned(session.plan) if task.name in names)
    return Run(
        id=run_id,
        cluster=session.config.name,
        command="",
        tasks=tasks,
        state="landing",
        created=0.0,
    )
