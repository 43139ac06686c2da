"""A run whose nodes are gone when `down` comes: what had landed of it, and what is lost."""

from __future__ import annotations

import time
from dataclasses import replace

from cloudtrain.artifacts.landing import own_manifests
from cloudtrain.artifacts.manifest import Manifest, read_to_judge
from cloudtrain.cluster.session import Handle
from cloudtrain.core import moments
from cloudtrain.core.errors import CloudtrainError, NotLanded, RunFailed
from cloudtrain.core.events import RunEnded, being_destroyed, nodes_leaving
from cloudtrain.core.paths import size_text, some
from cloudtrain.core.run_record import Cause, Run
from cloudtrain.state import Records


def end_lost_run(handle: Handle) -> NotLanded | None:
    """For a cluster without a node: record its active run as failed, and return the error that
    names it and what had landed. None if there is none, or all that it made has landed.
    """
    records = handle.records
    run = records.active_run()
    if run is None or not run.attempts or _had_landed(records, run):
        return None
    try:
        manifest, is_own = read_to_judge(handle.store, run.id, own_manifests(records))
        why = "" if is_own else f"; {landed(manifest)}, by a list that this machine did not write"
    except CloudtrainError as error:
        manifest, why = Manifest(run=run.id), f"; what had landed is not known: {error.message}"
    if all(manifest.landed_attempts.get(task.name) == task.attempt for task in run.tasks):
        return None
    nodes = some(sorted({task.node for task in run.tasks}))
    text = f"{nodes} gone before everything had landed"
    last = replace(run.attempts[-1], cause=Cause(task="", node="", kind="lost", text=text))
    records.save_run(
        replace(
            run,
            state="failed",
            ended=moments.now(),
            exit_code=RunFailed.exit_code,
            attempts=(*run.attempts[:-1], last),
        )
    )
    records.journal(RunEnded(run=run.id, state="failed", exit_code=RunFailed.exit_code))
    return NotLanded(
        f"run {run.id} was active, and its nodes are gone ({nodes}): {why[2:] or landed(manifest)}",
        hint=f"`cloudtrain fetch {records.name} --run {run.id}` downloads what has landed"
        + (
            f"; `cloudtrain train --resume {run.id}` begins with its last landed checkpoint"
            if manifest.checkpoint is not None
            else ""
        ),
    )


def _had_landed(records: Records, run: Run) -> bool:
    """True if a command of ours has deleted the nodes, which it does once everything has landed."""
    events = records.events()
    return being_destroyed(events) or {task.node for task in run.tasks} <= nodes_leaving(events)


def landed(manifest: Manifest) -> str:
    """`12 files (1.2 MB) had landed, the newest of 14:02:11; what was made since is lost`."""
    files = manifest.files.values()
    if not files:
        return "nothing of it had landed, all that it made is lost"
    size = size_text(sum(file.size for file in files))
    newest = max(file.mtime for file in files) / 1e9
    day = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(newest))
    of = f", the newest of {day}" if newest else ""
    count = f"{len(files)} file{'' if len(files) == 1 else 's'}"
    return f"{count} ({size}) had landed{of}; what it made since then is lost"
