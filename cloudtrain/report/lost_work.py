"""What the restarts of a run cost: steps that were done again, and the time between attempts."""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.core.log_progress import Line, counts, repeated_of, unit_of
from cloudtrain.core.run_record import Run
from cloudtrain.core.spent import CostSoFar, total
from cloudtrain.report.facts import LostWork, Pace, Phase


def lost_work(
    run: Run, logs: Sequence[Sequence[Line]], pace: Pace | None, phases: Sequence[Phase]
) -> LostWork | None:
    """`logs`: those of one task, by attempt; `pace`: its time for a step. None without restarts."""
    if len(run.attempts) < 2:
        return None
    first = run.attempts[0].started
    between = [each for each in phases if each.begin >= first and _is_between(each.name)]
    unit = unit_of(line for lines in logs for line in lines)
    repeated = None if unit is None else repeated_of([counts(lines, unit) for lines in logs])
    each = pace.seconds if pace is not None and pace.unit == unit else None
    seconds = None if each is None or repeated is None else repeated * each
    return LostWork(
        restarts=len(run.attempts) - 1,
        unit=unit or "",
        repeated=repeated,
        repeated_seconds=seconds,
        repeated_cost=None if seconds is None else _cost(seconds, phases),
        between_seconds=sum(phase.seconds for phase in between),
        between_cost=total(phase.cost for phase in between) if between else None,
    )


def _is_between(phase: str) -> bool:
    again = phase.startswith("start attempt ") and phase != "start attempt 1"
    return again or phase == "before the next attempt"


def _cost(seconds: float, phases: Sequence[Phase]) -> CostSoFar | None:
    """$ for so much of the time in which attempts ran."""
    ran = [phase for phase in phases if phase.name.startswith("attempt ")]
    whole = sum(phase.seconds for phase in ran)
    if not whole:
        return None
    cost, share = total(phase.cost for phase in ran), seconds / whole
    return CostSoFar(
        least=cost.least * share, most=None if cost.most is None else cost.most * share
    )
