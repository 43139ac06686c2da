"""`cloudtrain logs`: shows every task's output, each line prefixed with its name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from cloudtrain.artifacts.run_index import LandedLogs
from cloudtrain.cluster.lease import holding_lease
from cloudtrain.cluster.session import Handle, open_session, recorded_config
from cloudtrain.commands.find_run import FoundRun, find_run
from cloudtrain.commands.log_lines import LineView
from cloudtrain.commands.spools import ingest_before_reading
from cloudtrain.errors import LockedError, UsageError
from cloudtrain.model import ClusterConfig
from cloudtrain.protocols import Console, Stage
from cloudtrain.retry import CLOCK, Clock, Retry, poll_until
from cloudtrain.run_record import Run, Task
from cloudtrain.runs.background import starting_idle_process
from cloudtrain.runs.supervise import supervise_run
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
) -> None:
    """Show the logs of `run`, or of the latest one.

    With `follow`, until the run has ended: an unattended run is supervised by this process, which
    ends, restarts and lands it as `train` would. `view` shows lines one by one in place of
    `console`.
    """
    found = find_run(name, run, config=config, uri=store)
    shown = RoleFilter(view or console, roles)
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
        return
    records, id = found.records, found.run.id
    offsets = show(records, found, shown, tail)
    if follow and found.run.ended is None:
        poll_until(lambda: follow_step(records, id, shown, offsets), POLL, clock=clock)


def report_formation(run: Run, console: Console) -> None:
    """Above the log, as `train` said it when the cluster formed."""
    for attempt in run.attempts:
        if attempt.formed_after is not None:
            which = f"attempt {attempt.number}: " if len(run.attempts) > 1 else ""
            console.say(f"{which}cluster formed after {attempt.formed_after:g} s")


Offsets = dict[tuple[str, int], int]


def show(records: Records, found: FoundRun, console: RoleFilter, tail: int | None) -> Offsets:
    """Show the local part of every log, attempt by attempt; returns how far each was read.

    Logs of an ended run that are not here are read from the store.
    """
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
        console.recorded(task.name, data, path, tail, whole=whole)
    return offsets


def show_landed(found: FoundRun, console: RoleFilter, tail: int | None) -> None:
    landed = LandedLogs(found.run.id, found.store())
    for task in found.run.task_attempts:
        console.recorded(task.name, landed.read(name_of(task)), None, tail, whole=True)


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


def last_lines(data: bytes, tail: int | None) -> bytes:
    if tail is None:
        return data
    return b"".join(data.splitlines(keepends=True)[-tail:]) if tail > 0 else b""


class RoleFilter:
    """A console that shows the output of some roles only."""

    def __init__(self, console: Console | LineView, roles: Sequence[str]) -> None:
        self._console, self._roles = console, frozenset(roles)

    def recorded(
        self, task: str, data: bytes, path: Path | None, tail: int | None, *, whole: bool
    ) -> None:
        """Show the end of a log that is here, or was read from the store (without `path`)."""
        if not self._takes(task):
            return
        if isinstance(self._console, LineView):
            index = arrivals(path) if path is not None else ()
            self._console.recorded(task, data, index, tail, whole=whole)
        else:
            self._console.task_output(task, last_lines(data, tail))

    def say(self, text: str) -> None:
        self._console.say(text)

    def warn(self, text: str) -> None:
        self._console.warn(text)

    def stage(self, title: str, total: int) -> AbstractContextManager[Stage]:
        return self._console.stage(title, total)

    def task_output(self, task: str, data: bytes) -> None:
        if self._takes(task):
            self._console.task_output(task, data)

    def _takes(self, task: str) -> bool:
        return not self._roles or task in self._roles or task.rstrip("0123456789") in self._roles
