"""Decides whether the tasks of an attempt formed one cluster; pure."""

from __future__ import annotations

from cloudtrain.core.retry import JOINED_LATE
from cloudtrain.core.run_record import Cause
from cloudtrain.runs.attempt_state import AttemptState, never_served, serves

TOO_SHORT = 2.0
"""Seconds: a task that ended sooner cannot have imported TensorFlow, let alone have trained."""


def detect_formation(state: AttemptState, now: float) -> bool:
    """Record the moment at which all serving tasks have their port open for the first time."""
    views = [view for view in state.tasks.values() if serves(state, view.task)]
    if state.formed_after is not None or not views:
        return False
    if not all(view.port_open for view in views):
        return False
    last = max(view.opened_at or now for view in views)
    if any(view.ended_at is not None and view.ended_at + JOINED_LATE < last for view in views):
        return False
    after = [view.served.after for view in views if view.served and view.served.after is not None]
    state.formed_after = max(after) if len(after) == len(views) else now - state.started
    return True


def trained_as_one(state: AttemptState) -> bool | None:
    """True if the tasks trained as one; None if unknown or not applicable."""
    if state.formed_after is not None:
        return True
    alone = [view for view in state.tasks.values() if serves(state, view.task)]
    lives = [
        view.served.never
        for view in alone
        if view.served and view.served.never is not None and never_served(state, view)
    ]
    return False if any(life >= TOO_SHORT for life in lives) else None


def separate_trainings_failure(state: AttemptState) -> Cause | None:
    """Failure of tasks that all succeeded, but trained separate models."""
    if trained_as_one(state) is not False:
        return None
    count = sum(view.task.role != "evaluator" for view in state.tasks.values())
    return Cause(
        task="",
        node="",
        kind="not_clustered",
        text=f"the tasks never formed a cluster: {count} separate trainings",
        hint="create the strategy from TF_CONFIG before anything else; set `strategy: custom` for "
        "independent tasks, `train.tf_config: false` for a cluster formed by other means",
    )


def separate_trainings_note(state: AttemptState) -> str | None:
    """Note on a successful run whose ports do not show whether it trained as one cluster."""
    views = [view for view in state.tasks.values() if serves(state, view.task)]
    if trained_as_one(state) is not None or not views:
        return None
    if not all(view.served is not None and view.served.never is not None for view in views):
        return None
    if any(view.served is not None and view.served.elsewhere for view in views):
        return (
            "no task opened its TF_CONFIG port, but some listened on others: it is unknown whether "
            "they trained as one cluster (set `train.tf_config: false` if that is intended)"
        )
    return (
        "no task opened its TF_CONFIG port, and they ended too soon to have trained: it is unknown "
        "whether they formed one cluster"
    )
