"""Ends a run: lands and verifies everything that it created, and records its outcome."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from cloudtrain.artifacts.land import Closing, missing, not_landed
from cloudtrain.artifacts.landing import own_manifests
from cloudtrain.artifacts.manifest import Manifest
from cloudtrain.artifacts.own_manifests import read_to_judge
from cloudtrain.cluster.lost_nodes import lost_nodes
from cloudtrain.cluster.plan import deciding_tasks, first_task
from cloudtrain.cluster.provision import start_stopped
from cloudtrain.cluster.session import Session
from cloudtrain.core import moments
from cloudtrain.core.errors import CloudtrainError, NotLanded, RunFailed, StoreError
from cloudtrain.core.events import LandingFailed, RunEnded
from cloudtrain.core.run_record import Cause, Doubt, Run, Task
from cloudtrain.report.landed import warned
from cloudtrain.report.sources import on_record
from cloudtrain.runs import doubts
from cloudtrain.runs import root_cause as causes
from cloudtrain.runs.attempt_state import TAIL
from cloudtrain.runs.session_landing import landing_of, nodes_of
from cloudtrain.runs.state_table import of_run
from cloudtrain.runs.tasks import all_ends_known, end_orphans, log_files, save_run


def never_restarts(session: Session, run: Run, cause: Cause) -> bool:
    return False


def finish_run(
    session: Session,
    run: Run,
    *,
    failed_by: CloudtrainError | None = None,
    restarts: Callable[[Session, Run, Cause], bool] = never_restarts,
) -> Run:
    """Land the run and record how it ended. Raises RunFailed, NotLanded or StoreError.

    `failed_by` is the error that ended the run: recorded here, raised by the caller. If a node is
    lost before or meanwhile, what the others hold lands. If its task decides whether the run has
    succeeded, the attempt has failed by that: the run is returned as `starting` if `restarts`
    allows another.
    """
    final = final_state(session, run, failed_by)
    try:
        cause = cause_of_loss(session, final)
        if cause is None:
            final = land_and_record(session, final)
    except CloudtrainError as error:
        if lost_nodes(session, error):
            return finish_run(session.refreshed(), run, failed_by=failed_by, restarts=restarts)
        # The record stays at `landing`: whoever attends to the run next, or `down`, lands it.
        session.records.journal(LandingFailed(run=run.id, why=str(error)))
        raise not_landed(error) from error
    if cause is not None:
        last = replace(run.attempts[-1], cause=cause)
        run = replace(run, attempts=(*run.attempts[:-1], last))
        if restarts(session, run, cause):
            return save_run(session, replace(run, state="starting"))
        return finish_run(session, run, failed_by=failed_by, restarts=restarts)
    save_run(session, final)
    session.records.journal(RunEnded(run=run.id, state=final.state, exit_code=final.exit_code))
    if final.state == "failed" and failed_by is None:
        raise failure(final)
    warn_of_tolerated(session, final)
    warn_of_doubts(session, final)
    return final


def land_and_record(session: Session, run: Run) -> Run:
    """Land everything of the run, its record and its report, and return it as it ended."""
    session = start_stopped(session)
    closing = Closing(landing_of(session), run, nodes_of(session, run))
    for task in lost_tasks(session, run, closing.manifest):
        session.console.warn(f"{task.node} no longer exists: what had not landed from it is lost")
    lacking = land_run(session, run, closing)
    if run.state == "succeeded" and lacking:
        run = fail_without_required(run, lacking)
    run = replace(run, ended=moments.now(), doubts=doubts_of(session, run, closing.manifest))
    closing.record(run, log_files(session, run))
    land_report(session, run, closing)
    closing.complete()
    return run


def lost_tasks(session: Session, run: Run, manifest: Manifest) -> tuple[Task, ...]:
    """Tasks whose nodes no longer exist, and of which something may not have landed."""
    landed = manifest.landed_attempts
    return tuple(
        task
        for task in run.tasks
        if session.node(task.node) is None and landed.get(task.name) != task.attempt
    )


def cause_of_loss(session: Session, run: Run) -> Cause | None:
    """Why a run has not succeeded although its tasks have: a node was lost before all had landed
    of a task that decides. None if it has succeeded, or failed anyhow. Raises StoreError.
    """
    winners = deciding_tasks(run.tasks, session.config)
    deciding = replace(run, tasks=tuple(task for task in run.tasks if task.name in winners))
    if run.state != "succeeded" or all(session.node(task.node) for task in deciding.tasks):
        return None
    manifest, _ = read_to_judge(session.store, run.id, own_manifests(session.records))
    for task in lost_tasks(session, deciding, manifest):
        text = "its node was lost before its files had landed"
        return Cause(task=task.name, node=task.node, kind="lost", text=text)
    return None


def land_report(session: Session, run: Run, closing: Closing) -> None:
    """Land the run's report beside its record; a fault of it is a warning.

    It is listed by a complete manifest, or not at all.
    """
    manifest = replace(closing.manifest, complete=True)
    pages = warned(
        session.console.warn,
        lambda: on_record(session.records, run, manifest, session.store),
    )
    try:
        closing.add(pages)
    except StoreError as error:
        session.console.warn(f"the run's report was not uploaded: {error.message}")


def warn_of_tolerated(session: Session, run: Run) -> None:
    """Name at the end what failed in a run that succeeded without it."""
    for cause in run.attempts[-1].tolerated if run.state == "succeeded" else ():
        hint = f"\n  hint: {cause.hint}" if cause.hint else ""
        session.console.warn(f"the run succeeded without {causes.sentence(cause)}{hint}")


def doubts_of(session: Session, run: Run, manifest: Manifest) -> tuple[Doubt, ...]:
    """Why its success may be none, by the logs here and by what has landed."""
    if run.state != "succeeded" or not run.attempts:
        return ()
    deciding = sorted(deciding_tasks(run.tasks, session.config))
    logs = {task.name: log_tail(session, run, task) for task in run.tasks}
    files = {task.name: frozenset(manifest.task_files(task.name)) for task in run.tasks}
    everything = frozenset().union(*files.values())
    found = [doubts.swallowed(name, logs[name]) for name in deciding]
    found += [doubts.incomplete(name, files[name], everything) for name in deciding]
    last = run.attempts[-1]
    if deciding and last.ended is not None:
        found.append(
            doubts.untrained(
                deciding[0],
                logs,
                files=len(everything),
                seconds=last.ended - last.started,
                tensorflow=session.config.setup.tensorflow is not None,
            )
        )
    return tuple(doubt for doubt in found if doubt is not None)


def log_tail(session: Session, run: Run, task: Task) -> bytes:
    """The end of a task's log, as far as it has arrived here."""
    try:
        with session.records.log_path(run.id, task.name, task.attempt).open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL))
            return log.read()
    except OSError:
        return b""


