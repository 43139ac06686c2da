"""Time that it took to make a cluster ready, by its journal."""

from __future__ import annotations

from collections.abc import Iterable

from cloudtrain.core.events import (
    AttemptBegun,
    AttemptStarted,
    ClusterGone,
    Line,
    UpBegun,
    UpCompleted,
    from_line,
)


def ready_time(lines: Iterable[Line]) -> float | None:
    """Seconds from nothing to running tasks: the longest `up` of this cluster (later ones have
    little to do), and the shortest start of an attempt (others waited). None if not known.
    """
    ups: list[float] = []
    starts: list[float] = []
    up = start = None
    for event in filter(None, map(from_line, lines)):
        now = event.time
        if now is None:
            continue
        if isinstance(event, ClusterGone):
            ups, starts, up, start = [], [], None, None
        elif isinstance(event, UpBegun):
            up = now
        elif isinstance(event, UpCompleted | AttemptBegun) and up is not None:
            ups, up = [*ups, now - up], None
        elif isinstance(event, AttemptStarted) and start is not None:
            starts, start = [*starts, now - start], None
        if isinstance(event, AttemptBegun):
            start = now
    return max(ups) + min(starts, default=0.0) if ups else None
