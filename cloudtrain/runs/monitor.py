"""Monitors a running attempt until it is decided, and ends what is left of it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from queue import Empty

from cloudtrain.cluster.session import Session
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.events import TasksJoined
from cloudtrain.core.model import Node
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.retry import ALONE_LOST_AFTER, LAST_WORDS, LOST_AFTER, PROVIDER_SILENT, Clock
from cloudtrain.core.run_record import Cause, Run
from cloudtrain.runs import root_cause as causes
from cloudtrain.runs.attempt_state import TAIL, AttemptState, TaskView, serves
from cloudtrain.runs.budget import BudgetWatch
from cloudtrain.runs.cluster_formation import (
    detect_formation,
    separate_trainings_failure,
    separate_trainings_note,
)
from cloudtrain.runs.node_agents import NodeAgents, task_stop
from cloudtrain.runs.periodic_sync import PeriodicSync
from cloudtrain.runs.stall_watch import StallWatch
from cloudtrain.runs.state_machine import Decision, decide, new
from cloudtrain.runs.tail import (
    AttemptEnded,
    DiskFilling,
    Event,
    Follower,
    HeartbeatSeen,
    LogBytes,
    NodeSilent,
    OutOfMemoryKill,
    PortOpened,
    PreemptionNoticed,
    listening_ports,
)
from cloudtrain.runs.task_commands import AttemptEnd
from cloudtrain.runs.task_restart import Restarted, TaskRestarts, record_restart, with_node
from cloudtrain.runs.tasks import Observer, Watched, dump_stacks, save_run, stop_tasks

TICK = 0.25
"""Seconds between checks for new events."""

SAVE_SECONDS = 30.0
"""Seconds between the SIGTERM that an agent sends before its node's lifetime ends, and ours."""


HANGING = frozenset({"stalled", "not_started", "deadline"})
"""Causes that no log shows: stacks are dumped before the processes are stopped."""


def monitor(session: Session, run: Run) -> tuple[Run, AttemptState, Cause | None]:
    """Monitor an attempt; returns the run with what was recorded meanwhile, the attempt's state and
    the cause of its failure, None if it is done or was stopped.
    """
    state, watched = new_attempt_state(session, run), Watched(session=session, run=run)
    follower = Follower(
        run,
        session.transport,
        lambda task: session.records.log_path(run.id, task.name, task.attempt),
        session.console,
    )
    restarts = TaskRestarts(session, run)
    for task in run.tasks:
        node = session.node(task.node)
        if is_unstarted(state.tasks[task.name], node):
            state.tasks[task.name].begun = True
        elif node is not None:
            follower.follow(task, node)
        else:  # Probes lists again, and finds the task lost
            follower.events.put(NodeSilent(task, "its node is not listed"))
    try:
        decision = until_decided(watched, state, follower, restarts)
        restarts.end()
        for done in restarts.take():
            follow_restarted(watched, state, follower, done)
        session, run = watched.session, watched.run
        left = [view.task for view in state.tasks.values() if not view.ended]
        if left and decision.cause is not None and decision.cause.kind in HANGING:
            dump_stacks(session, run, run.tasks)
        stop_tasks(session, run, left)
        give_up_restarts(state, session.clock.awake())
        drain_ended(session, state, follower)
    finally:
        restarts.end()
        follower.close()
    if decision.verdict == "done":
        report_when_formed(watched, state)
        return watched.run, state, refuse_separate_trainings(session, state)
    return run, state, decision.cause


def is_unstarted(view: TaskView, node: Node | None) -> bool:
    """True for a task whose node was to be recreated when its restart was interrupted."""
    lost = node is None or node.state == "stopped"
    return view.restarted and not view.tail and lost


def refuse_separate_trainings(session: Session, state: AttemptState) -> Cause | None:
    """Failure of an attempt that seemed to succeed, known once every node has reported its
    ports.
    """
    cause = separate_trainings_failure(state)
    note = separate_trainings_note(state) if cause is None else None
    if note is not None:
        session.console.warn(note)
    return cause


def new_attempt_state(session: Session, run: Run) -> AttemptState:
    now, moment = session.clock.awake(), session.clock.now()
    attempt = run.attempts[-1]
    views = {}
    for task in run.tasks:
        view = TaskView(task=task, last_byte=now, moved_at=now)
        if any(cause.task == task.name for cause in attempt.restarted):
            view.restarted, view.connected, view.restarted_at = True, False, now
            view.taken_over = True
        path = session.records.log_path(run.id, task.name, task.attempt)
        if path.exists():
            with path.open("rb") as log:
                log.seek(max(0, path.stat().st_size - TAIL))
                view.tail = log.read()
        views[task.name] = view
    deadline = session.config.train.deadline
    if attempt.clustered:  # reported before, to a process that is gone
        for view in views.values():
            view.port_open = not view.restarted
    return AttemptState(
        config=session.config,
        tasks=views,
        started=now - max(0.0, moment - attempt.started),
        formed_after=attempt.formed_after if attempt.clustered else None,
        deadline=run.created + deadline if deadline is not None else None,
        lifetime_stop=lifetime_stop(session, run),
        collectives=next((one.collectives for one in run.attempts if one.collectives), None),
        restarts={task.name: run.restarts_of(task.name) for task in run.tasks},
    )


