"""Ends a run: lands and verifies everything that it created, and records its outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from cloudtrain.artifacts.land import Closing, missing, not_landed
from cloudtrain.artifacts.landing import own_manifests
from cloudtrain.artifacts.manifest import Manifest, read_to_judge
from cloudtrain.cluster.plan import deciding_tasks, first_task
from cloudtrain.cluster.provision import lost_nodes, start_stopped
from cloudtrain.cluster.session import Session
from cloudtrain.core import moments
from cloudtrain.core.errors import CloudtrainError, NotLanded, RunFailed, StoreError
from cloudtrain.core.events import LandingFailed, RunEnded
from cloudtrain.core.run_record import CAUSES, Cause, Doubt, Run, Task
from cloudtrain.diagnosis.doubts import incomplete, swallowed, untrained
from cloudtrain.report import notify
from cloudtrain.report.landed import warned
from cloudtrain.report.sources import on_record
from cloudtrain.runs import root_cause as causes
from cloudtrain.runs import tasks
from cloudtrain.runs.attempt_state import TAIL
from cloudtrain.runs.own_ends import ended_nodes
from cloudtrain.runs.state_table import of_run


def finish_run(
    session: Session,
    run: Run,
    *,
    failed_by: CloudtrainError | None = None,
    restarts: Callable[[Session, Run, Cause], bool] | None = None,
) -> Run:
    """Land the run and record how it ended. Raises RunFailed, NotLanded or StoreError.

    `failed_by` is the error that ended the run: recorded here, raised by the caller. If a node is
    lost before or meanwhile, what the others hold lands. If its task decides whether the run has
    succeeded, the attempt has failed by that: the run is returned as `starting` if `restarts`
    allows another."""
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
        run = tasks.with_attempt(run, cause=cause)
        if restarts is not None and restarts(session, run, cause):
            return tasks.save_run(session, replace(run, state="starting"))
        return finish_run(session, run, failed_by=failed_by, restarts=restarts)
    tasks.save_run(session, final)
    session.records.journal(RunEnded(run=run.id, state=final.state, exit_code=final.exit_code))
    why = (failed_by or failure(final)).message if final.state == "failed" else ""
    notify.run_ended(session.records, session.config, final, why, session.console)
    if final.state == "failed" and failed_by is None:
        raise failure(final)
    # Named at the end: what failed in a run that succeeded without it, and why to doubt that.
    lost = final.attempts[-1].tolerated if final.state == "succeeded" else ()
    found = [(f"the run succeeded without {causes.sentence(each)}", each.hint) for each in lost]
    for text, hint in [*found, *((doubt.text, doubt.hint) for doubt in final.doubts)]:
        session.console.warn(f"{text}\n  hint: {hint}" if hint else text)
    return final


def land_and_record(session: Session, run: Run) -> Run:
    """Land everything of the run, its record and its report, and return it as it ended."""
    _, ends = ended_nodes(session, run)
    session = start_stopped(session, {task.node for task in run.tasks if task.name in ends})
    closing = Closing(tasks.landing_of(session), run, tasks.nodes_of(session, run))
    for task in lost_tasks(session, run, closing.manifest):
        session.console.warn(f"{task.node} no longer exists: what had not landed from it is lost")
    lacking = land_run(session, run, closing)
    if run.state == "succeeded" and lacking:
        run = fail_without_required(run, lacking)
    run = replace(run, ended=moments.now(), doubts=doubts_of(session, run, closing.manifest))
    closing.record(run, tasks.log_files(session, run))
    # The report is listed by a complete manifest, or not at all.
    manifest = replace(closing.manifest, complete=True)
    pages = warned(
        session.console.warn, lambda: on_record(session.records, run, manifest, session.store)
    )
    try:
        closing.add(pages)
    except StoreError as error:
        session.console.warn(f"the run's report was not uploaded: {error.message}")
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
    """Cause of a failure although the tasks succeeded: a node was lost before all files of a
    deciding task had landed. None if the run has succeeded, or failed anyhow. Raises StoreError."""
    winners = deciding_tasks(run.tasks, session.config)
    deciding = replace(run, tasks=tuple(task for task in run.tasks if task.name in winners))
    if run.state != "succeeded" or all(session.node(task.node) for task in deciding.tasks):
        return None
    manifest, _ = read_to_judge(session.store, run.id, own_manifests(session.records))
    for task in lost_tasks(session, deciding, manifest):
        text = "its node was lost before its files had landed"
        return Cause(task=task.name, node=task.node, kind="lost", text=text)
    return None


def doubts_of(session: Session, run: Run, manifest: Manifest) -> tuple[Doubt, ...]:
    """Reasons to doubt a run's success, by the logs here and by what has landed."""
    if run.state != "succeeded" or not run.attempts:
        return ()
    deciding = sorted(deciding_tasks(run.tasks, session.config))
    logs = {task.name: tasks.log_tail(session, run, task, TAIL) for task in run.tasks}
    files = {task.name: frozenset(manifest.task_files(task.name)) for task in run.tasks}
    everything = frozenset().union(*files.values())
    found = [swallowed(name, logs[name]) for name in deciding]
    found += [incomplete(name, files[name], everything) for name in deciding]
    last = run.attempts[-1]
    if deciding and last.ended is not None:
        found.append(
            untrained(
                deciding[0],
                logs,
                files=len(everything),
                seconds=last.ended - last.started,
                tensorflow=session.config.setup.tensorflow is not None,
            )
        )
    return tuple(doubt for doubt in found if doubt is not None)


def fail_without_required(run: Run, lacking: Sequence[str]) -> Run:
    """Fail a run whose scripts succeeded without what `artifacts.require` lists; all has landed."""
    roles = {task.role for task in run.tasks}
    hint = "check where the script saves: below {output}, or elsewhere in its work folder"
    if "chief" not in roles:
        hint += "; with `chief: false`, a script that saves only as `chief` saves nothing"
    cause = Cause(
        task="",
        node="",
        kind="require",
        text=CAUSES["require"].words.format(files=", ".join(lacking)),
        hint=hint,
    )
    failed = replace(run, state="failed", exit_code=RunFailed.exit_code)
    return tasks.with_attempt(failed, cause=cause)


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
    """Land everything from every existing node; returns the missing `artifacts.require` files. The
    table (`of_run`) speaks of tasks. Processes that a task left behind are in no record: files that
    still change are their only sign, and they are ended then."""
    if of_run("finish", run, "exited" if tasks.all_ends_known(run) else "unasked") == "end_orphans":
        tasks.end_orphans(session)
        return land_nodes(session, run, closing)
    try:
        return land_nodes(session, run, closing)
    except NotLanded:
        if not tasks.end_orphans(session):  # processes that a task left behind may still be writing
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
