"""Monitors a running attempt until it is decided, and ends what is left of it."""

from __future__ import annotations

from contextlib import suppress
from queue import Empty

from cloudtrain.cluster.session import Session
from cloudtrain.core.events import TasksJoined
from cloudtrain.core.model import Node
from cloudtrain.core.retry import LAST_WORDS, Clock
from cloudtrain.core.run_record import Cause, Run
from cloudtrain.runs import attempt_state
from cloudtrain.runs import root_cause as causes
from cloudtrain.runs.observers import (
    LimitWatch,
    NodeAgents,
    Observer,
    PeriodicSync,
    Probes,
    Watched,
)
from cloudtrain.runs.stall_watch import StallWatch
from cloudtrain.runs.state_machine import Decision, decide, new
from cloudtrain.runs.tail import Event, Follower, NodeSilent
from cloudtrain.runs.task_commands import (
    AttemptEnd,
    DiskLow,
    Heartbeat,
    NoticeSeen,
    OutOfMemory,
    PortState,
)
from cloudtrain.runs.task_restart import Restarted, TaskRestarts, record_restart, with_node
from cloudtrain.runs.tasks import dump_stacks, log_tail, save_run, stop_tasks, with_attempt

TICK = 0.25
"""Seconds between checks for new events."""

OBSERVERS: tuple[type[Observer], ...] = (Probes, StallWatch, PeriodicSync, NodeAgents, LimitWatch)
"""All that look at an attempt, in their order; each is made from the `Watched` alone."""


def monitor(session: Session, run: Run) -> tuple[Run, attempt_state.AttemptState, Cause | None]:
    """Monitor an attempt; returns the run with what was recorded meanwhile, the attempt's state and
    the cause of its failure, None if it is done or was stopped."""
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
            follower.events.put(Event(task, NodeSilent("its node is not listed")))
    try:
        decision = until_decided(watched, state, follower, restarts)
        restarts.end()
        for done in restarts.take():
            follow_restarted(watched, state, follower, done)
        session, run = watched.session, watched.run
        left = [view.task for view in state.tasks.values() if not view.ended]
        if left and decision.cause is not None and decision.cause.facts.hangs:
            dump_stacks(session, run, run.tasks)
        stop_tasks(session, run, left)
        give_up_restarts(state, session.clock.awake())
        drain_ended(session, state, follower)
    finally:
        restarts.end()
        follower.close()
    if decision.verdict == "done":
        report_when_formed(watched, state)
        cause = attempt_state.separate_trainings_failure(state)
        note = attempt_state.separate_trainings_note(state) if cause is None else None
        if note is not None:
            session.console.warn(note)
        return watched.run, state, cause
    return run, state, decision.cause


def is_unstarted(view: attempt_state.TaskView, node: Node | None) -> bool:
    """True for a task whose node was to be recreated when its restart was interrupted."""
    lost = node is None or node.state == "stopped"
    return view.restarted and not view.tail and lost


def new_attempt_state(session: Session, run: Run) -> attempt_state.AttemptState:
    now, moment = session.clock.awake(), session.clock.now()
    attempt = run.attempts[-1]
    views = {}
    for task in run.tasks:
        view = attempt_state.TaskView(task=task, last_byte=now, moved_at=now)
        if any(cause.task == task.name for cause in attempt.restarted):
            view.restarted, view.connected, view.restarted_at = True, False, now
            view.taken_over = True
        view.tail = log_tail(session, run, task, attempt_state.TAIL)
        views[task.name] = view
    if attempt.clustered:  # reported before, to a process that is gone
        for view in views.values():
            view.port_open = not view.restarted
    return attempt_state.AttemptState(
        config=session.config,
        tasks=views,
        started=now - max(0.0, moment - attempt.started),
        formed_after=attempt.formed_after if attempt.clustered else None,
        collectives=next((one.collectives for one in run.attempts if one.collectives), None),
        restarts={task.name: run.restarts_of(task.name) for task in run.tasks},
    )


