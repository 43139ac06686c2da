"""Restarts tasks alone, each in a thread of its own, while the others run.

The restart is recorded first: whoever takes over finds an attempt that was recorded but not
started, makes its node ready again, and starts it. Two starts of one attempt are one
(node/watcher.py).

A node that a cloud has deleted is created again with its old internal address, as the chief
connects to restarted workers only at the addresses of its TF_CONFIG (state_machine.may_restart)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from queue import Empty, SimpleQueue

from cloudtrain.artifacts.checkpoints import put_checkpoints
from cloudtrain.cluster.session import Session, in_order
from cloudtrain.cluster.task_launch import task_launch
from cloudtrain.console.forwarding import BackgroundConsole
from cloudtrain.core.cloud import is_cloud
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import AddressTakenError, CloudConfigError, CloudtrainError
from cloudtrain.core.events import TaskRestartBegun
from cloudtrain.core.model import Identity, Node
from cloudtrain.core.protocols import Console
from cloudtrain.core.retry import ADDRESS_FREED, HOST_RETURNS, Retry, poll_until
from cloudtrain.core.run_record import Cause, Run, Task
from cloudtrain.datasets.delivery import deliver_data
from cloudtrain.runs.attempt_state import AttemptState, TaskView, serves
from cloudtrain.runs.node_replacement import await_nodes_gone, replace_lost_nodes
from cloudtrain.runs.preflight import preflight_attempt
from cloudtrain.runs.root_cause import failure_of
from cloudtrain.runs.start import (
    create_work_folders,
    launch_inputs,
    next_attempts,
    start_task,
)
from cloudtrain.runs.tasks import end_orphans, node_of, save_run, tag_of, with_attempt
from cloudtrain.setup.prepare import prepare_nodes
from cloudtrain.setup.shared_folder import prove_shared, share_folder, share_run_folder

CANCEL = 60.0
"""Seconds to wait, at the attempt's end, for a node being created: none may appear later."""

FREED = Retry(pause=5.0, within=ADDRESS_FREED)
"""Requests for a node's old address, which the deleted node may still have."""

RETURNED = Retry(pause=2.0, within=HOST_RETURNS)
"""Polls for a host that does not answer: it reboots, or is cut off."""


class CannotReturn(Exception):
    """The task can never be restarted alone, or is not to be any more; with the reason."""


@dataclass(frozen=True, kw_only=True)
class Restart:
    """One task to be restarted, in its new attempt."""

    task: Task
    noticed: bool
    """True if the cloud has announced that it takes its node."""
    taken_over: bool
    """True if a process began it that is gone, and may have left its node half ready."""
    peers: tuple[Task, ...]
    """Running tasks that it must reach: their ports are open as far as known."""


@dataclass(frozen=True, kw_only=True)
class Restarted:
    """Result of one task's restart. `session` has the task's node; None if the restart failed."""

    task: Task
    session: Session | None = None
    error: Exception | None = None
    final: str | None = None
    """Why it can never be restarted alone."""


def record_restart(session: Session, run: Run, state: AttemptState, name: str) -> Run:
    """Record the task's next attempt, before anything of it exists, and see it as begun."""
    view, now = state.tasks[name], session.clock.awake()
    cause = failure_of(state, view) or Cause(
        task=name, node=view.task.node, kind="lost", text="failed"
    )
    restarted = (*run.attempts[-1].restarted, cause)
    run = next_attempts(with_attempt(run, restarted=restarted), {name})
    task = next(task for task in run.tasks if task.name == name)
    session.records.journal(TaskRestartBegun(run=run.id, task=name, attempt=task.attempt))
    run = save_run(session, run)
    state.restarts[name] = run.restarts_of(name)
    state.tasks[name].begin_again(task, now)
    return run


