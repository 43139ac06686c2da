"""Builds a report from what is known of a run; a part that cannot be read is a note in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cloudtrain.artifacts.event_files import event_files
from cloudtrain.config.as_written import as_written
from cloudtrain.console.times import clock, duration
from cloudtrain.core import moments
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.events import AttemptBegun, MovesAgain, NothingMoves, RunEnded
from cloudtrain.core.metrics import Line, Sample, counts, repeated_of, unit_of
from cloudtrain.core.run_record import Cause, Run, Task, published, resumed
from cloudtrain.core.shell import command
from cloudtrain.core.version import __version__
from cloudtrain.money.node_hours import CostSoFar, total
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
    Pace,
    Phase,
    Report,
    TaskUse,
)
from cloudtrain.report.sources import LONGEST, TAIL, WHOLE, Sources
from cloudtrain.report.timeline import events_of, node_times, phases, without_journal

FILES = 500
"""Landed files that a report lists; the manifest has all."""

LINES = 20
"""Last lines of each log; fewer of many tasks, so that 128 nodes fit on a page."""

_USERINFO = re.compile(r"://[^/@\s]+@")
"""A password or token in a URL, which no config should have."""


def build(sources: Sources, *, now: float | None = None) -> Report:
    moment = moments.now() if now is None else now
    run, notes = sources.run, list(sources.notes)
    facts: dict[str, Any] = {}
    for part in (_times, _training, _use, _landed, _origin):
        try:
            facts.update(part(sources, moment, notes))
        except (CloudtrainError, OSError, ValueError) as error:
            notes.append(f"a part of this report is missing: {error}")
    return Report(
        made=moment,
        cloudtrain=__version__,
        run=_masked_run(run),
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
    logs: list[tuple[Task, Sequence[Line]]] = []
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
            tails.append(_tail(task, lines, LINES if task.name in failed else count))
    charts, source = _curves(sources, logs, notes)
    of_first = [lines for task, lines in logs if task.name == first]
    pace = next((each for each in paces if each.task == first), None)
    return {
        "lost": lost_work(run, of_first, pace, _times(sources, now, []).get("phases", ())),
        "charts": charts,
        "charts_from": source,
        "pace": tuple(paces),
        "stragglers": tuple(stragglers(paces)),
        "tails": tuple(tails),
    }


def _curves(
    sources: Sources, logs: Sequence[tuple[Task, Sequence[Line]]], notes: list[str]
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


def _tail(task: Task, lines: Sequence[Line], count: int) -> LogTail:
    shown = tuple(line.text[:LONGEST] for line in lines if line.text.strip())[-count:]
    return LogTail(task=task.name, attempt=task.attempt, lines=shown)


def _use(sources: Sources, _now: float, notes: list[str]) -> dict[str, Any]:
    run = sources.run
    samples: dict[Task, list[Sample]] = {}
    for task in run.task_attempts:
        samples[task] = sources.samples(task)
    use: list[TaskUse] = [
        found for task in run.tasks if (found := use_of(task, samples.get(task, ()))) is not None
    ]
    return {"use_over_time": charts_of(samples, run.created), "use": tuple(use)}


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
    shown = _without_named_keys(as_written(config))
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


def _without_named_keys(config: dict[str, Any]) -> dict[str, Any]:
    """Earlier versions accepted a key as a variable of the tasks, and recorded its value."""
    train = dict(config.get("train") or {})
    train["env"] = {
        name: "***" if looks_like_key_name(name) and "${" not in str(value) else value
        for name, value in (train.get("env") or {}).items()
    }
    return {**config, "train": train}


def _masked(value: Any) -> Any:
    """The same without keys and without passwords in URLs."""
    if isinstance(value, str):
        return without_keys(_USERINFO.sub("://***@", value))
    if isinstance(value, Mapping):
        return {key: _masked(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(each) for each in value]
    return value


def _masked_run(run: Run) -> Run:
    run = published(run)
    commands = {role: _masked(line) for role, line in run.commands.items()}
    return replace(run, command=_masked(run.command), commands=commands)


# ── cost of restarts ───────────────────────────────────────────────────────────
# Steps that were done again, and the time between attempts.


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
