"""Tasks of a run on their nodes: folders, states, stopping, landing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cloudtrain.artifacts.land import Pending, land_files, land_so_far, pending_files
from cloudtrain.artifacts.landing import Landing, own_manifests
from cloudtrain.artifacts.spool import ingest_spools
from cloudtrain.cluster.plan import tasks as planned
from cloudtrain.cluster.session import Session
from cloudtrain.core import errors, metrics, paths
from cloudtrain.core.cloud import facts_of
from cloudtrain.core.model import Node
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.retry import AWAY, ORPHANS_ANSWER, STOP_ANSWER
from cloudtrain.core.run_record import Run, Task
from cloudtrain.runs import task_commands


def save_run(session: Session, run: Run) -> Run:
    session.records.save_run(run)
    return run


def with_attempt(run: Run, **changes: Any) -> Run:
    """The run with these changes in its last attempt."""
    return replace(run, attempts=(*run.attempts[:-1], replace(run.attempts[-1], **changes)))


def node_of(session: Session, task: Task) -> Node:
    """The task's node. Raises NodeUnreachable if it no longer exists."""
    node = session.node(task.node)
    if node is None:
        raise errors.NodeUnreachable(task.node, "this node no longer exists")
    return node


def folder_of(run: Run, task: Task) -> str:
    """The folder of the task's attempt."""
    return paths.attempt_folder(run.cluster, run.id, task.name, task.attempt)


def tag_of(run: Run, task: Task) -> str:
    return paths.tag(run.cluster, run.id, task.name, task.attempt)


def task_statuses(session: Session, run: Run) -> dict[str, task_commands.TaskStatus]:
    """State of each task's current attempt, queried from its node."""

    def ask(task: Task) -> task_commands.TaskStatus:
        node, command = node_of(session, task), task_commands.status(folder_of(run, task))
        done = AWAY.call(
            lambda: session.transport.run(node, command, timeout=60.0),
            on=errors.NodeUnreachable,
            clock=session.clock,
        )
        return task_commands.parse_status(task.node, done)[0]

    answers = fan_out(run.tasks, ask, name=lambda task: task.node)
    return {task.name: state for task, state in zip(run.tasks, answers, strict=True)}


def stop_tasks(session: Session, run: Run, tasks: Iterable[Task]) -> None:
    """Send TERM, wait the config's grace, then KILL every process of these tasks' attempts, side by
    side. A node that does not answer is skipped with a warning."""
    grace = session.config.train.grace

    def stop(task: Task) -> None:
        try:
            done = session.transport.run(
                node_of(session, task),
                task_commands.stop(folder_of(run, task), tag=tag_of(run, task), grace=grace),
                timeout=grace + STOP_ANSWER,
            )
            task_commands.parse_stop(task.node, done)
        except errors.CloudtrainError as error:
            session.console.warn(f"{task.name} could not be stopped: {error}")

    fan_out([task for task in tasks if task.attempt], stop, name=lambda task: task.name)


def dump_stacks(session: Session, run: Run, tasks: Sequence[Task]) -> None:
    """Dump the stacks of these tasks' processes beside their logs, to land with them."""
    read_stacks(session, run, tasks)
    session.console.say(f"stacks of the processes: {stacks_path(session, run, tasks[0])}")


def read_stacks(session: Session, run: Run, tasks: Sequence[Task]) -> dict[str, bytes]:
    """The same, by task; nothing of a node that does not answer. The tasks run on."""

    def keep(task: Task) -> bytes:
        path = stacks_path(session, run, task)
        try:
            done = session.transport.run(
                node_of(session, task),
                task_commands.dump_stacks(folder_of(run, task), tag=tag_of(run, task)),
                timeout=60.0,
            )
            path.write_bytes(done.stdout)
        except errors.CloudtrainError as error:
            session.console.warn(f"cannot dump the stacks of {task.name}: {error}")
            return b""
        return done.stdout

    found = fan_out(tasks, keep, name=lambda task: task.name)
    return {task.name: stacks for task, stacks in zip(tasks, found, strict=True)}


def stacks_path(session: Session, run: Run, task: Task) -> Path:
    return session.records.log_path(run.id, task.name, task.attempt).with_suffix(".stacks")


