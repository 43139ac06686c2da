"""Whether a cluster is idle, by what is on record here: no run, and nobody on its nodes."""

from __future__ import annotations

from dataclasses import dataclass

from cloudtrain.errors import CloudtrainError
from cloudtrain.records import Records

DOING = "idle"
"""What the lock says while an idle cluster is landed and ended; `down` waits for it."""

FAILED = "idle failed"
"""The event of an end that did not succeed."""

USES = frozenset({"up", "ready", "start", "started", "ended"})
"""Events that begin or end the use of a cluster; its end, and tries of it, do not."""


@dataclass(frozen=True, kw_only=True)
class Idle:
    """`due`: when the cluster goes down, Unix time; None while it is in use.
    `fault`: why the last try did not succeed."""

    due: float | None
    fault: str | None = None


def idle_limit(records: Records) -> float | None:
    """Seconds; None where `limits.idle` is off, or nothing is known that could be ended."""
    if not records.is_open():
        return None
    try:
        limits = records.config().get("limits")
    except CloudtrainError:
        return None
    limit = limits.get("idle") if isinstance(limits, dict) else None
    return float(limit) if isinstance(limit, int | float) else None


def idle(records: Records) -> Idle | None:
    """None where it may be so for ever."""
    limit = idle_limit(records)
    if limit is None:
        return None
    due = None if is_used(records) else last_use(records) + limit
    return Idle(due=due, fault=last_fault(records))


def is_used(records: Records) -> bool:
    """A run that goes on, a command that holds the cluster, or an open `ssh` or `exec`."""
    return records.holder() is not None or records.is_in_use() or records.active_run() is not None


def last_use(records: Records) -> float:
    """Unix time."""
    times = [event.get("time") for event in records.events() if event.get("event") in USES]
    known = [float(time) for time in times if isinstance(time, int | float)]
    return max([*known, records.last_use(), records.configured()])


def last_fault(records: Records) -> str | None:
    """Of a try since the cluster was last used."""
    events = [e for e in records.events() if e.get("event") in USES or e.get("event") == FAILED]
    if not events or events[-1]["event"] != FAILED:
        return None
    return str(events[-1].get("why"))