def until_decided(
    watched: Watched, state: attempt_state.AttemptState, follower: Follower, restarts: TaskRestarts
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
        for view in state.tasks.values():
            if view.port_open and view.failed_at is not None:
                after, view.failed_at = session.clock.awake() - view.failed_at, None
                session.console.say(f"{view.task.name} serves again, {after:.1f} s after it failed")
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
    watched: Watched, state: attempt_state.AttemptState, follower: Follower, done: Restarted
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


def give_up_restarts(state: attempt_state.AttemptState, now: float) -> None:
    """Expect no end of tasks whose restart was still being prepared when the attempt ended."""
    for view in state.tasks.values():
        if view.is_prepared and not view.ended:
            view.lost, view.ended_at = "the attempt ended before it was restarted", now


def report_when_formed(watched: Watched, state: attempt_state.AttemptState) -> None:
    """Report and record once that the cluster has formed."""
    session = watched.session
    if not attempt_state.detect_formation(state, session.clock.awake()):
        return
    after = round(state.formed_after or 0.0, 1)
    session.console.say(f"cluster formed after {after:g} s")
    session.records.journal(TasksJoined(run=watched.run.id, after=after))
    save_observed(watched, state)


def report_grpc(watched: Watched, state: attempt_state.AttemptState) -> None:
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


def warn_of_full_disks(session: Session, state: attempt_state.AttemptState) -> None:
    """Warn once in an attempt of each disk that is nearly full."""
    for view in state.tasks.values():
        if view.free is not None and new(state, f"disk of {view.task.node}"):
            session.console.warn(
                f"{view.task.node}: {view.free / 1e6:.0f} MB are free on its disk: delete what the "
                "task does not need, or set disk_gb for new nodes"
            )


def save_observed(watched: Watched, state: attempt_state.AttemptState) -> None:
    """Record what is known of the running attempt."""
    run = with_attempt(watched.run, collectives=state.collectives)
    if state.formed_after is not None:
        run = with_attempt(run, clustered=True, formed_after=round(state.formed_after, 1))
    watched.run = save_run(watched.session, run)


def drain(state: attempt_state.AttemptState, follower: Follower, clock: Clock) -> None:
    """Process all events that have arrived; waits for a first one."""
    with suppress(Empty):
        take(state, follower.events.get(TICK), clock.awake())
        take_all(state, follower, clock)


def take_all(state: attempt_state.AttemptState, follower: Follower, clock: Clock) -> None:
    """Process all events that have arrived."""
    with suppress(Empty):
        while True:
            take(state, follower.events.get(0), clock.awake())


def take(state: attempt_state.AttemptState, event: Event, now: float) -> None:
    view = state.tasks[event.task.name]
    if view.task.attempt != event.task.attempt:  # late news of an earlier attempt
        return
    news = event.news
    if isinstance(news, NodeSilent):
        if view.unreachable_since is None:
            view.unreachable_since = now
        return
    view.unreachable_since = None
    if isinstance(news, bytes):
        view.saw(news, now)
    elif isinstance(news, NoticeSeen):
        view.notice, view.announced = news.given, news.word
    elif isinstance(news, PortState):
        view.served = news
        if news.after is not None:
            state.opened(view, now)
    elif isinstance(news, OutOfMemory):
        view.starved = news
    elif isinstance(news, DiskLow):
        view.free = news.free
    elif isinstance(news, AttemptEnd):
        over(view, news, now)
    elif isinstance(news, Heartbeat):
        view.beats(news.processes, now)
        view.stopped_since = (view.stopped_since or now) if news.frozen else None


def over(view: attempt_state.TaskView, end: AttemptEnd, now: float) -> None:
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


def drain_ended(session: Session, state: attempt_state.AttemptState, follower: Follower) -> None:
    """Wait for the last bytes and exit codes of tasks that were just stopped."""
    limit = session.clock.awake() + LAST_WORDS
    while session.clock.awake() < limit:
        if all(view.ended or view.unreachable_since is not None for view in state.tasks.values()):
            return
        drain(state, follower, session.clock)
