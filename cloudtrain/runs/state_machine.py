"""Decisions that follow from the state of a running attempt, and all decisions about restarts:
`runs/supervise` and `runs/task_restart` carry them out. Pure, on any clock."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import takewhile
from typing import Literal

from cloudtrain.cluster.plan import deciding_tasks
from cloudtrain.core.cloud import facts_of, is_cloud
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.model import ClusterConfig, Train
from cloudtrain.core.paths import some
from cloudtrain.core.retry import FROZEN_AFTER, JOINED_LATE, OTHERS_GRACE, SETTLE, WINDOW, Retry
from cloudtrain.core.run_record import CAUSES, Cause, CauseKind, Run, Task
from cloudtrain.diagnosis.hints import hint_for
from cloudtrain.runs.attempt_state import (
    AttemptState,
    TaskView,
    has_joined,
    has_scored_last,
    never_served,
    not_joined_yet,
    serves,
)
from cloudtrain.runs.root_cause import (
    failure_of,
    find_root_cause,
    is_certain,
    observation,
    root_cause_of,
)
from cloudtrain.training.log_text import last_lines, reports_lost_peer
from cloudtrain.training.strategies import strategy_of


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Names of tasks to end now (`stop`) or to restart alone; `warnings` since the last one."""

    verdict: Literal["go_on", "done", "failed", "stopped"]
    cause: Cause | None = None
    stop: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def decide(state: AttemptState, now: float, moment: float | None = None) -> Decision:
    """Decide what to do with the attempt at `now`, by the clock of the state; `moment`: the same in
    Unix time, if that clock has another."""
    if state.stop_asked:
        return Decision(verdict="stopped")
    winners = deciding_tasks(tuple(view.task for view in state.tasks.values()), state.config)
    if all(state.tasks[name].exit_code == 0 for name in winners):
        return success_verdict(state, now)
    timeout = timed_out(state, now, now if moment is None else moment)
    if timeout is not None:
        return Decision(verdict="failed", cause=timeout)
    absent = ended_before_joining(state, now)
    if absent is not None:
        return Decision(verdict="failed", cause=absent)
    decision = failure_verdict(state, winners, now)
    return replace(decision, warnings=(*no_port_warning(state, now), *decision.warnings))


def success_verdict(state: AttemptState, now: float) -> Decision:
    """Decision once the deciding tasks have succeeded: the others get their grace, and no vote."""
    state.succeeded_at = now if state.succeeded_at is None else state.succeeded_at
    waited = now - state.succeeded_at
    running = [view for view in state.tasks.values() if not view.ended]
    over = tuple(
        view.task.name
        for view in running
        if waited >= grace_after_success(state.config, view.task)
        or view.stopped_since is not None
        or (view.task.role == "evaluator" and has_scored_last(state, view, now))
    )
    in_step = strategy_of(state.config).all_reduces
    held = [
        view.task.name
        for view in running
        if in_step and view.task.name in over and view.task.name not in state.warned
        if view.task.role != "evaluator" and view.stopped_since is None
    ]
    state.warned.update(over)  # how they end is our doing
    late = [
        view
        for view in state.tasks.values()
        if view.ended and view.exit_code != 0 and new(state, view.task.name)
    ]
    state.tolerated += (view.task.name for view in late)
    warnings = [
        f"{view.task.name} failed after the run was decided: {ending(view)}"
        f"{left_alone(state, view)}"
        for view in late
        if view.restart_at is None
    ]
    if held:
        warnings.append(
            f"{some(held)} still ran {OTHERS_GRACE:g} s after the run had succeeded, and is "
            "stopped: if it waits in a collective, evaluate and save on every rank, or give every "
            "rank as many batches"
        )
    unserved = [name for name in over if state.tasks[name].task.role == "evaluator"]
    if unserved and gets_no_checkpoint(state.config) and new(state, "checkpoints"):
        text = "got no checkpoint (train.checkpoints is not set): not waiting for it"
        warnings.append(f"{unserved[0]} {text}")
    if len(over) == len(running):
        return Decision(verdict="done", warnings=tuple(warnings))
    return Decision(verdict="go_on", stop=over, warnings=tuple(warnings))


def left_alone(state: AttemptState, view: TaskView) -> str:
    """Advice on a task that lacked peers which had succeeded before; "" if it lacked none."""
    peers = [observation(state, each) for each in state.tasks.values() if each.exit_code == 0]
    cause = find_root_cause([*peers, replace(observation(state, view), stopped=False)])
    return f": {cause.hint}" if cause is not None and cause.finished_before else ""


def grace_after_success(config: ClusterConfig, task: Task) -> float:
    """Seconds that a task may go on after success."""
    if task.role == "evaluator":
        return 0.0 if gets_no_checkpoint(config) else config.train.evaluator_grace
    return 0.0 if task.role in strategy_of(config).never_exit else OTHERS_GRACE