def all_ends_known(run: Run) -> bool:
    """True if the end of every task of every attempt is known. Otherwise a node may have been away
    only for a while, and its task still be running. Of a task that was started alone the record has
    its last exit only."""
    names = {task.name for task in run.tasks}
    return all(attempt.exits.keys() >= names for attempt in run.attempts) and all(
        task.attempt <= len(run.attempts) for task in run.tasks
    )


def end_orphans(session: Session, keep: Iterable[str] = ()) -> frozenset[str]:
    """End every task of this cluster that still runs on a reachable node, except the tags in
    `keep`. Such a task's node was unreachable while its run was given up. Returns the ids of their
    runs; "" stands for processes that outlived their task."""
    kept = tuple(keep)

    def end(node: Node) -> tuple[tuple[str, str], ...]:
        try:
            command = task_commands.stop_orphans_command(session.config.name, keep=kept)
            done = session.transport.run(node, command, timeout=ORPHANS_ANSWER)
            return task_commands.parse_orphans(node.name, done)
        except errors.CloudtrainError as error:
            session.console.warn(f"cannot tell whether a task still runs there: {error.message}")
            return ()

    nodes = [node for node in session.nodes if node.state == "running"]
    found = fan_out(nodes, end, name=lambda node: node.name)
    for node, ended in zip(nodes, found, strict=True):
        for run, task in dict.fromkeys(ended):
            what = f"{task} of run {run}" if run else f"processes that a task left on {node.task}"
            session.console.say(f"stopped {what}")
    return frozenset(run for ended in found for run, _ in ended)


def log_tail(session: Session, run: Run, task: Task, most: int) -> bytes:
    """The end of a task's log, as far as it has arrived here."""
    return metrics.end_of(session.records.log_path(run.id, task.name, task.attempt), most)[0]


def log_files(session: Session, run: Run) -> dict[str, Path]:
    """The run's logs, metrics and stack dumps, by their name in the store."""
    found = {}
    for task in run.task_attempts:
        log = session.records.log_path(run.id, task.name, task.attempt)
        for suffix in (".log", ".stacks", metrics.SUFFIX):
            path = log.with_suffix(suffix)
            if path.exists():
                found[f"{task.name}.attempt-{task.attempt}{suffix}"] = path
    return found


def landing_of(session: Session) -> Landing:
    return Landing(
        cluster=session.config.name,
        rules=session.config.artifacts,
        checkpoints=session.config.train.checkpoints,
        transport=session.transport,
        store=session.store,
        console=session.console,
        logs=session.records.log_path,
        home=not facts_of(session.config.provider).takes_hosts,
        own=own_manifests(session.records),
        ends=(session.config.limits.idle, session.config.limits.idle_gpu) != (None, None),
    )


def nodes_of(session: Session, run: Run) -> dict[str, Node]:
    """Existing nodes by task."""
    return {task.name: node for task in run.tasks if (node := session.node(task.node)) is not None}


def ingest_left_spools(session: Session, run: Run) -> None:
    """Land what nodes stored unattended, before all else is landed or read. Raises StoreError."""
    ingest_spools(
        run,
        session.store,
        session.console,
        nodes=session.nodes,
        transport=session.transport,
        log_path=partial(session.records.log_path, run.id),
        own=own_manifests(session.records),
    )


# ── files that no store has ────────────────────────────────────────────────────


def land_what_is_left(session: Session) -> tuple[Pending, ...]:
    """Land files that nodes created or kept after their run's end; returns what is only on the
    nodes after that. Raises NotLanded for nodes that cannot be queried, after the others' files
    have landed."""
    try:
        left = ask_unlanded(session)
    except errors.NotLanded as error:
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
    except errors.CloudtrainError as error:  # the first error is the one to report
        session.console.warn(error.message)


def failed_nodes(error: errors.NotLanded) -> tuple[str, ...]:
    """Names of the nodes whose failure was the cause."""
    cause = error.__cause__
    if isinstance(cause, errors.NodesError):
        each = cause.failures.values()
        return tuple(one.node for one in each if isinstance(one, errors.NodeError))
    return (cause.node,) if isinstance(cause, errors.NodeError) else ()


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