def lifetime_stop(session: Session, run: Run) -> float | None:
    """Unix time at which to end the tasks: after their agents did, where there are agents; None if
    no lifetime ends.
    """
    config = session.config
    stop = min((task_stop(config, n, run.created) for n in session.nodes), default=float("inf"))
    return stop + SAVE_SECONDS if stop != float("inf") else None


def until_decided(
    watched: Watched, state: AttemptState, follower: Follower, restarts: TaskRestarts
) -> Decision:
    observers = [observer(watched) for observer in OBSERVERS]
    while True:
        drain(state, follower, watched.session.clock)
        for done in restarts.take():
            follow_restarted(watched, state, follower, done)
        for observer in observers:
            observer.look(state)
        report_when_formed(watched, state)
        report_grpc(watched, state)
        session = watched.session
        report_serving_again(session, state)
        warn_of_full_disks(session, state)
        state.stop_asked = session.records.stop_asked(watched.run.id)
        take_all(state, follower, session.clock)  # probes may have taken longer than any limit
        decision = decide(state, session.clock.awake(), session.clock.now())
        for name in decision.restart:
            watched.run = record_restart(session, watched.run, state, name)
        for warning in decision.warnings:
            session.console.warn(warning)
        if decision.verdict != "go_on":
            if decision.cause is not None:  # reported before waiting for a long transfer
                session.console.warn(causes.sentence(decision.cause))
            for observer in observers:
                observer.end()
            return decision
        if decision.stop:
            stop_tasks(session, watched.run, [state.tasks[name].task for name in decision.stop])
        for view in state.tasks.values():
            if view.begun:
                restarts.begin(session, watched.run, state, view)


def follow_restarted(
    watched: Watched, state: AttemptState, follower: Follower, done: Restarted
) -> None:
    """Follow a task that was restarted alone; one that could not be has failed."""
    view, now = state.tasks[done.task.name], watched.session.clock.awake()
    node = None if done.session is None else done.session.node(done.task.node)
    if done.session is None or node is None:
        view.final = done.final
        view.lost = done.final or f"it could not be restarted: {done.error}"
        view.ended_at = now
        return
    watched.restarted(with_node(watched.session, node, done.session.identity))
    view.restarted_at = view.last_byte = now
    watched.session.console.say(
        f"{view.task.name} restarted (attempt {view.task.attempt} of its own)"
    )
    follower.follow(view.task, node)


def give_up_restarts(state: AttemptState, now: float) -> None:
    """Expect no end of tasks whose restart was still being prepared when the attempt ended."""
    for view in state.tasks.values():
        if view.restarted and view.restarted_at is None and not view.ended:
            view.lost, view.ended_at = "the attempt ended before it was restarted", now


def report_serving_again(session: Session, state: AttemptState) -> None:
    """Report once for each restart that the task has opened its port again."""
    for view in state.tasks.values():
        if view.port_open and view.failed_at is not None:
            after = session.clock.awake() - view.failed_at
            view.failed_at = None
            session.console.say(f"{view.task.name} serves again, {after:.1f} s after it failed")


def report_when_formed(watched: Watched, state: AttemptState) -> None:
    """Report and record once that the cluster has formed."""
    session = watched.session
    if not detect_formation(state, session.clock.awake()):
        return
    after = round(state.formed_after or 0.0, 1)
    session.console.say(f"cluster formed after {after:g} s")
    session.records.journal(TasksJoined(run=watched.run.id, after=after))
    save_observed(watched, state)


def report_grpc(watched: Watched, state: AttemptState) -> None:
    """Warn once in a run, and record, that GPUs exchange gradients over gRPC."""
    seen = next((view for view in state.tasks.values() if view.grpc), None)
    if seen is None or state.collectives is not None:
        return
    state.collectives = "grpc"
    watched.session.console.warn(
        f"{seen.task.name}: gradients are reduced over gRPC, through the CPU: pass {seen.grpc} to "
        "tf.distribute.MultiWorkerMirroredStrategy"
    )
    save_observed(watched, state)


def warn_of_full_disks(session: Session, state: AttemptState) -> None:
    """Warn once in an attempt of each disk that is nearly full."""
    for view in state.tasks.values():
        if view.free is not None and new(state, f"disk of {view.task.node}"):
            session.console.warn(
                f"{view.task.node}: {view.free / 1e6:.0f} MB are free on its disk: delete what the "
                "task does not need, or set disk_gb for new nodes"
            )


def save_observed(watched: Watched, state: AttemptState) -> None:
    """Record what is known of the running attempt."""
    run = watched.run
    attempt = replace(run.attempts[-1], collectives=state.collectives)
    if state.formed_after is not None:
        after = round(state.formed_after, 1)
        attempt = replace(attempt, clustered=True, formed_after=after)
    run = replace(run, attempts=(*run.attempts[:-1], attempt))
    watched.run = save_run(watched.session, run)


