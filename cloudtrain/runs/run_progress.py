"""Progress of an active run, by the log of its first task, and the utilization of its nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

from cloudtrain.console.lines import clean
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.metrics import (
    GPU_RESTS,
    LogLine,
    Sample,
    Unit,
    counts,
    end_of,
    last_loss,
    latest_samples,
    unit_of,
)
from cloudtrain.core.paths import some
from cloudtrain.core.run_record import Run, Task
from cloudtrain.state import Records
from cloudtrain.state.line_times import arrivals, time_at

LATEST_BYTES = 1 << 18
"""Bytes at the end of a log that are read: `status --watch` does so every two seconds."""

_EPOCHS = re.compile(r"\bepoch\b\s*[:=#]?\s*\d+\s*(?:/|of)\s*(\d+)", re.IGNORECASE)
"""`Epoch 3/10` of Keras: the number of all epochs."""

_RATE = re.compile(
    r"(?P<number>\d+(?:[.,]\d+)*)\s*(?P<unit>examples|images|imgs?|samples|sequences|tokens|steps)"
    r"\s*(?:/|per)\s*s(?:ec(?:onds?)?)?\b",
    re.IGNORECASE,
)
"""`900.3 examples/second` (the TimeHistory of TensorFlow's models), `31.2 images/sec`."""
_STEP_TIME = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s)/(?:step|batch)\b")
"""`12ms/step` of Keras' bar."""
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """By the task's own words; a script may count in any way."""

    unit: Unit
    at: int
    of: int | None = None
    """Number of all epochs, if the log names it."""
    loss: float | None = None
    rate: str | None = None
    """Its speed in the log's own words: `1234.5 examples/s`; a script may count per task or all."""
    left: float | None = None
    """Seconds to the end at the pace of the latest epochs; None if unknown."""


def progress_of(records: Records, run: Run, now: float) -> RunProgress | None:
    """Progress of an active run; None if its first task has printed no epoch and no step."""
    if run.ended is not None or not run.attempts or not run.tasks:
        return None
    task = run.tasks[0]
    return progress_in(latest_lines(records.log_path(run.id, task.name, task.attempt)), now)


def progress_in(lines: Sequence[LogLine], now: float) -> RunProgress | None:
    unit = unit_of(lines)
    if unit is None:
        return None
    counted = (line for line in reversed(lines) if counts([line], unit))  # thousands of steps
    newest = next(counted)
    at = counts([newest], unit)[0]
    totals = _EPOCHS.findall(newest.text) if unit == "epoch" else []
    of = int(totals[0]) if totals else None
    left = None if of is None else seconds_left([newest, *counted][::-1], at, of, now)
    return RunProgress(
        unit=unit, at=at, of=of, loss=last_loss(lines), rate=last_rate(lines), left=left
    )


def last_rate(lines: Sequence[LogLine]) -> str | None:
    """The last speed that was printed."""
    for line in reversed(lines[-1000:]):
        found = list(_RATE.finditer(line.text))
        if found:
            number, unit = found[-1]["number"], found[-1]["unit"]
            return f"{number} {unit.lower()}/s"
        step = _STEP_TIME.search(line.text)
        if step is not None and float(step[1]) > 0:
            seconds = float(step[1]) * _SECONDS[step[2]]
            return f"{1 / seconds:.3g} steps/s"
    return None


def seconds_left(counted: Sequence[LogLine], at: int, of: int, now: float) -> float | None:
    """`counted`: one line for each epoch that began."""
    first = counts(counted[:1], "epoch")[0]
    begun, latest = counted[0].seen, counted[-1].seen
    if at <= first or not begun or latest <= begun:
        return None
    pace = (latest - begun) / (at - first)
    return max(0.0, (of - at + 1) * pace - (now - latest))


def latest_lines(log: Path) -> list[LogLine]:
    """Whole lines at the end of a log, each with the time at which it began to arrive, or 0."""
    data, start = end_of(log, LATEST_BYTES)
    index, found, offset = arrivals(log), [], start
    for piece in data.split(b"\n") if data else ():
        text = clean(piece.decode("utf-8", "replace"))
        found.append(LogLine(task="", seen=time_at(index, offset) or 0.0, text=text))
        offset += len(piece) + 1
    return found[1:] if start else found


# ── utilization of the nodes ───────────────────────────────────────────────────


LATEST = 30.0
"""Seconds over which figures are averaged: a step, or a pause between epochs, is shorter."""

RESTING_FOR = 120.0
"""Seconds after which an idle GPU is named: longer than most pauses to save or evaluate."""

DIFFERS = 25.0
"""Percentage points from the median of its role from which a node is named."""

STALE = 60.0
"""Seconds without a new sample from which a node has no figures."""

NAMED = 4
"""Tasks that one note names; the others are counted."""


@dataclass(frozen=True, kw_only=True)
class LatestUse:
    """Latest figures of one task's node, in percent."""

    task: str
    cpu: float
    memory: float
    gpu: float | None
    """Mean of its GPUs; None without GPUs, or if their driver does not say."""
    gpu_memory: float | None
    resting_gpus: tuple[int, ...] = ()
    """GPUs that have rested for `RESTING_FOR` seconds, counted from 0."""

    @property
    def busy(self) -> float:
        return self.cpu if self.gpu is None else self.gpu