class TaskRestarts:
    """Prepares nodes and starts tasks in threads; `take` returns what they have done."""

    def __init__(self, session: Session, run: Run) -> None:
        now = {node.name: node.internal for node in session.nodes if node.internal}
        self._addresses = {**now, **run.attempts[-1].addresses}
        self._cancelled = threading.Event()
        self._creating = threading.Lock()
        self._done: SimpleQueue[Restarted] = SimpleQueue()

    def begin(self, session: Session, run: Run, state: AttemptState, view: TaskView) -> None:
        """Start the task's recorded attempt in a thread."""
        restart = Restart(
            task=view.task,
            noticed=view.notice is not None,
            taken_over=view.taken_over,
            peers=tuple(
                other.task
                for other in state.tasks.values()
                if other is not view and other.port_open and not other.ended
                if serves(state, other.task)
            ),
        )
        view.begun, view.notice, view.restarted_at = False, None, None
        quiet = replace(
            session,
            console=_Background(session.console, self._cancelled),
            clock=replace(session.clock, sleep=self._cancelled.wait),
        )

        def work() -> None:
            try:
                made = self._restart(quiet, run, restart)
                self._done.put(Restarted(task=restart.task, session=made))
            except CannotReturn as why:
                self._done.put(Restarted(task=restart.task, final=str(why)))
            except Exception as error:  # noqa: BLE001 - raised by whoever takes it
                self._done.put(Restarted(task=restart.task, error=error))

        name = f"restart {view.task.name}"
        threading.Thread(target=work, name=name, daemon=True).start()

    def take(self) -> Iterator[Restarted]:
        """Restarts that have ended since the last call. Raises errors that are not a node's."""
        while True:
            try:
                done = self._done.get_nowait()
            except Empty:
                return
            if done.error is not None and not isinstance(done.error, CloudtrainError):
                raise done.error
            yield done

    def end(self) -> None:
        """Start nothing more; wait for a node that is being created, not for its preparation."""
        self._cancelled.set()
        if self._creating.acquire(timeout=CANCEL):
            self._creating.release()

    def _restart(self, session: Session, run: Run, restart: Restart) -> Session:
        task = restart.task
        session, replaced = self._with_node(session, run, restart)
        node = node_of(session, task)
        only = replace(session.patient(), nodes=(node,))
        alone = replace(run, tasks=(task,))
        if replaced:
            prepare_nodes(only, run)
            share_folder(session.patient(), [node])
        else:
            # Also an attempt before the last, whose node was away while a restart of it failed.
            end_orphans(only, keep=[tag_of(run, each) for each in run.tasks])
        data = deliver_data(only, run)
        shared = share_run_folder(session, run, lambda: None)
        work = create_work_folders(only, alone, shared)
        folder = session.config.train.checkpoints
        if replaced and folder is not None and not shared:
            put_checkpoints(run, {task.name: node}, folder, only.transport, session.store)
        known = {**self._addresses, **{each.name: each.internal for each in session.nodes}}
        peers = [(peer, known[peer.node]) for peer in restart.peers if known.get(peer.node)]
        preflight_attempt(only, alone, peers)
        prove_shared(session, alone)
        inputs = launch_inputs(only, alone, work, data, shared)
        inputs = replace(inputs, addresses={**self._addresses, **inputs.addresses})
        self._go_on(task)
        start_task(only, run, task_launch(session.plan, run, task, inputs))
        return session

    def _with_node(self, session: Session, run: Run, restart: Restart) -> tuple[Session, bool]:
        """The session with the task's node, and whether that had to be recreated or started."""
        name = restart.task.node
        if restart.noticed:
            await_nodes_gone(session, {name})
        self._go_on(restart.task)
        session = self._listed(session, restart.task)
        node = session.node(name)
        if node is not None and node.state not in ("gone", "stopped") and not restart.taken_over:
            return session, False
        with self._creating:
            self._go_on(restart.task)
            made = self._recreated(session, run, name)
        node = node_of(made, restart.task)
        if node.internal != self._addresses.get(name, node.internal):
            raise CannotReturn(f"{name} has another address now ({node.internal}), {FIXED}")
        return made, True

    def _listed(self, session: Session, task: Task) -> Session:
        """The session with its nodes listed again, once the task's host answers or is given up."""

        def listed() -> Session | None:
            nonlocal session
            self._go_on(task)
            session = session.refreshed()
            node = session.node(task.node)
            return None if node is not None and node.state == "unknown" else session

        return poll_until(listed, RETURNED, clock=session.clock) or session

    def _recreated(self, session: Session, run: Run, name: str) -> Session:
        """The session with this node created again, or started; no other lost node is."""
        session = session.refreshed()
        node, is_rented = session.node(name), is_cloud(session.config.provider)
        address = self._addresses.get(name, "") if is_rented else ""
        if is_rented and not address and (node is None or node.state == "gone"):
            raise CannotReturn(f"{name} is gone, and no record has its address, {FIXED}")
        there = {node.name for node in session.nodes if node.state == "running"}
        wanted = tuple(
            replace(each, internal=address) if each.name == name else each
            for each in session.plan.nodes
            if each.name in {name, *there}
        )
        session.console.warn(f"{name} is being {_what_is_done(node)}; the run continues")
        try:
            made = FREED.call(
                lambda: replace_lost_nodes(
                    replace(session, plan=replace(session.plan, nodes=wanted)),
                    run,
                    stopped=self._cancelled.is_set,
                ),
                on=AddressTakenError,
                clock=session.clock,
            )
        except (AddressTakenError, CloudConfigError) as error:
            why = f" with its address {address}, {FIXED}" if address else ""
            raise CannotReturn(f"{name} cannot be recreated{why}: {error.message}") from error
        if made is None:
            raise CannotReturn("the run was stopped")
        return replace(made, plan=session.plan)

    def _go_on(self, task: Task) -> None:
        if self._cancelled.is_set():
            raise CannotReturn(f"{task.name} is not restarted: its attempt has ended")


FIXED = "and the chief connects to restarted workers at the addresses of its TF_CONFIG only"


def _what_is_done(node: Node | None) -> str:
    if node is None or node.state == "gone":
        return "recreated"
    return "started" if node.state == "stopped" else "made ready"


def with_node(session: Session, node: Node, identity: Identity) -> Session:
    """The session with this node, which may be new, and the keys that open it."""
    others = [each for each in session.nodes if each.name != node.name]
    nodes = in_order([*others, node], session.plan)
    return replace(session, nodes=nodes, identity=identity)


class _Background(BackgroundConsole):
    """No warnings either once nobody waits for it."""

    def __init__(self, console: Console, cancelled: threading.Event) -> None:
        super().__init__(console)
        self._cancelled = cancelled

    def warn(self, text: str) -> None:
        if not self._cancelled.is_set():
            super().warn(text)
