"""Builds a report from what is known of a run; a part that cannot be read is a note in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cloudtrain.artifacts.event_files import event_files
from cloudtrain.config.as_written import as_written
from cloudtrain.console.times import clock, duration
from cloudtrain.core import moments
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.events import (
    AttemptBegun,
    AttemptStarted,
    ClusterGone,
    DownBegun,
    Event,
    MovesAgain,
    NodeCreated,
    NodeDeletionBegun,
    NodeRequested,
    NodesPlaced,
    NothingMoves,
    RunEnded,
    UpBegun,
    UpCompleted,
    from_line,
)
from cloudtrain.core.events import Line as JournalLine
from cloudtrain.core.metrics import LogLine, counts, repeated_of, unit_of
from cloudtrain.core.run_record import Cause, Run, RunAttempt, Task, published, resumed
from cloudtrain.core.shell import command
from cloudtrain.core.version import __version__
from cloudtrain.money.node_hours import CostSoFar, node_hours, total
from cloudtrain.node.key_shapes import looks_like_key_name, without_keys
from cloudtrain.report.curves import (
    charts_in,
    charts_of,
    charts_of_events,
    pace_of,
    stragglers,
    use_of,
)
from cloudtrain.report.facts import (
    Chart,
    LandedFile,
    LogTail,
    LostWork,
    NodeTimes,
    Pace,
    Phase,
    Report,
    Segment,
)
from cloudtrain.report.sources import LONGEST, TAIL, WHOLE, Sources

FILES = 500
"""Landed files that a report lists; the manifest has all."""

LINES = 20
"""Last lines of each log; fewer of many tasks, so that 128 nodes fit on a page."""

_USERINFO = re.compile(r"://[^/@\s]+@")
"""A password or token in a URL, which no config should have."""


def build(sources: Sources, *, now: float | None = None) -> Report:
    moment = moments.now() if now is None else now
    run, notes = sources.run, list(sources.notes)
    masked = published(run)
    commands = {role: _masked(line) for role, line in masked.commands.items()}
    masked = replace(masked, command=_masked(masked.command), commands=commands)
    facts: dict[str, Any] = {}
    for part in (_times, _training, _use, _landed, _origin):
        try:
            facts.update(part(sources, moment, notes))
        except (CloudtrainError, OSError, ValueError) as error:
            notes.append(f"a part of this report is missing: {error}")
    return Report(
        made=moment,
        cloudtrain=__version__,
        run=masked,
        verdict=verdict(run, moment),
        complete=sources.manifest is not None and sources.manifest.complete,
        notes=(*_stills(sources), *notes),
        **facts,
    )


def verdict(run: Run, now: float) -> str:
    """`succeeded after 12m`; with the cause of a failure."""
    took = duration((run.ended or now) - run.created)
    attempts = f", in {len(run.attempts)} attempts" if len(run.attempts) > 1 else ""
    if run.ended is None and run.state not in ("succeeded", "failed", "stopped"):
        return f"{run.state} for {took}{attempts}"
    cause = run.attempts[-1].cause if run.attempts else None
    why = f": {in_words(cause)}" if cause is not None and run.state != "succeeded" else ""
    doubts = "".join(f"; warning: {doubt.text}" for doubt in run.doubts)
    return f"{run.state} after {took}{attempts}{why}{doubts}"


def _stills(sources: Sources) -> Iterator[str]:
    """Each time in which nothing moved: `nothing moved for 12m: worker0 waits in …`."""
    run, begun = sources.run, None
    for event in events_of(sources.journal, run):
        if isinstance(event, NothingMoves) and event.run == run.id:
            begun = event
        elif begun is not None and isinstance(event, MovesAgain | AttemptBegun | RunEnded):
            took = max(0.0, (event.time or begun.since) - begun.since)
            yield f"nothing moved for {duration(took)}: {begun.text}"
            begun = None
    if begun is not None:
        yield f"nothing has moved since {clock(begun.since)}: {begun.text}"


def in_words(cause: Cause) -> str:
    place = " on ".join(filter(None, (cause.task, cause.node)))
    return f"{place}: {cause.text}" if place else cause.text


def _times(sources: Sources, now: float, notes: list[str]) -> dict[str, Any]:
    run, lines = sources.run, sources.journal
    events = events_of(lines, run)
    if not events:
        return {"phases": without_journal(run, now)}
    found = phases(events, lines, run, is_up=sources.is_up, now=now)
    nodes = node_times(events, lines, run, is_up=sources.is_up, now=now)
    return {"phases": found, "nodes": nodes, "cost": total(phase.cost for phase in found)}


def _training(sources: Sources, now: float, notes: list[str]) -> dict[str, Any]:
    """Curves, pace, stragglers, work done again, and the ends of the logs."""
    run = sources.run
    first = run.tasks[0].name if run.tasks else ""
    logs: list[tuple[Task, Sequence[LogLine]]] = []
    paces: list[Pace] = []
    tails: list[LogTail] = []
    count = max(5, min(LINES, 640 // max(1, len(run.tasks))))
    failed = {a.cause.task for a in run.attempts if a.cause is not None}
    for task in run.task_attempts:
        with_curves = task.name == first or task.role == "evaluator"
        latest = task in run.tasks
        if not (with_curves or latest):
            continue
        lines = sources.log(task, WHOLE if with_curves else TAIL)
        if with_curves:
            logs.append((task, lines))
        if latest:
            paces += filter(None, [pace_of(task, lines)])
            most = LINES if task.name in failed else count
            ends = [line.text[:LONGEST] for line in lines if line.text.strip()][-most:]
            tails.append(LogTail(task=task.name, attempt=task.attempt, lines=tuple(ends)))
    charts, source = _curves(sources, logs, notes)
    of_first = [lines for task, lines in logs if task.name == first]
    pace = next((each for each in paces if each.task == first), None)
    is_again = len(run.attempts) > 1
    phases_of = _times(sources, now, []).get("phases", ()) if is_again else ()
    return {
        "lost": lost_work(run, of_first, pace, phases_of),
        "charts": charts,
        "charts_from": source,
        "pace": tuple(paces),
        "stragglers": tuple(stragglers(paces)),
        "tails": tuple(tails),
    }


def _curves(
    sources: Sources, logs: Sequence[tuple[Task, Sequence[LogLine]]], notes: list[str]
) -> tuple[tuple[Chart, ...], str]:
    """From event files if there are any that can be read, otherwise from the log."""
    files = event_files(sources.manifest.files.values()) if sources.manifest else ()
    if files:
        try:
            charts, left_out = charts_of_events(files, sources.read, sources.run.attempts)
        except ImportError:
            notes.append("the event files of TensorBoard were not read: the extra `report` does it")
        except (CloudtrainError, OSError) as error:
            notes.append(f"the event files of TensorBoard were not read: {error}")
        else:
            notes += left_out
            if charts:
                return charts, "TensorBoard event files"
    return charts_in(logs), f"the log of {', '.join(dict.fromkeys(t.name for t, _ in logs))}"


def _use(sources: Sources, _now: float, notes: list[str]) -> dict[str, Any]:
    run = sources.run
    samples = {task: sources.samples(task) for task in run.task_attempts}
    use = (use_of(task, samples.get(task, ())) for task in run.tasks)
    return {
        "use_over_time": charts_of(samples, run.created),
        "use": tuple(found for found in use if found is not None),
    }


def _landed(sources: Sources, _now: float, _notes: list[str]) -> dict[str, Any]:
    files = sources.manifest.files if sources.manifest else {}
    listed = (files[path] for path in sorted(files)[:FILES])
    return {
        "artifacts": tuple(
            LandedFile(path=each.path, size=each.size, sha256=each.sha256) for each in listed
        ),
        "artifacts_count": len(files),
        "artifacts_bytes": sum(each.size for each in files.values()),
    }


def _origin(sources: Sources, _now: float, notes: list[str]) -> dict[str, Any]:
    """Versions, config, and the command that reproduces the run."""
    config = sources.config
    setup = dict((config or {}).get("setup") or {})
    wanted = {"TensorFlow": setup.get("tensorflow"), "Python": setup.get("python")}
    versions = {"cloudtrain": __version__, "code": sources.run.code}
    versions.update({name: str(value) for name, value in wanted.items() if value})
    if setup.get("keras"):
        versions["Keras"] = str(setup["keras"])
    if sources.run.resumed_from is not None:
        versions["resumed from"] = resumed(sources.run.resumed_from)
    if config is None:
        return {"versions": versions}
    # Earlier versions accepted a key as a variable of the tasks, and recorded its value.
    shown = as_written(config)
    train = dict(shown.get("train") or {})
    train["env"] = {
        name: "***" if looks_like_key_name(name) and "${" not in str(value) else value
        for name, value in (train.get("env") or {}).items()
    }
    shown["train"] = train
    return {
        "versions": versions,
        "config": _masked(_without_empty(shown)),
        "reproduce": tuple(_masked(list(reproduce(shown, published(sources.run))))),
    }


def reproduce(config: Mapping[str, Any], run: Run) -> Iterator[str]:
    """Shell lines that create the same cluster and start the same training."""
    file = str(config.get("source") or "").rpartition("/")[2] or "FILE.yaml"
    words = ["cloudtrain", "up", file]
    for setting in config.get("overrides") or ():
        words += ["--set", str(setting)]
    code, train = config.get("code") or {}, config.get("train") or {}
    if code.get("git") and re.fullmatch(r"[0-9a-f]{40}", run.code):
        words += ["--set", f"code.ref={run.code}"]
    yield command(*words).shell()
    line, given = run.command, str(train.get("command") or "")
    start = command("cloudtrain", "train", run.cluster).shell()
    if run.resumed_from is not None:
        start += f" {command('--resume', run.resumed_from.run).shell()}"
    if given and line.startswith(f"{given} "):
        start += f" -- {line[len(given) + 1 :]}"
    yield start


def _without_empty(value: Any) -> Any:
    """The config without fields that are not set."""
    if isinstance(value, Mapping):
        kept = {key: _without_empty(each) for key, each in value.items()}
        return {key: each for key, each in kept.items() if each not in (None, {}, [], (), "")}
    if isinstance(value, list | tuple):
        return [_without_empty(each) for each in value]
    return value


def _masked(value: Any) -> Any:
    """The same without keys and without passwords in URLs."""
    if isinstance(value, str):
        return without_keys(_USERINFO.sub("://***@", value))
    if isinstance(value, Mapping):
        return {key: _masked(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(each) for each in value]
    return value


# ── cost of restarts ───────────────────────────────────────────────────────────
# Steps that were done again, and the time between attempts.


def lost_work(
    run: Run, logs: Sequence[Sequence[LogLine]], pace: Pace | None, phases: Sequence[Phase]
) -> LostWork | None:
    """`logs`: those of one task, by attempt; `pace`: its time for a step. None without restarts."""
    if len(run.attempts) < 2:
        return None
    first = run.attempts[0].started
    again = re.compile(r"start attempt (?!1$).*|before the next attempt")
    between = [each for each in phases if each.begin >= first and again.fullmatch(each.name)]
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


# ── Phases of a cluster and times of its nodes, by its journal and a run's record; pure ───────


Since = tuple[float, str]
"""From this Unix time on, the cluster is in this phase."""


def events_of(lines: Iterable[JournalLine], run: Run) -> tuple[Event, ...]:
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
    events: Sequence[Event], lines: Sequence[JournalLine], run: Run, *, is_up: bool, now: float
) -> tuple[Phase, ...]:
    """The cluster's phases from its creation on, one after the other, with their cost."""
    steps = sorted([*_of_events(events, run), *_of_attempts(run)], key=lambda step: step[0])
    end = now if is_up or not events else max(events[-1].time or 0.0, run.ended or 0.0)
    spans = node_hours(lines, is_up=is_up)
    return tuple(
        replace(
            phase,
            cost=total(span.cost(phase.begin, phase.end) for span in spans),
            node_hours=sum(span.hours(phase.begin, phase.end) for span in spans),
        )
        for phase in _joined(steps, end)
    )


