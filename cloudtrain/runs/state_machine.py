"""Decisions that follow from the state of a running attempt; pure, on any clock."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from cloudtrain.cluster.plan import deciding_tasks, first_task
from cloudtrain.core.cloud import facts_of, is_cloud
from cloudtrain.core.model import ClusterConfig, Train
from cloudtrain.core.paths import some
from cloudtrain.core.retry import FROZEN_AFTER, JOINED_LATE, OTHERS_GRACE, SETTLE, WINDOW, Retry
from cloudtrain.core.run_record import Cause, Task
from cloudtrain.runs.attempt_state import (
    AttemptState,
    TaskView,
    has_joined,
    never_served,
    not_joined_yet,
    serves,
)
from cloudtrain.runs.hints import hint_for
from cloudtrain.runs.root_cause import (
    failure_of,
    find_root_cause,
    is_certain,
    is_retryable,
    observation,
    root_cause_of,
)
from cloudtrain.training.log_text import last_lines
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
    if state.succeeded_at is None:
        state.succeeded_at = now
    waited = now - state.succeeded_at
    running = [view for view in state.tasks.values() if not view.ended]
    over = tuple(
        view.task.name
        for view in running
        if waited >= grace_after_success(state.config, view.task)
        or view.stopped_since is not None
        or (view.task.role == "evaluator" and has_scored_last(state, view, now))
    )
    held = [name for name in over if name not in state.warned and waits_for_others(state, name)]
    state.warned.update(over)  # how they end is our doing
    late = [
        view
        for view in state.tasks.values()
        if view.ended and view.exit_code != 0 and new(state, view.task.name)
    ]
    state.tolerated += (view.task.name for view in late)
    warnings = tuple(
        f"{view.task.name} failed after the run was decided: {ending(view)}"
        f"{left_alone(state, view)}"
        for view in late
        if view.restart_at is None
    )
    if held:
        warnings = (
            *warnings,
            f"{some(held)} still ran {OTHERS_GRACE:g} s after the run had succeeded, and is "
            "stopped: if it waits in a collective, evaluate and save on every rank, or give every "
            "rank as many batches",
        )
    unserved = [name for name in over if state.tasks[name].task.role == "evaluator"]
    if unserved and gets_no_checkpoint(state.config) and new(state, "checkpoints"):
        text = "got no checkpoint (train.checkpoints is not set): not waiting for it"
        warnings = (*warnings, f"{unserved[0]} {text}")
    if len(over) == len(running):
        return Decision(verdict="done", warnings=warnings)
    return Decision(verdict="go_on", stop=over, warnings=warnings)


def waits_for_others(state: AttemptState, name: str) -> bool:
    """True for a task that trains in step with those that have succeeded."""
    view = state.tasks[name]
    return (
        strategy_of(state.config).all_reduces
        and view.task.role != "evaluator"
        and view.stopped_since is None
    )


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
        if not has_failed(state, view, now):
            view.restart_at = None
            continue
        joined = None if view.task.name in winners else has_joined(state, view)
        alone = joined is not False and restarts_alone(state, view)
        if view.task.name in winners or not (alone or tolerated(state, view.task)):
            fatal = True
        elif joined is None and view.ended_at is not None and now - view.ended_at < JOINED_LATE:
            continue
        elif not joined:
            fatal = True
        elif alone and view.restart_at is None:
            warnings.append(restart_warning(state, view, now))
        elif alone:
            restart += [view.task.name] if now >= (view.restart_at or now) else []
        else:
            stop += [view.task.name] if not view.ended else []
            if new(state, view.task.name):
                state.tolerated.append(view.task.name)
                warnings.append(tolerated_warning(view))
    if not fatal:
        state.first_failure = None
        return Decision(
            verdict="go_on", stop=tuple(stop), restart=tuple(restart), warnings=tuple(warnings)
        )
    if state.first_failure is None:
        state.first_failure = now
    observations = [observation(state, view) for view in state.tasks.values()]
    waited = now - state.first_failure
    all_ended = all(view.ended for view in state.tasks.values())
    if all_ended or waited >= WINDOW or (waited >= SETTLE and is_certain(observations)):
        return Decision(
            verdict="failed", cause=root_cause_of(state, observations), warnings=tuple(warnings)
        )
    return Decision(verdict="go_on", stop=tuple(stop), warnings=tuple(warnings))


def has_failed(state: AttemptState, view: TaskView, now: float) -> bool:
    """True if the task failed, is frozen, or does not serve after its restart."""
    if view.ended:
        return view.lost is not None or view.exit_code != 0
    if view.stopped_since is not None and now - view.stopped_since >= FROZEN_AFTER:
        return True
    return never_served_again(state, view, now)


def restarts_alone(state: AttemptState, view: TaskView) -> bool:
    """True if this failed task is to be restarted alone."""
    return may_restart(state, view, failure_of(state, view))


def restart_warning(state: AttemptState, view: TaskView, now: float) -> str:
    name, number = view.task.name, state.restarts.get(view.task.name, 0) + 1
    pause = schedule(state, view, now)
    return (
        f"{name} has failed: {ending(view)}; restarting it alone in {pause:g} s "
        f"({number} of {state.config.train.max_restarts}), the run continues"
    )


def tolerated_warning(view: TaskView) -> str:
    why = f" ({view.final})" if view.final else ""
    return f"{view.task.name} has failed: {ending(view)}; the run continues without it{why}"


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
    if train.stall_timeout is not None:
        quiet = now - max(view.last_byte for view in state.tasks.values())
        if quiet >= train.stall_timeout:
            view = max(state.tasks.values(), key=lambda view: view.last_byte)
            return cause_of(
                view, "stalled", f"no task wrote a log line for {quiet:.0f} s (train.stall_timeout)"
            )
    if state.deadline is not None and moment >= state.deadline:
        view = next(iter(state.tasks.values()))
        return cause_of(
            view, "deadline", f"the run took longer than {train.deadline:g} s (train.deadline)"
        )
    if state.budget_stop is not None and moment >= state.budget_stop:
        return budget_spent(state.config)
    if state.lifetime_stop is not None and moment >= state.lifetime_stop:
        view = next(iter(state.tasks.values()))
        return cause_of(view, "expired", f"the lifetime of its node {view.task.node} ends")
    return None


def budget_spent(config: ClusterConfig) -> Cause:
    """End of the run, as the rest of its budget pays for landing and going down."""
    return Cause(
        task="",
        node="",
        kind="budget",
        text=f"limits.budget of {config.limits.budget or 0:g} $ is spent",
        hint="`cloudtrain up` begins a new budget, and `cloudtrain train --resume RUN` continues "
        "from the last landed checkpoint",
    )


def cause_of(
    view: TaskView, kind: Literal["not_started", "stalled", "deadline", "expired"], text: str
) -> Cause:
    return Cause(
        task=view.task.name,
        node=view.task.node,
        kind=kind,
        text=text,
        last_lines=last_lines(view.tail),
        hint=hint_for(kind, view.tail),
    )


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


QUIET = 20.0
"""Seconds without a line or computing after a score, in which an Estimator's evaluator exports."""

