"""The limits at which a run is ended, a row of `LIMITS` for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from cloudtrain.cluster.lifetime import budget_now
from cloudtrain.cluster.session import Session
from cloudtrain.core.run_record import CauseKind, Run
from cloudtrain.runs.attempt_state import End
from cloudtrain.runs.node_agents import task_stop

SAVE_SECONDS = 30.0
"""Seconds between the SIGTERM that an agent sends before its node's lifetime ends, and ours."""


class RunLimit(NamedTuple):
    """One limit. One that is no time ends `at` now once it is reached."""

    field: str
    """Of the config, which sets it."""
    end: Callable[[Session, Run], End | None]
    """When the run's tasks are ended; None if it is not set."""
    wait_end: Callable[[Session], float] | None = None
    """Until when a lost node may be waited for, if not until that `end`."""


def _deadline(session: Session, run: Run) -> End | None:
    limit = session.config.train.deadline
    return None if limit is None else End(at=run.created + limit, limit=limit)


def _tasks_stopped(session: Session, run: Run) -> End:
    stops = (task_stop(session.config, node, run.created) for node in session.nodes)
    return End(at=min(stops, default=float("inf")) + SAVE_SECONDS)


def _first_expiry(session: Session) -> float:
    return min((node.expires for node in session.nodes if node.expires), default=float("inf"))


def _budget_spent(session: Session, _: Run) -> End | None:
    found = budget_now(session)
    if found is None:
        return None
    warning = f"limits.budget: {found} are spent" if found.nearly_spent else None
    stop = float("inf") if found.stop is None else found.stop
    return End(at=stop, limit=found.limit, warning=warning)


LIMITS: Mapping[CauseKind, RunLimit] = {
    "deadline": RunLimit("train.deadline", _deadline),
    "expired": RunLimit("limits.max_lifetime", _tasks_stopped, _first_expiry),
    "budget": RunLimit("limits.budget", _budget_spent),
}
"""By the cause of the failure. Another one has its field in `core/model`, with a section in
`config/` that reads it, and its kind in `CauseKind` and `CAUSES` of core/run_record."""
