"""Decides from the record whether a cluster is idle: no run, and nobody on its nodes."""

from __future__ import annotations

from dataclasses import dataclass

from cloudtrain.core import events
from cloudtrain.core.codec import InvalidRecord, decode
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.model import Limits
from cloudtrain.runs.budget import recorded_budget
from cloudtrain.state import Records

DOING = "idle"
"""Purpose of the lock while an idle cluster is landed and destroyed; `down` waits for it."""


@dataclass(frozen=True, kw_only=True)
class IdleState:
    """Idle state. `due`: Unix time at which the cluster is destroyed, None while it is in use.
    `fault`: error of the last attempt to land or destroy it, `again`: Unix time of the next one.
    """

    due: float | None
    fault: str | None = None
    again: float | None = None


def idle_limit(records: Records) -> float | None:
    """Idle limit in seconds; None if `limits.idle` is off or no cluster is open, or if its desk
    attends to it, whose runs are not on record here.
    """
    if not records.is_open() or records.is_away():
        return None
    try:
        return decode(Limits, records.config().get("limits")).idle
    except (CloudtrainError, InvalidRecord):
        return None


def is_watched(records: Records) -> bool:
    """True if `limits.idle` or `limits.budget` may take the cluster down, or a command has left
    that to the idle process.
    """
    if idle_limit(records) is not None or recorded_budget(records, 0.0) is not None:
        return True
    return is_ordered(records)


def is_ordered(records: Records) -> bool:
    """True if a command that could not take the cluster down has left it to the idle process."""
    return records.is_open() and events.is_down_ordered(records.events())


def idle_state(records: Records) -> IdleState | None:
    """Idle state; None if `limits.idle` is off and no attempt to go down has failed."""
    limit, failed = idle_limit(records), events.down_fault(records.events())
    if limit is None and (failed is None or not records.is_open()):
        return None
    due = None if limit is None or is_used(records) else last_use(records) + limit
    if failed is None:
        return IdleState(due=due)
    return IdleState(due=due, fault=failed.why, again=failed.again)


def is_used(records: Records) -> bool:
    """True for an active run, a command that holds the cluster, or an open `ssh` or `exec`."""
    return records.holder() is not None or records.is_in_use() or records.active_run() is not None


def last_use(records: Records) -> float:
    """Unix time of the last use."""
    return max(events.last_use(records.events()), records.last_use(), records.configured())