STILL_AFTER = 60.0
"""The same of an evaluator that does not say which checkpoint it has scored."""

_SAVED = re.compile(rb"Saving checkpoints for (\d+) into")
_SCORED = re.compile(rb"Saving dict for global step (\d+)")
"""Lines of TensorFlow 1 and of Estimators (basic_session_run_hooks.py, estimator.py, to 2.15)."""


def has_scored_last(state: AttemptState, view: TaskView, now: float) -> bool:
    """True if the evaluator has scored the last checkpoint and waits for another one.

    Either both logs name the step, or it has worked since it got the checkpoint that the chief left
    (`evaluator_given`) and stands still. An Estimator's evaluator may sleep for ten minutes before
    it scores: it has not worked then. With GPUs, a processor that rests says nothing.
    """
    quiet = now - view.moved_at
    first = state.tasks[first_task(tuple(each.task for each in state.tasks.values())).name]
    saved, scored = _SAVED.findall(first.tail), _SCORED.findall(view.tail)
    if saved and scored:
        return int(scored[-1]) >= int(saved[-1]) and quiet >= QUIET
    group = state.config.nodes.get("evaluator")
    given = state.evaluator_given
    if given is None or group is None or group.accelerator is not None:
        return False
    return view.moved_at > given and quiet >= STILL_AFTER


# ── restarts of single tasks ───────────────────────────────────────────────────
# TensorFlow's coordinator connects to restarted workers again at the addresses with which its
# cluster began, and to none before all of them are back (read in the source of 2.21:
# `_preemption_handler` calls `update_server_def` with the first server_def, and "waits until all
# workers are back"). So no worker is restarted alone once another one is out for good.
# https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/distribute/coordinator/cluster_coordinator.py


ALONE = Retry(pause=2.0, backoff=2.0, longest=60.0)
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
    if any(is_out(state, other) for other in peers(state, view)):
        return False
    return is_retryable(cause, train.retry_exit_codes)


def schedule(state: AttemptState, view: TaskView, now: float) -> float:
    """Schedule the restart and return the pause before it, in seconds."""
    pause = ALONE.pause_after(state.restarts.get(view.task.name, 0) + 1)
    view.restart_at = now + pause
    return pause


def is_out(state: AttemptState, view: TaskView) -> bool:
    """True if the task has ended and will not be restarted alone."""
    return view.task.name in state.tolerated or view.exit_code == 0


def never_served_again(state: AttemptState, view: TaskView, now: float) -> bool:
    """True if a task that was restarted alone has not opened its port in time."""
    if view.restarted_at is None or view.ended or view.port_open or not serves(state, view.task):
        return False
    return now - view.restarted_at >= state.config.train.start_timeout


def note_connected(state: AttemptState) -> None:
    """Note that TensorFlow can have connected to all tasks again: they serve at the same time."""
    for role in strategy_of(state.config).restarts_alone:
        views = [view for view in state.tasks.values() if view.task.role == role]
        if all(serving(state, view) for view in views):
            for view in views:
                view.connected = True


def serving(state: AttemptState, view: TaskView) -> bool:
    if view.ended:
        return False
    return view.port_open or not serves(state, view.task)


def peers(state: AttemptState, view: TaskView) -> Iterator[TaskView]:
    """The other tasks of its role."""
    return (
        other
        for other in state.tasks.values()
        if other.task.role == view.task.role and other is not view
    )
