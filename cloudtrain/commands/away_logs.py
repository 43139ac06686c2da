"""Shows the log of a desk: what its console shows, and every task's output, as they reach the
store."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cloudtrain.away.away_orders import GONE_EVERY
from cloudtrain.away.find_away import FoundAway
from cloudtrain.away.published import AwayState, EventReader, LoggedEvent
from cloudtrain.console.times import clock as clock_time
from cloudtrain.core.errors import StoreError
from cloudtrain.core.retry import Clock, Retry, poll_until
from cloudtrain.runs.tail import RoleFilter
from cloudtrain.state.line_times import Arrival

POLL = Retry(pause=3.0)
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
        state = poll_until(lambda: follow_step(log, shown, clock), POLL, clock=clock)
    if state is None or state.phase != "ended":
        return 0
    show_end(state, shown)
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
            text = f"{report}, which is {state.unsigned}"
            self.warn_once(text, shown)

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


def follow_step(log: _DeskLog, shown: RoleFilter, clock: Clock) -> AwayState | None:
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


def show_end(state: AwayState, shown: RoleFilter) -> None:
    doubt = f" ({state.unsigned})" if state.unsigned else ""
    ended = f"has ended, exit code {state.exit_code or 0}{doubt}"
    shown.say(f"the controller of {state.cluster} {ended}")
    if state.error:
        shown.warn(state.error)


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
        data = b"".join(as_bytes(event) for event in lines)
        shown.recorded(task, data, arrivals_of(lines), tail, whole=True)


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


def arrivals_of(lines: Iterable[LoggedEvent]) -> list[Arrival]:
    found, offset = [], 0
    for event in lines:
        found.append(Arrival(offset, event.time))
        offset += len(as_bytes(event))
    return found
