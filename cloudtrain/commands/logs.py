"""`cloudtrain logs`: shows every task's output, each line prefixed with its name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from cloudtrain.artifacts.run_index import LandedLogs
from cloudtrain.away.find_away import FoundAway, attended, find_away
from cloudtrain.cluster.lease import holding_lease
from cloudtrain.cluster.session import Handle, open_session, recorded_config
from cloudtrain.commands.away_logs import show_desk_log
from cloudtrain.console import times
from cloudtrain.core.errors import LockedError, UsageError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.protocols import Console
from cloudtrain.core.retry import CLOCK, Clock, Retry, poll_until
from cloudtrain.core.run_record import Run, Task
from cloudtrain.runs.find_run import FoundRun, find_run, ingest_before_reading
from cloudtrain.runs.idle import starting_idle_process
from cloudtrain.runs.supervise import supervise_run
from cloudtrain.runs.tail import LineView, RoleFilter
from cloudtrain.state import Records
from cloudtrain.state.line_times import arrivals

POLL = Retry(pause=0.2)
"""Polls of a run that another process supervises."""
CHUNK = 1 << 16


def logs(
    name: str,
    *,
    config: ClusterConfig | None = None,
    store: str | None = None,
    follow: bool = False,
    roles: Sequence[str] = (),
    tail: int | None = None,
    run: str | None = None,
    view: LineView | None = None,
    console: Console,
    clock: Clock = CLOCK,
) -> int:
    """Show the logs of `run`, or of the latest one. Returns the exit code: 0, or that of a run that
    was away, followed to its end.

    With `follow`, until the run has ended: an unattended run is supervised by this process, which
    ends, restarts and lands it as `train` would. `view` shows lines one by one in place of
    `console`."""
    shown = RoleFilter(view or console, roles)
    desk = find_away(name, config, store)
    if desk is not None and shows_desk_log(desk, run, clock.now()):
        return show_desk_log(desk, shown, follow=follow, tail=tail, clock=clock)
    found = find_run(name, run, config=config, uri=store)
    if found.run.ended is None:
        ingest_before_reading(found, console, "logs")
    report_formation(found.run, console)
    if found.records is None:
        show_landed(found, shown, tail)
        if follow and found.run.ended is None:
            raise UsageError(
                f"run {found.run.id} is still active, and can be followed only on the machine that "
                "started it, which has the keys of its nodes",
                hint="omit -f to show what has landed so far (every `artifacts.every`)",
            )
        return 0
    records, id = found.records, found.run.id
    offsets = show(records, found, shown, tail)
    if follow and found.run.ended is None:
        poll_until(lambda: follow_step(records, id, shown, offsets), POLL, clock=clock)
    return 0


def shows_desk_log(desk: FoundAway, run: str | None, now: float) -> bool:
    """True for the run that a desk attends to, and for a desk that has ended without one."""
    state = attended(desk, now)
    if state is not None:
        return run in (None, state.run)
    last = desk.state() if run is None else None
    return last is not None and last.run is None


def report_formation(run: Run, console: Console) -> None:
    """Above the log, as `train` said it when the cluster formed: the line's own time is another."""
    for attempt in run.attempts:
        if attempt.formed_after is not None:
            which = f"attempt {attempt.number}: " if len(run.attempts) > 1 else ""
            at = times.clock(attempt.started + attempt.formed_after)
            console.say(f"{which}cluster formed after {attempt.formed_after:g} s, at {at}")


Offsets = dict[tuple[str, int], int]


def show(records: Records, found: FoundRun, console: RoleFilter, tail: int | None) -> Offsets:
    """Show the local part of every log, attempt by attempt; returns how far each was read. Logs of
    an ended run that are not here are read from the store."""
    offsets: Offsets = {}
    landed: LandedLogs | None = None
    for task, path in log_files(records, found.run):
        if path.exists():
            data = path.read_bytes()
        elif found.run.ended is None:
            data = b""
        else:
            landed = landed or LandedLogs(found.run.id, found.store())
            data = landed.read(name_of(task))
        offsets[task.name, task.attempt] = len(data)
        whole = found.run.ended is not None or task not in found.run.tasks
        index = arrivals(path) if console.by_line else ()
        console.recorded(task.name, data, index, tail, whole=whole)
    return offsets


def show_landed(found: FoundRun, console: RoleFilter, tail: int | None) -> None:
    landed = LandedLogs(found.run.id, found.store())
    for task in found.run.task_attempts:
        console.recorded(task.name, landed.read(name_of(task)), (), tail, whole=True)


def name_of(task: Task) -> str:
    """Name of the attempt's log in the store."""
    return f"{task.name}.attempt-{task.attempt}.log"


def follow_step(records: Records, id: str, console: Console, offsets: Offsets) -> Run | None:
    """Follow until the run has ended."""
    try:
        with starting_idle_process(records), records.lock("logs -f"):
            run = records.run(id)
            advance(records, run, console, offsets)
            if run.ended is not None:
                return run
            handle = Handle(recorded_config(records))
            with (
                holding_lease(handle, "logs -f", console, must=False),
                open_session(handle, console) as session,
            ):
                return supervise_run(session, run)
    except LockedError:
        run = records.run(id)
        advance(records, run, console, offsets)
        return run if run.ended is not None else None


def advance(records: Records, run: Run, console: Console, offsets: Offsets) -> None:
    """Show what has been appended since."""
    for task, path in log_files(records, run):
        offset = offsets.get((task.name, task.attempt), 0)
        if not path.exists() or path.stat().st_size <= offset:
            continue
        with path.open("rb") as log:
            log.seek(offset)
            while data := log.read(CHUNK):
                offset += len(data)
                console.task_output(task.name, data)
        offsets[task.name, task.attempt] = offset


def log_files(records: Records, run: Run) -> Iterator[tuple[Task, Path]]:
    for task in run.task_attempts:
        yield task, records.log_path(run.id, task.name, task.attempt)
