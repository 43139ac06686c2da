"""Takes the steps of `down`, `stop-run` and `up --shrink`, as the state table names them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace

from cloudtrain.artifacts.land import Pending, by_folder
from cloudtrain.artifacts.landing import own_manifests
from cloudtrain.artifacts.manifest import Manifest, read_to_judge
from cloudtrain.cluster.drift import Drift, drift, fixed_end, fixed_ends, refuse_drift
from cloudtrain.cluster.lifetime import new_end
from cloudtrain.cluster.ownership import is_recorded
from cloudtrain.cluster.provision import (
    await_known_states,
    await_started,
    plan_with_existing,
    shown_journal,
    start_stopped,
)
from cloudtrain.cluster.session import Handle, Session
from cloudtrain.config.location import place_in_file
from cloudtrain.core import moments
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CloudtrainError, NotLanded, RunFailed, UsageError
from cloudtrain.core.events import (
    ClusterEnd,
    RemovalBegun,
    RunEnded,
    being_destroyed,
    nodes_leaving,
    pending_nodes,
    runs_begun,
)
from cloudtrain.core.model import AUTO, ClusterConfig, Node
from cloudtrain.core.paths import shown, size_text, some
from cloudtrain.core.run_record import Cause
from cloudtrain.runs.finish import finish_run
from cloudtrain.runs.state_table import (
    Command,
    Files,
    Record,
    Seen,
    Step,
    TaskSeen,
    node_seen,
    run_recorded,
    take_steps,
)
from cloudtrain.runs.supervise import end_attempts, passes
from cloudtrain.runs.tasks import end_orphans, land_what_is_left, with_attempt
from cloudtrain.state import Records


class LandingSteps:
    """Observations and steps of one command so far. `ended`: ids of runs whose tasks it ended."""

    def __init__(self, session: Session) -> None:
        session = plan_with_existing(session.refreshed())
        there = tuple(node for node in session.nodes if node.state != "gone")
        self.session = replace(session, nodes=there)
        self.ended: frozenset[str] = frozenset()
        self.left: tuple[Pending, ...] = ()
        self._transport = session.patient().transport
        self._task: TaskSeen = "unasked"
        self._files: Files = "unasked"

    def take_all(self, command: Command) -> Step:
        """Take every step of the command and return its last one, which is left to the caller."""
        return take_steps(
            command,
            lambda: cluster_seen(
                self.session.records, self.session.nodes, task=self._task, files=self._files
            ),
            self._take,
        )

    def _take(self, step: Step) -> None:
        if step == "start_node":
            self.session = start_stopped(self.session)
        elif step == "await_node":
            self.session = await_known_states(await_started(self.session))
        elif step in ("stop_run", "finish_run"):
            self._end_run(step)
        elif step == "end_orphans":
            self.ended = end_orphans(self._patient())
            self._task = "exited" if self.ended else "absent"
        else:
            self.left = land_what_is_left(self._patient())
            self._files = "unlanded" if self.left else "landed"

    def _patient(self) -> Session:
        """The session for all steps but the end of an attempt, which has limits of its own."""
        return replace(self.session, transport=self._transport)

    def _end_run(self, step: Step) -> None:
        """Stop the active run, or finish it. A failure that does not pass is reported: `land` then
        compares the nodes with the store, whatever the run's record says."""
        records = self.session.records
        run = records.active_run()
        if run is None:
            return
        try:
            if step == "stop_run":
                records.ask_stop(run.id)
                self.session, _ = end_attempts(self.session, run)
            else:
                finish_run(self.session, run)
        except UsageError:
            raise
        except CloudtrainError as error:
            if passes(error):
                raise
            self.session.console.warn(error.message)


def only_on_nodes(config: ClusterConfig, left: Sequence[Pending]) -> NotLanded:
    """NotLanded for files that no landing has brought, with the ways out."""
    name, limit = config.name, config.artifacts.limit
    why = ""
    if AUTO in config.artifacts.paths and sum(file.size for file in left) > 0:
        why = f": more than artifacts.limit ({size_text(limit)} for each task)"
    file = shown(os.path.relpath(config.source)) if config.source else name
    return NotLanded(
        f"not landed{why}: {by_folder(left)}; the nodes are kept",
        hint=f"{place_in_file(config, 'artifacts.limit')}: raise it, or name the files in "
        f"artifacts.paths, and run `cloudtrain down {file}`\n"
        f"or copy it here with `cloudtrain fetch {name} --from-nodes`\n"
        f"or delete it with the nodes: `cloudtrain down {name} --discard`",
    )