def _of_events(events: Sequence[Event], run: Run) -> Iterator[Since]:
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


def _of_attempts(run: Run) -> Iterator[Since]:
    """The ends of attempts, which the journal does not have; without a journal, their starts."""
    for attempt in run.attempts:
        if attempt.ended is not None:
            last = attempt is run.attempts[-1]
            yield attempt.ended, "landing" if last else "before the next attempt"


def _joined(steps: Sequence[Since], end: float) -> Iterator[Phase]:
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


def without_journal(run: Run, now: float) -> tuple[Phase, ...]:
    """The phases of a run of which only the record is known, as of another machine's."""
    begun = [(each.started, f"attempt {each.number}") for each in run.attempts]
    steps = sorted([*begun, *_of_attempts(run)], key=lambda step: step[0])
    return tuple(_joined(steps, run.ended or now))


def node_times(
    events: Sequence[Event], lines: Sequence[JournalLine], run: Run, *, is_up: bool, now: float
) -> tuple[NodeTimes, ...]:
    """Times of each node of the run, in the order of its tasks."""
    prices = {span.node: span.price for span in node_hours(lines, is_up=is_up)}
    places: dict[str, str] = {}
    for event in events:
        if isinstance(event, NodesPlaced):
            places |= event.places
    found = []
    for node in (task.node for task in run.tasks):
        segments = list(_made(node, events))
        for attempt in run.attempts:
            segments += _trained(node, attempt, events, run, now)
        segments.sort(key=lambda segment: segment.begin)
        times = NodeTimes(
            node=node,
            place=places.get(node, ""),
            price=prices.get(node),
            segments=tuple(segments),
        )
        found.append(times)
    return tuple(found)


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