def drain(state: AttemptState, follower: Follower, clock: Clock) -> None:
    """Process all events that have arrived; waits for a first one."""
    with suppress(Empty):
        take(state, follower.events.get(timeout=TICK), clock.awake())
        take_all(state, follower, clock)


def take_all(state: AttemptState, follower: Follower, clock: Clock) -> None:
    """Process all events that have arrived."""
    with suppress(Empty):
        while True:
            take(state, follower.events.get_nowait(), clock.awake())


def take(state: AttemptState, event: Event, now: float) -> None:
    view = state.tasks[event.task.name]
    if view.task.attempt != event.task.attempt:  # late news of an earlier attempt
        return
    if isinstance(event, NodeSilent):
        if view.unreachable_since is None:
            view.unreachable_since = now
        return
    view.unreachable_since = None
    if isinstance(event, LogBytes):
        view.saw(event.data, now)
    elif isinstance(event, PreemptionNoticed):
        view.notice, view.announced = event.notice.given, event.notice.word
    elif isinstance(event, PortOpened):
        view.served = event.served
        if event.served.after is not None:
            has_opened(state, view, now)
    elif isinstance(event, OutOfMemoryKill):
        view.starved = event.starved
    elif isinstance(event, DiskFilling):
        view.free = event.low.free
    elif isinstance(event, AttemptEnded):
        over(view, event.end, now)
    elif isinstance(event, HeartbeatSeen):
        view.beats(event.heartbeat.processes, now)
        view.stopped_since = (view.stopped_since or now) if event.heartbeat.frozen else None


def has_opened(state: AttemptState, view: TaskView, now: float) -> None:
    view.opened(now)
    if state.first_port is None:
        state.first_port = now


def over(view: TaskView, end: AttemptEnd, now: float) -> None:
    if end.state == "absent" and view.restarted and not view.tail:
        view.begun = True  # its restart was recorded by a process that is gone
        return
    view.ended_at = now
    if end.exit_code is not None:
        view.exit_code = end.exit_code
    elif end.state == "lost":
        view.lost = (
            "its processes and their watcher vanished: they were killed, or the node restarted"
        )
    else:
        view.lost = "its node has no trace of it any more"


def drain_ended(session: Session, state: AttemptState, follower: Follower) -> None:
    """Wait for the last bytes and exit codes of tasks that were just stopped."""
    limit = session.clock.awake() + LAST_WORDS
    while session.clock.awake() < limit:
        if all(view.ended or view.unreachable_since is not None for view in state.tasks.values()):
            return
        drain(state, follower, session.clock)


class Probes(Observer):
    """Probes that cost a call: which ports are open, and whether a silent node still exists."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._next_ports = 0.0
        self._next_lost = 0.0

    def look(self, state: AttemptState) -> None:
        now = self.session.clock.awake()
        waiting = [
            view
            for view in state.tasks.values()
            if not view.port_open and not view.ended and serves(state, view.task)
        ]
        if waiting and now >= self._next_ports:
            self._ports(state, waiting, now)
            self._next_ports = self.session.clock.awake() + 1.0
        silent = [
            view for view in state.tasks.values() if view.unreachable_since and not view.ended
        ]
        if silent and now >= self._next_lost:
            self._lost(state, silent, now)
            self._next_lost = self.session.clock.awake() + 3.0

    def _ports(self, state: AttemptState, waiting: list[TaskView], now: float) -> None:
        def ask(view: TaskView) -> bool:
            node = self.session.node(view.task.node)
            if node is None or view.unreachable_since is not None:
                return False
            try:
                return view.task.name in listening_ports([view.task], node, self.session.transport)
            except CloudtrainError:
                return False

        for view, is_open in zip(
            waiting, fan_out(waiting, ask, name=lambda view: view.task.name), strict=True
        ):
            if is_open:
                has_opened(state, view, now)

    def _lost(self, state: AttemptState, silent: list[TaskView], now: float) -> None:
        try:
            existing = {node.name: node for node in self.session.refreshed().nodes}
        except CloudtrainError as error:
            self.session.console.warn(f"the provider does not answer: {error}")
            for view in silent:
                quiet = now - (view.unreachable_since or now)
                if quiet >= PROVIDER_SILENT:
                    view.lost = f"neither its node nor the provider answered for {quiet:.0f} s"
                    view.ended_at = now
            return
        others_answer = len(silent) < sum(not view.ended for view in state.tasks.values())
        for view in silent:
            node = existing.get(view.task.node)
            quiet = now - (view.unreachable_since or now)
            if node is None or node.state == "gone":
                view.lost = "its node is gone"
            elif node.state == "stopped":
                view.lost = "its node was stopped"
            elif quiet >= (LOST_AFTER if others_answer else ALONE_LOST_AFTER):
                why = f": {node.fault}" if node.fault else ""
                view.lost = f"its node has not answered for {quiet:.0f} s{why}"
            if view.lost is not None:
                view.ended_at = now


OBSERVERS: tuple[type[Observer], ...] = (Probes, StallWatch, PeriodicSync, NodeAgents, BudgetWatch)
"""All that look at an attempt, in their order; each is made from the `Watched` alone."""