def land_everything(session: Session) -> None:
    """End the active run, and land all that the nodes hold. Raises NotLanded if files are left."""
    steps = LandingSteps(session)
    if steps.take_all("down") == "keep":
        raise only_on_nodes(session.config, steps.left)


def cluster_seen(
    records: Records, nodes: Sequence[Node], *, task: TaskSeen = "unasked", files: Files = "unasked"
) -> tuple[Seen, ...]:
    """One value per node; a single `gone` one if there is none."""
    run = run_recorded(records.active_run(), had_one=bool(records.runs()))
    record = record_seen(records, nodes)
    states = [node_seen(node.state) for node in nodes] or ["gone"]
    return tuple(
        Seen(node=state, task=task, run=run, record=record, files=files) for state in states
    )


def record_seen(records: Records, nodes: Sequence[Node] = ()) -> Record:
    """State of the records of this cluster's runs on this machine. Its journal names every attempt
    before it starts, and names `up` before the first node. Nodes that another machine created since
    then may have run anything."""
    if not records.has_keys():
        return "without_keys"
    if not is_recorded(records, nodes):
        return "lost"
    runs, faults = records.runs_and_faults()
    lines = records.events()
    return "there" if lines and not faults and runs_begun(lines) <= {r.id for r in runs} else "lost"


# ── a run whose nodes are gone ─────────────────────────────────────────────────


def end_lost_run(handle: Handle) -> NotLanded | None:
    """For a cluster without a node: record its active run as failed, and return the error that
    names it and what had landed. None if there is none, or all that it made has landed."""
    records = handle.records
    run = records.active_run()
    if run is None or not run.attempts:
        return None
    events = records.events()  # a command of ours deletes nodes once everything has landed
    if being_destroyed(events) or {task.node for task in run.tasks} <= nodes_leaving(events):
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
    run = with_attempt(run, cause=Cause(task="", node="", kind="lost", text=text))
    records.save_run(
        replace(run, state="failed", ended=moments.now(), exit_code=RunFailed.exit_code)
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


# ── up --shrink, up --replace ──────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class AllowedChanges:
    """Changes that `up` may make to nodes that differ from the config."""

    shrink: bool = False
    """Delete those that the config does not name."""
    replace: bool = False
    """Recreate those that differ."""


NOTHING = AllowedChanges()


@dataclass(frozen=True, kw_only=True)
class DriftDecision:
    """Decision of `up` on the drift."""

    to_delete: tuple[str, ...] = ()
    """Nodes to delete first."""
    end: ClusterEnd | None = None
    """New expiry of the others."""


def decide_drift(session: Session, allowed: AllowedChanges) -> DriftDecision:
    """Decide about the drift before anything is changed. Raises UsageError if it is not allowed."""
    events, config = session.records.events(), session.config
    found = drift(session.plan, session.nodes, events)
    found = replace(found, changes=(*found.changes, *fixed_ends(session.plan, session.nodes)))
    end = None if fixed_end(config) else new_end(session)
    kept = tuple(change for change in found.changes if not (allowed.replace and change.replaces))
    refuse_drift(Drift(extra=() if allowed.shrink else found.extra, changes=kept), config)
    extra = found.extra if allowed.shrink else ()
    differing = found.differing if allowed.replace else ()
    return DriftDecision(to_delete=(*extra, *differing), end=end)


def delete_nodes(session: Session, names: Sequence[str]) -> Session:
    """Land what these nodes hold, then delete them; the others are left as they are. Raises
    UsageError during a run, NotLanded with every node kept, LeftoverError. After a kill, the next
    call continues: what the journal's `exchange` names had landed by then."""
    active, cluster = session.records.active_run(), session.config.name
    if active is not None and active.state != "landing":
        raise UsageError(
            f"run {active.id} of {cluster} is still active: its nodes are not deleted",
            hint=f"run `cloudtrain stop-run {cluster}` to end and land it, or wait for its end",
        )
    due = [name for name in names if name not in nodes_leaving(session.records.events())]
    if due:
        session.console.say(f"landing what is only on the nodes before deleting {', '.join(due)}")
        land_everything(session)
    everything = {node.name for node in session.nodes} <= set(names)
    session.records.journal(RemovalBegun(nodes=tuple(names), whole=everything))
    late = pending_nodes(session.records.events())
    with session.console.stage(f"delete on {session.provider.name}", len(names)) as stage:
        journal = shown_journal(session, stage)
        if everything:  # network resources may have to be replaced too
            session.provider.destroy(session.config.name, journal, late)
        else:
            session.provider.remove(session.config.name, names, journal, late)
        for name in names:
            stage.done(name, "gone")
    return session.refreshed()
