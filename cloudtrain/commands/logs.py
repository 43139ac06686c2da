"""`cloudtrain logs`: shows every task's output, each line prefixed with its name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from cloudtrain.artifacts.run_index import LandedLogs
from cloudtrain.away.away_orders import GONE_EVERY
from cloudtrain.away.find_away import FoundAway, attended, find_away
from cloudtrain.away.find_run import FoundRun, find_run, ingest_before_reading
from cloudtrain.away.published import AwayState, EventReader, LoggedEvent
from cloudtrain.cluster.lease import holding_lease
from cloudtrain.cluster.session import Handle, open_session, recorded_config
from cloudtrain.console import times
from cloudtrain.console.times import clock as clock_time
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import LockedError, StoreError, UsageError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.protocols import Console
from cloudtrain.core.retry import CLOCK, Clock, Retry, poll_until
from cloudtrain.core.run_record import Run, Task
from cloudtrain.runs.idle import starting_idle_process
from cloudtrain.runs.supervise import supervise_run
from cloudtrain.runs.tail import LineView, RoleFilter
from cloudtrain.state import Records
from cloudtrain.state.line_times import Arrival, arrivals

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
        landed = LandedLogs(found.run.id, found.store())
        for task in found.run.task_attempts:
            shown.recorded(task.name, landed.read(name_of(task)), (), tail, whole=True)
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


def name_of(task: Task) -> str:
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


# ── the log of a desk: what its console shows, as it reaches the store ─────────


DESK_POLL = Retry(pause=3.0)
"""Looks at the store: two or three requests each."""

_TASK = re.compile(r"[a-z]{1,20}\d{1,6}\Z")


def show_desk_log(
    found: FoundAway, shown: RoleFilter, *, follow: bool, tail: int | None, clock: Clock
) -> int:
    """Show the log so far; with `follow`, until the desk has ended. Returns the exit code of its
    command, 0 as long as it has none; 1 if the run's desk has not signed it."""
    log = _DeskLog(found)
    state = found.state()
    log.warn_unsigned(state, shown)
    show_so_far(log.new(), shown, tail)
    if follow and not log.is_over(state, clock):
        state = poll_until(lambda: follow_desk(log, shown, clock), DESK_POLL, clock=clock)
    if state is None or state.phase != "ended":
        return 0
    doubt = f" ({state.unsigned})" if state.unsigned else ""
    ended = f"has ended, exit code {state.exit_code or 0}{doubt}"
    shown.say(f"the controller of {state.cluster} {ended}")
    if state.error:
        shown.warn(state.error)
    return state.exit_code or (1 if state.unsigned else 0)


@dataclass
class _DeskLog:
    """The log and how far it was read."""

    found: FoundAway
    reader: EventReader = field(default_factory=EventReader)
    offset: int = 0
    is_silent: bool = False
    told: set[str] = field(default_factory=set)
    asked: float = 0.0
    """When the account was last asked whether the desk is gone."""

    def is_over(self, state: AwayState | None, clock: Clock) -> bool:
        """True once the desk has ended: by its signed report, or if the account lists it no
        more."""
        if state is None or state.phase != "ended" or not state.unsigned:
            return state is not None and state.phase == "ended"
        if clock.now() - self.asked < GONE_EVERY:
            return False
        self.asked = clock.now()
        return self.found.is_gone()

    def warn_unsigned(self, state: AwayState | None, shown: RoleFilter) -> None:
        if state is not None and state.unsigned:
            report = f"the store has a report of the controller, {state.phase}"
            self.warn_once(f"{report}, which is {state.unsigned}", shown)

    def new(self) -> list[LoggedEvent]:
        """Events since the last call. Raises StoreError."""
        events: list[LoggedEvent] = []
        while data := self.found.published.log(self.offset):
            self.offset += len(data)
            events += self.reader.feed(data)
        return events

    def warn_once(self, text: str, shown: RoleFilter) -> None:
        if text not in self.told:
            self.told.add(text)
            shown.warn(text)


def follow_desk(log: _DeskLog, shown: RoleFilter, clock: Clock) -> AwayState | None:
    """Show what is new; the state once it has ended, with the whole log shown. A store that does
    not answer is asked again."""
    try:
        state = log.found.state()  # first: the last one is written after the whole log
        events = log.new()
    except StoreError as error:
        log.warn_once(f"the store does not answer, trying again: {error.message}", shown)
        return None
    for event in events:
        show_event(event, shown)
    if state is None:
        return None
    log.warn_unsigned(state, shown)
    if log.is_over(state, clock):
        return state
    if state.is_silent(clock.now()) and not log.is_silent:
        shown.warn(silence(state, clock.now()))
    log.is_silent = state.is_silent(clock.now())
    if state.error:
        log.warn_once(state.error, shown)
    return None


def silence(state: AwayState, now: float) -> str:
    """Text on what a desk's silence may mean, and what to do."""
    name, minutes = state.cluster, (now - state.as_of) / 60
    desk = f" as {state.node}" if state.node else ""
    return (
        f"the controller of {name} has not reported for {minutes:.0f} min\n"
        f"`cloudtrain ls --cloud` shows whether it exists{desk}; `cloudtrain down {name} "
        "--discard` deletes it and the nodes, and what has landed stays"
    )


# ── events ───────────────────────────────────────────────────────────────────


def show_so_far(events: Sequence[LoggedEvent], shown: RoleFilter, tail: int | None) -> None:
    """Everything in its order; as lines with their times, or with `tail`, task by task."""
    if tail is None and not shown.by_line:
        for event in events:
            show_event(event, shown, when=f"{clock_time(event.time)}  ")
        return
    tasks = dict.fromkeys(event.task for event in events if is_output(event))
    for task in tasks:
        lines = [event for event in events if is_output(event) and event.task == task]
        data, index = bytearray(), []
        for event in lines:
            index.append(Arrival(len(data), event.time))
            data += as_bytes(event)
        shown.recorded(task, bytes(data), index, tail, whole=True)


def show_event(event: LoggedEvent, shown: RoleFilter, when: str = "") -> None:
    if is_output(event):
        shown.task_output(event.task, as_bytes(event))
    elif event.event == "message":
        shown.say(f"{when}{event.text}")
    elif event.event == "warning":
        shown.warn(f"{when}{event.text}")
    elif event.event == "stage begun":
        shown.say(f"{when}{event.stage} …")
    elif event.event in ("stage done", "stage failed"):
        shown.say(f"{when}{event.stage}: {event.event[6:]} after {event.seconds:.0f} s")


def is_output(event: LoggedEvent) -> bool:
    """True for a line of a task. Others may write to a store too: its name has to be one."""
    return event.event == "output" and _TASK.match(event.task) is not None


def as_bytes(event: LoggedEvent) -> bytes:
    return f"{event.line}\n".encode("utf-8", "replace")
