"""Decides which failed tasks are restarted alone, while all others run on; pure.

TensorFlow's coordinator connects to restarted workers again at the addresses with which its cluster
began, and to none before all of them are back (read in the source of 2.21: `_preemption_handler`
calls `update_server_def` with the first server_def, and "waits until all workers are back").
So no worker is restarted alone once another one is out for good.
https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/distribute/coordinator/cluster_coordinator.py
"""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.core.retry import Retry
from cloudtrain.core.run_record import Cause
from cloudtrain.runs.attempt_state import AttemptState, TaskView, serves
from cloudtrain.runs.root_cause import is_retryable
from cloudtrain.training.strategies import strategy_of

ALONE = Retry(pause=2.0, backoff=2.0, longest=60.0)
"""Pauses before the restarts of one task."""


def may_restart(state: AttemptState, view: TaskView, cause: Cause | None) -> bool:
    """True if a task that failed by `cause` is to be restarted alone.

    `train.max_restarts` counts for each task by itself, over the whole run.
    """
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
