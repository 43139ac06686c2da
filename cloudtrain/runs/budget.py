"""Watches `limits.budget` while a cluster exists, by its record."""

from __future__ import annotations

from cloudtrain.cluster.budget_end import budget_now
from cloudtrain.core.cloud import cloud_of
from cloudtrain.core.codec import InvalidRecord, decode
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.model import Limits
from cloudtrain.money.budget import BudgetState, budget_state
from cloudtrain.runs.attempt_state import AttemptState
from cloudtrain.runs.tasks import Observer, Watched
from cloudtrain.state import Records

EVERY = 15.0
"""Seconds between two looks at the record during a run."""


def recorded_budget(records: Records, now: float) -> BudgetState | None:
    """State of the budget on record; None without one, or if no cluster is open."""
    if not records.is_open():
        return None
    try:
        config = records.config()
        limit = decode(Limits, config.get("limits")).budget
    except (CloudtrainError, InvalidRecord):
        return None
    cloud = cloud_of(config.get("provider"))
    if limit is None or cloud is None:
        return None
    return budget_state(limit, cloud, records.events(), now)


class BudgetWatch(Observer):
    """Tells a running attempt when its budget is spent, and warns once when it nearly is."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._next, self._warned = 0.0, False

    def look(self, state: AttemptState) -> None:
        now = self.session.clock.now()
        if self.session.config.limits.budget is None or now < self._next:
            return
        self._next = now + EVERY
        found = budget_now(self.session)
        if found is None:
            return
        state.budget_stop = found.stop
        if found.nearly_spent and not self._warned:
            self._warned = True
            self.session.console.warn(f"limits.budget: {found} are spent")