@dataclass(frozen=True, kw_only=True)
class RoleUse:
    """Means over the tasks of one role that have figures; percent."""

    role: str
    tasks: int
    cpu: float
    memory: float
    gpu: float | None
    gpu_memory: float | None
    least: str
    """Task whose GPUs (or, without any, processors) are least busy."""
    least_busy: float


@dataclass(frozen=True, kw_only=True)
class Utilization:
    roles: tuple[RoleUse, ...]
    notes: tuple[str, ...] = ()
    """Idle GPUs, and nodes that differ from the others of their role."""


def utilization_of(records: Records, run: Run, now: float) -> Utilization | None:
    """By the samples that have arrived here; None if there are none of the last minute."""
    if run.ended is not None:
        return None
    uses: dict[str, list[LatestUse]] = {}
    for task in run.tasks:
        samples = fresh_samples(records, run, task, now, STALE)
        if samples:
            uses.setdefault(task.role, []).append(task_use(task.name, samples))
    return utilization_in(uses) if uses else None


def fresh_samples(
    records: Records, run: Run, task: Task, now: float, within: float
) -> list[Sample] | None:
    """Latest samples of the task's node; none if they no longer arrive, None if none ever did."""
    path = records.metrics_path(run.id, task.name, task.attempt)
    try:
        is_fresh = now - path.stat().st_mtime <= within
    except OSError:
        return None
    return latest_samples(path) if is_fresh else []


def task_use(task: str, samples: Sequence[Sample]) -> LatestUse:
    end = samples[-1].time
    latest = [sample for sample in samples if sample.time >= end - LATEST]
    gpus = [gpu for sample in latest for gpu in sample.gpus]
    return LatestUse(
        task=task,
        cpu=fmean(sample.cpu for sample in latest),
        memory=fmean(percent(each.memory_used, each.memory_total) for each in latest),
        gpu=mean(gpu.utilization for gpu in gpus if gpu.utilization is not None),
        gpu_memory=mean(percent(gpu.memory_used, gpu.memory_total) for gpu in gpus),
        resting_gpus=tuple(resting_gpus(samples)),
    )


def resting_gpus(samples: Sequence[Sample]) -> Iterator[int]:
    end = samples[-1].time
    if samples[0].time > end - RESTING_FOR:
        return
    window = [sample for sample in samples if sample.time >= end - RESTING_FOR]
    for index in range(min(len(sample.gpus) for sample in window)):
        figures = [sample.gpus[index].utilization for sample in window]
        if all(each is not None and each <= GPU_RESTS for each in figures):
            yield index


def utilization_in(uses: Mapping[str, Sequence[LatestUse]]) -> Utilization:
    roles = tuple(role_use(role, of_role) for role, of_role in uses.items())
    resting = [use for of_role in uses.values() for use in of_role if use.resting_gpus]
    notes = []
    if resting:
        count = sum(len(use.resting_gpus) for use in resting)
        each = [f"{use.task} (GPU {', '.join(map(str, use.resting_gpus))})" for use in resting]
        gpus = f"{count} idle GPU{'s' if count != 1 else ''}"
        notes.append(f"{gpus} for {RESTING_FOR / 60:.0f} min: {some(each, NAMED)}")
    for of_role in uses.values():
        notes += different(of_role)
    return Utilization(roles=roles, notes=tuple(notes))


def role_use(role: str, uses: Sequence[LatestUse]) -> RoleUse:
    least = min(uses, key=lambda use: use.busy)
    return RoleUse(
        role=role,
        tasks=len(uses),
        cpu=fmean(use.cpu for use in uses),
        memory=fmean(use.memory for use in uses),
        gpu=mean(use.gpu for use in uses if use.gpu is not None),
        gpu_memory=mean(use.gpu_memory for use in uses if use.gpu_memory is not None),
        least=least.task,
        least_busy=least.busy,
    )


def different(uses: Sequence[LatestUse]) -> Iterator[str]:
    """Tasks that are much busier or less busy than their role's median. Which of them the others
    wait for is not said: a GPU that waits for others in NCCL is 100 % busy (seen:
    https://github.com/cupy/cupy/issues/3557)."""
    if len(uses) < 3:  # of two, neither is the exception
        return
    usual = median(use.busy for use in uses)
    others = [use for use in uses if abs(use.busy - usual) >= DIFFERS and not use.resting_gpus]
    if others:
        what = "CPU" if others[0].gpu is None else "GPU"
        names = some([f"{use.task} {use.busy:.0f} %" for use in others], NAMED)
        yield f"{what} of {names}; the median of the others is {usual:.0f} %"


def mean(figures: Iterable[float]) -> float | None:
    known = list(figures)
    return fmean(known) if known else None


def percent(used: int, total: int) -> float:
    return min(100.0, 100.0 * used / total) if total else 0.0
