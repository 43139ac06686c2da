"""Lines about an active run, kept below its log on a terminal by `train`, `run` and `logs -f`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from cloudtrain.cli.status_lines import progress_line, role_figures
from cloudtrain.commands.cost import cost
from cloudtrain.console.times import duration
from cloudtrain.core import moments
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.run_record import Run
from cloudtrain.runs.run_progress import progress_of
from cloudtrain.runs.utilization import utilization_of
from cloudtrain.state import Records

EVERY = 2.0
"""Seconds for which the lines hold: they are drawn more often than they can change."""


def run_panel(
    cluster: str, clock: Callable[[], float] = moments.now
) -> Callable[[], Sequence[str]]:
    """Return a function for the lines of now, by what has arrived here; none without an active
    run.
    """
    until, lines = 0.0, list[str]()

    def current() -> Sequence[str]:
        nonlocal until, lines
        now = clock()
        if now >= until:
            until, lines = now + EVERY, list(panel_lines(Records(cluster), now))
        return lines

    return current


def panel_lines(records: Records, now: float) -> Iterator[str]:
    try:
        run = records.active_run()
        if run is None or run.state != "running":
            return
        yield f"── {'  '.join(summary(records, run, now))}"
        progress = progress_of(records, run, now)
        utilization = utilization_of(records, run, now)
    except CloudtrainError:
        return
    if progress is not None:
        yield f"   {progress_line(progress)}"
    if utilization is not None:
        yield from (f"   {role.role:8}{role_figures(role)}" for role in utilization.roles)
        yield from (f"   ! {note}" for note in utilization.notes)


def summary(records: Records, run: Run, now: float) -> Iterator[str]:
    """The run, its attempt, its age and its $ so far."""
    yield f"run {run.id}"
    yield f"attempt {run.attempts[-1].number}" if run.attempts else "starting"
    yield duration(max(0.0, now - run.created))
    runs = (each for one in cost(records.name, now=now).clusters for each in one.runs)
    spent = next((each.cost for each in runs if each.run == run.id), None)
    if spent is not None and spent.least:
        yield str(spent)
