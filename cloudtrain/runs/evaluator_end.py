"""Tells whether an evaluator has scored the last checkpoint of a run that has succeeded; pure."""

from __future__ import annotations

import re

from cloudtrain.cluster.plan import first_task
from cloudtrain.runs.attempt_state import AttemptState, TaskView

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
