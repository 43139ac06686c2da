"""Phases of a cluster and times of its nodes, by its journal and a run's record; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from cloudtrain.core.events import (
    AttemptBegun,
    AttemptStarted,
    ClusterGone,
    DownBegun,
    Event,
    Line,
    NodeCreated,
    NodeDeletionBegun,
    NodeRequested,
    NodesPlaced,
    RunEnded,
    UpBegun,
    UpCompleted,
    from_line,
)
from cloudtrain.core.run_record import Run, RunAttempt
from cloudtrain.money.node_hours import NodeHours, node_hours, total
from cloudtrain.report.facts import NodeTimes, Phase, Segment

Step = tuple[float, str]
"""From this Unix time on, the cluster is in this phase."""


def events_of(lines: Iterable[Line], run: Run) -> tuple[Event, ...]:
    """Events of the cluster on which the run ran: one of the same name may have been before, or
    come after."""
    found: list[Event] = []
    for event in filter(None, map(from_line, lines)):
        if isinstance(event, ClusterGone):
            if found and (found[-1].time or 0.0) >= run.created:
                break
            found.clear()
        elif event.time is not None:
            found.append(event)
    return tuple(found)


def phases(
    events: Sequence[Event], lines: Sequence[Line], run: Run, *, is_up: bool, now: float
) -> tuple[Phase, ...]:
    """The cluster's phases from its creation on, one after the other, with their cost."""
    steps = sorted([*_of_events(events, run), *_of_attempts(run)], key=lambda step: step[0])
    end = now if is_up or not events else max(events[-1].time or 0.0, run.ended or 0.0)
    spans = node_hours(lines, is_up=is_up)
    return tuple(_priced(found, spans) for found in _joined(steps, end))


def _of_events(events: Sequence[Event], run: Run) -> Iterator[Step]:
    own = False
    for event in events:
        time = event.time or 0.0
        if isinstance(event, UpBegun):
            yield time, "create"
        elif isinstance(event, NodesPlaced) and not own:
            yield time, "boot and setup"
        elif isinstance(event, UpCompleted):
            yield time, "no run"
        elif isinstance(event, AttemptBegun):
            own = event.run == run.id
            yield time, f"start attempt {event.attempt}" if own else "another run"
        elif isinstance(event, AttemptStarted) and event.run == run.id:
            yield time, f"attempt {event.attempt}"
        elif isinstance(event, RunEnded):
            own = False
            yield time, "no run"
        elif isinstance(event, DownBegun):
            yield time, "delete"


def _of_attempts(run: Run) -> Iterator[Step]:
    """The ends of attempts, which the journal does not have; without a journal, their starts."""
    for attempt in run.attempts:
        if attempt.ended is not None:
            last = attempt is run.attempts[-1]
            yield attempt.ended, "landing" if last else "before the next attempt"


def _joined(steps: Sequence[Step], end: float) -> Iterator[Phase]:
    """Phases between the steps; one that goes on is one phase."""
    last: Phase | None = None
    for number, (begin, name) in enumerate(steps):
        until = steps[number + 1][0] if number + 1 < len(steps) else end
        if last is not None and last.name == name:
            last = replace(last, end=until)
            continue
        if last is not None and last.seconds > 0:
            yield last
        last = Phase(name=name, begin=begin, end=max(begin, until), cost=total(()))
    if last is not None:
        yield last


def _priced(phase: Phase, spans: Sequence[NodeHours]) -> Phase:
    return replace(
        phase,
        cost=total(span.cost(phase.begin, phase.end) for span in spans),
        node_hours=sum(span.hours(phase.begin, phase.end) for span in spans),
    )


def without_journal(run: Run, now: float) -> tuple[Phase, ...]:
    """The phases of a run of which only the record is known, as of another machine's."""
    found: list[Step] = []
    for attempt in run.attempts:
        found.append((attempt.started, f"attempt {attempt.number}"))
    steps = sorted([*found, *_of_attempts(run)], key=lambda step: step[0])
    return tuple(_joined(steps, run.ended or now))


def node_times(
    events: Sequence[Event], lines: Sequence[Line], run: Run, *, is_up: bool, now: float
) -> tuple[NodeTimes, ...]:
    """Times of each node of the run, in the order of its tasks."""
    prices = {span.node: span.price for span in node_hours(lines, is_up=is_up)}
    return tuple(_node(task.node, events, run, prices, now) for task in run.tasks)


def _node(
    node: str, events: Sequence[Event], run: Run, prices: dict[str, float | None], now: float
) -> NodeTimes:
    segments, place = list(_made(node, events)), ""
    for event in events:
        if isinstance(event, NodesPlaced):
            place = event.places.get(node, place)
    for attempt in run.attempts:
        segments += _trained(node, attempt, events, run, now)
    segments.sort(key=lambda segment: segment.begin)
    return NodeTimes(node=node, place=place, price=prices.get(node), segments=tuple(segments))


def _made(node: str, events: Sequence[Event]) -> Iterator[Segment]:
    requested = created = placed = None
    for event in events:
        time = event.time or 0.0
        if isinstance(event, NodeRequested) and event.node == node:
            requested, created, placed = time, None, None
        elif isinstance(event, NodeCreated) and event.node == node and requested is not None:
            yield Segment(kind="create", begin=requested, end=time)
            created = time
        elif isinstance(event, NodesPlaced) and node in event.places and requested is not None:
            if created is not None:
                yield Segment(kind="boot", begin=created, end=time)
            else:  # as of a local node
                yield Segment(kind="create", begin=requested, end=time)
            requested, created, placed = None, None, time
        elif isinstance(event, UpCompleted | AttemptBegun) and placed is not None:
            yield Segment(kind="setup", begin=placed, end=time)
            placed = None
        elif isinstance(event, NodeDeletionBegun) and event.node == node:
            yield Segment(kind="delete", begin=time, end=time)
            requested = None


def _trained(
    node: str, attempt: RunAttempt, events: Sequence[Event], run: Run, now: float
) -> Iterator[Segment]:
    """The start of an attempt, and the attempt itself up to its end."""
    begun = next(
        (
            event.time or attempt.started
            for event in events
            if isinstance(event, AttemptStarted)
            and (event.run, event.attempt) == (run.id, attempt.number)
        ),
        attempt.started,
    )
    end = attempt.ended or now
    if begun > attempt.started:
        yield Segment(kind="start", begin=attempt.started, end=min(begun, end))
    task = next((task.name for task in run.tasks if task.node == node), "")
    code = attempt.exits.get(task)
    how = "running" if attempt.ended is None else "ended" if code is None else f"exit code {code}"
    text = f"attempt {attempt.number}: {how}"
    yield Segment(kind="train", begin=min(begun, end), end=end, text=text)