def gets_no_checkpoint(config: ClusterConfig) -> bool:
    """True if no checkpoint can have reached an evaluator: nodes, also local ones, share no disk
    and, without a secret of the user's, no bucket. A grace set in the config still applies."""
    return (
        (is_cloud(config.provider) or facts_of(config.provider).on_this_machine)
        and config.train.checkpoints is None
        and not config.secrets
        and config.train.evaluator_grace == Train().evaluator_grace
    )


def failure_verdict(state: AttemptState, winners: frozenset[str], now: float) -> Decision:
    """Verdict once a failure ends the attempt and its cause is certain."""
    warnings: list[str] = []
    stop: list[str] = []
    restart: list[str] = []
    fatal = False
    note_connected(state)
    for view in state.tasks.values():
        name = view.task.name
        if not has_failed(state, view, now):
            view.restart_at = None
            continue
        joined = None if name in winners else has_joined(state, view)
        alone = joined is not False and may_restart(state, view, failure_of(state, view))
        if name in winners or not (alone or tolerated(state, view.task)):
            fatal = True
        elif joined is None and view.ended_at is not None and now - view.ended_at < JOINED_LATE:
            continue
        elif not joined:
            fatal = True
        elif alone and view.restart_at is None:
            warnings.append(schedule(state, view, now))
        elif alone:
            restart += [name] if now >= (view.restart_at or now) else []
        else:
            stop += [name] if not view.ended else []
            if new(state, name):
                state.tolerated.append(name)
                why = f" ({view.final})" if view.final else ""
                warnings.append(
                    f"{name} has failed: {ending(view)}; the run continues without it{why}"
                )
    goes_on = Decision(verdict="go_on", stop=tuple(stop), warnings=tuple(warnings))
    if not fatal:
        state.first_failure = None
        return replace(goes_on, restart=tuple(restart))
    if state.first_failure is None:
        state.first_failure = now
    observations = [observation(state, view) for view in state.tasks.values()]
    waited, all_ended = now - state.first_failure, all(each.ended for each in state.tasks.values())
    if all_ended or waited >= WINDOW or (waited >= SETTLE and is_certain(observations)):
        cause = root_cause_of(state, observations)
        return replace(goes_on, verdict="failed", stop=(), cause=cause)
    return goes_on


def has_failed(state: AttemptState, view: TaskView, now: float) -> bool:
    """True if the task failed, is frozen, or does not serve after its restart."""
    if view.ended:
        return view.lost is not None or view.exit_code != 0
    if view.stopped_since is not None and now - view.stopped_since >= FROZEN_AFTER:
        return True
    if view.restarted_at is None or view.port_open or not serves(state, view.task):
        return False
    return now - view.restarted_at >= state.config.train.start_timeout


def tolerated(state: AttemptState, task: Task) -> bool:
    """True if the run goes on without this task: an evaluator never decides; some strategies need
    only one of a role, to which TensorFlow is connected."""
    if task.role == "evaluator":
        return True
    if task.role not in strategy_of(state.config).may_lose:
        return False
    return any(
        other.task.role == task.role and other.task != task and not other.ended and other.connected
        for other in state.tasks.values()
    )


def ended_before_joining(state: AttemptState, now: float) -> Cause | None:
    """Failure of a task that ended with 0 before the cluster formed: the others wait forever."""
    for view in state.tasks.values():
        if view.exit_code != 0 or not serves(state, view.task) or state.formed_after is not None:
            continue
        if not (never_served(state, view) or (view.port_open and not_joined_yet(state))):
            continue
        if now - (view.ended_at or now) >= JOINED_LATE and view.task.name not in state.warned:
            words = "ended with exit code 0 before it joined the cluster"
            if view.port_open:
                words = "ended with exit code 0 before the cluster had formed"
            cause = cause_of(view, "not_started", f"{words}; the others wait for it forever")
            return replace(cause, exit_code=0, hint=OUTSIDE)
    return None


OUTSIDE = (
    "every task must create its strategy, or its tf.distribute.Server, from TF_CONFIG and stay in"
    " it; a script that connects its tasks by other means needs `train.tf_config: false`"
)


def no_port_warning(state: AttemptState, now: float) -> tuple[str, ...]:
    """Warning, once, if no task has opened its port: it may load data, or wait elsewhere."""
    timeout = state.config.train.start_timeout
    expected = any(serves(state, view.task) for view in state.tasks.values())
    if state.first_port is not None or now - state.started < timeout or not expected:
        return ()
    if not new(state, "ports"):
        return ()
    return (
        f"no task has opened its port after {timeout:g} s: the script has not created a strategy "
        "yet, or not from the TF_CONFIG that it got",
    )


def timed_out(state: AttemptState, now: float, moment: float) -> Cause | None:
    """The limit that the attempt has reached: of its start, of silence, or one of `state.ends`."""
    train = state.config.train
    waiting = [
        view
        for view in state.tasks.values()
        if not (view.port_open or view.ended or view.restarted) and serves(state, view.task)
    ]
    late = state.first_port is not None and now - state.first_port >= train.start_timeout
    if late and waiting:
        view = waiting[0]
        return cause_of(
            view,
            "not_started",
            f"did not open its port {view.task.port} within {train.start_timeout:g} s of its "
            "first peer (train.start_timeout); the others wait for it forever",
        )
    first = next(iter(state.tasks.values()))
    if train.stall_timeout is not None:
        view = max(state.tasks.values(), key=lambda view: view.last_byte)
        quiet = now - view.last_byte
        if quiet >= train.stall_timeout:
            return cause_of(view, "stalled", CAUSES["stalled"].words.format(quiet=quiet))
    for kind, facts in CAUSES.items():
        end = state.ends.get(kind)
        if end is not None and moment >= end.at:
            return cause_of(first, kind, facts.words.format(limit=end.limit, node=first.task.node))
    return None