def warn_of_doubts(session: Session, run: Run) -> None:
    for doubt in run.doubts:
        hint = f"\n  hint: {doubt.hint}" if doubt.hint else ""
        session.console.warn(f"{doubt.text}{hint}")


def fail_without_required(run: Run, lacking: Sequence[str]) -> Run:
    """Fail a run whose scripts succeeded without creating its required artifacts, once everything
    has landed.
    """
    roles = {task.role for task in run.tasks}
    hint = "check where the script saves: below {output}, or elsewhere in its work folder"
    if "chief" not in roles:
        hint += "; with `chief: false`, a script that saves only as `chief` saves nothing"
    cause = Cause(
        task="",
        node="",
        kind="require",
        text=f"the scripts succeeded, but no task created what artifacts.require lists: "
        f"{', '.join(lacking)}",
        hint=hint,
    )
    attempt = replace(run.attempts[-1], cause=cause)
    return replace(
        run,
        state="failed",
        exit_code=RunFailed.exit_code,
        attempts=(*run.attempts[:-1], attempt),
    )


def final_state(session: Session, run: Run, failed_by: CloudtrainError | None) -> Run:
    """The run in its final state, before anything about landing is known."""
    last = run.attempts[-1] if run.attempts else None
    if failed_by is not None:
        return replace(run, state="failed", exit_code=failed_by.exit_code)
    if last is not None and last.cause is not None:
        return replace(run, state="failed", exit_code=RunFailed.exit_code)
    winners = deciding_tasks(run.tasks, session.config)
    if last is not None and all(last.exits.get(name) == 0 for name in winners):
        return replace(run, state="succeeded", exit_code=0)
    return replace(run, state="stopped", exit_code=RunFailed.exit_code)


def land_run(session: Session, run: Run, closing: Closing) -> tuple[str, ...]:
    """Land everything from every existing node; returns the missing `artifacts.require` files.

    The table (`of_run`) speaks of tasks. Processes that a task left behind are in no record: files
    that still change are their only sign, and they are ended then.
    """
    if of_run("finish", run, "exited" if all_ends_known(run) else "unasked") == "end_orphans":
        end_orphans(session)
        return land_nodes(session, run, closing)
    try:
        return land_nodes(session, run, closing)
    except NotLanded:
        if not end_orphans(session):  # processes that a task left behind may still be writing
            raise
        return land_nodes(session, run, closing)


def land_nodes(session: Session, run: Run, closing: Closing) -> tuple[str, ...]:
    manifest = closing.bring()
    if run.state == "succeeded" and not manifest.files:
        session.console.warn(
            "no task wrote a file to land, in {output} or elsewhere in its work folder"
        )
    return missing(manifest, session.config.artifacts)


def failure(run: Run) -> RunFailed:
    cause = run.attempts[-1].cause or Cause(
        task=first_task(run.tasks).name, node="", kind="exit", text="failed"
    )
    return RunFailed(causes.describe(cause), hint=cause.hint, task_exit_code=cause.exit_code)
