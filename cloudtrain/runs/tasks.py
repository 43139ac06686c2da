"""Tasks of a run on their nodes: folders, states, stopping."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudtrain.cluster.session import Session
from cloudtrain.core import metrics, paths
from cloudtrain.core.errors import CloudtrainError, NodeUnreachable
from cloudtrain.core.model import Node
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.retry import AWAY, ORPHANS_ANSWER, STOP_ANSWER
from cloudtrain.core.run_record import Run, Task
from cloudtrain.runs import task_commands
from cloudtrain.runs.attempt_state import AttemptState


@dataclass(kw_only=True)
class Watched:
    """The session and the run of a running attempt; both change when a task is restarted alone."""

    session: Session
    run: Run
    restarts: int = 0

    def restarted(self, session: Session) -> None:
        """Go on with the session that has the node of a task that was restarted."""
        self.session, self.restarts = session, self.restarts + 1


class Observer:
    """Looks at a running attempt, in each turn of the monitor. It is made from a `Watched` and
    holds nothing else, so that after a restart no observer works on connections to lost nodes.
    """

    def __init__(self, watched: Watched) -> None:
        self._watched, self._restarts = watched, -1

    @property
    def session(self) -> Session:
        return self._watched.session

    @property
    def run(self) -> Run:
        return self._watched.run

    def look(self, state: AttemptState) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """The attempt is decided."""

    def is_anew(self) -> bool:
        """True at the first call, and at the first one after each restart."""
        before, self._restarts = self._restarts, self._watched.restarts
        return before != self._restarts


def save_run(session: Session, run: Run) -> Run:
    session.records.save_run(run)
    return run


def node_of(session: Session, task: Task) -> Node:
    """The task's node. Raises NodeUnreachable if it no longer exists."""
    node = session.node(task.node)
    if node is None:
        raise NodeUnreachable(task.node, "this node no longer exists")
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
            on=NodeUnreachable,
            clock=session.clock,
        )
        return task_commands.parse_status(task.node, done)[0]

    answers = fan_out(run.tasks, ask, name=lambda task: task.node)
    return {task.name: state for task, state in zip(run.tasks, answers, strict=True)}


def stop_tasks(session: Session, run: Run, tasks: Iterable[Task]) -> None:
    """Send TERM, wait the config's grace, then KILL every process of these tasks' attempts, side by
    side.

    A node that does not answer is skipped with a warning.
    """
    grace = session.config.train.grace

    def stop(task: Task) -> None:
        try:
            done = session.transport.run(
                node_of(session, task),
                task_commands.stop(folder_of(run, task), tag=tag_of(run, task), grace=grace),
                timeout=grace + STOP_ANSWER,
            )
            task_commands.parse_stop(task.node, done)
        except CloudtrainError as error:
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
        except CloudtrainError as error:
            session.console.warn(f"cannot dump the stacks of {task.name}: {error}")
            return b""
        return done.stdout

    found = fan_out(tasks, keep, name=lambda task: task.name)
    return {task.name: stacks for task, stacks in zip(tasks, found, strict=True)}


def stacks_path(session: Session, run: Run, task: Task) -> Path:
    return session.records.log_path(run.id, task.name, task.attempt).with_suffix(".stacks")


def all_ends_known(run: Run) -> bool:
    """True if the end of every task of every attempt is known.

    Otherwise a node may have been away only for a while, and its task still be running. Of a task
    that was started alone the record has its last exit only.
    """
    names = {task.name for task in run.tasks}
    return all(attempt.exits.keys() >= names for attempt in run.attempts) and all(
        task.attempt <= len(run.attempts) for task in run.tasks
    )


def end_orphans(session: Session, keep: Iterable[str] = ()) -> frozenset[str]:
    """End every task of this cluster that still runs on a reachable node, except the tags in
    `keep`.

    Such a task's node was unreachable while its run was given up. Returns the ids of their runs;
    "" stands for processes that outlived their task.
    """
    kept = tuple(keep)

    def end(node: Node) -> tuple[tuple[str, str], ...]:
        try:
            command = task_commands.stop_orphans_command(session.config.name, keep=kept)
            done = session.transport.run(node, command, timeout=ORPHANS_ANSWER)
            return task_commands.parse_orphans(node.name, done)
        except CloudtrainError as error:
            session.console.warn(f"cannot tell whether a task still runs there: {error.message}")
            return ()

    nodes = [node for node in session.nodes if node.state == "running"]
    found = fan_out(nodes, end, name=lambda node: node.name)
    for node, ended in zip(nodes, found, strict=True):
        for run, task in dict.fromkeys(ended):
            what = f"{task} of run {run}" if run else f"processes that a task left on {node.task}"
            session.console.say(f"stopped {what}")
    return frozenset(run for ended in found for run, _ in ended)


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