def cause_of(view: TaskView, kind: CauseKind, text: str) -> Cause:
    cause = Cause(task="", node="", kind=kind, text=text, hint=hint_for(kind, view.tail))
    if not cause.facts.of_task:
        return cause
    lines = last_lines(view.tail)
    return replace(cause, task=view.task.name, node=view.task.node, last_lines=lines)


def ending(view: TaskView) -> str:
    if view.lost is not None:
        return view.lost
    if view.exit_code is None and view.stopped_since is None:
        return f"its port {view.task.port} did not open"
    if view.exit_code is None:
        return "frozen (its process is stopped)"
    if view.exit_code < 0:
        return f"killed by signal {-view.exit_code}"
    return f"exit code {view.exit_code}"


def new(state: AttemptState, name: str) -> bool:
    if name in state.warned:
        return False
    state.warned.add(name)
    return True


# ── restarts ───────────────────────────────────────────────────────────────────


def is_retryable(cause: Cause, retry_exit_codes: Collection[int] = ()) -> bool:
    """True if another attempt is likely to succeed.

    Exit 42 is PreemptionCheckpointHandler's, 143 that of a process ended by SIGTERM. A task that
    only lost its peers, none of which failed or had finished, had its network cut. Other codes of
    1–127 would fail again and only be billed again."""
    if cause.facts.again == "never":
        return False
    if cause.exit_code is not None and cause.exit_code in retry_exit_codes:
        return True
    if cause.finished_before:  # they would finish first again
        return False
    if cause.facts.again == "by_exit":
        lost = cause.lost_peer or reports_lost_peer("\n".join(cause.last_lines))
        return cause.exit_code in (42, 143) or lost
    return cause.facts.again == "yes"


RESTART = Retry(pause=2.0, backoff=2.0, longest=60.0)
"""Pauses between the attempts of one run that fail one after the other."""


def may_restart_run(run: Run, cause: Cause, train: Train) -> bool:
    """True if a run whose last attempt failed by `cause` may have another, worth its bill."""
    if run.attempts[-1].number > train.max_restarts:
        return False
    return is_retryable(cause, train.retry_exit_codes)


def pause_before_attempt(run: Run) -> float:
    """Seconds before the next attempt, by how many of the last have failed by themselves. One whose
    node was lost is no sign that the next one fails too, and every second of a pause is billed."""
    own = (each.cause is None or each.cause.kind != "lost" for each in reversed(run.attempts))
    return RESTART.pause_after(max(1, sum(1 for _ in takewhile(bool, own))))


# TensorFlow's coordinator connects to restarted workers again at the addresses with which its
# cluster began, and to none before all of them are back (read in the source of 2.21:
# `_preemption_handler` calls `update_server_def` with the first server_def, and "waits until all
# workers are back"). So no worker is restarted alone once another one is out for good.
# https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/distribute/coordinator/cluster_coordinator.py


ALONE = RESTART
"""Pauses before the restarts of one task."""


def may_restart(state: AttemptState, view: TaskView, cause: Cause | None) -> bool:
    """True if a task that failed by `cause` is to be restarted alone. `train.max_restarts` counts
    for each task by itself, over the whole run."""
    train = state.config.train
    if cause is None or view.final is not None:
        return False
    if view.task.role not in strategy_of(state.config).restarts_alone:
        return False
    if state.restarts.get(view.task.name, 0) >= train.max_restarts:
        return False
    out = (
        other is not view and (other.task.name in state.tolerated or other.exit_code == 0)
        for other in state.tasks.values()
        if other.task.role == view.task.role
    )
    if any(out):
        return False
    return is_retryable(cause, train.retry_exit_codes)


def schedule(state: AttemptState, view: TaskView, now: float) -> str:
    """Schedule the restart of a task alone; returns what to say of it."""
    number = state.restarts.get(view.task.name, 0) + 1
    pause = ALONE.pause_after(number)
    view.restart_at = now + pause
    return (
        f"{view.task.name} has failed: {ending(view)}; restarting it alone in {pause:g} s "
        f"({number} of {state.config.train.max_restarts}), the run continues"
    )


def note_connected(state: AttemptState) -> None:
    """Note that TensorFlow can have connected to all tasks again: they serve at the same time."""
    for role in strategy_of(state.config).restarts_alone:
        views = [view for view in state.tasks.values() if view.task.role == role]
        if all(
            not view.ended and (view.port_open or not serves(state, view.task)) for view in views
        ):
            for view in views:
                view.connected = True
