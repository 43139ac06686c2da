"""Utilization of an active run's nodes, by role, and the nodes that differ from the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from cloudtrain.core.metrics import IDLE, Sample, latest_samples
from cloudtrain.core.paths import some
from cloudtrain.core.run_record import Run
from cloudtrain.state import Records

LATEST = 30.0
"""Seconds over which figures are averaged: a step, or a pause between epochs, is shorter."""

IDLE_FOR = 120.0
"""Seconds after which a GPU that computes nothing is named: longer than most pauses to save or
evaluate."""

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
    idle_gpus: tuple[int, ...] = ()
    """GPUs that have been idle for `IDLE_FOR` seconds, counted from 0."""

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
        path = records.metrics_path(run.id, task.name, task.attempt)
        try:
            fresh = now - path.stat().st_mtime <= STALE
        except OSError:
            continue
        samples = latest_samples(path) if fresh else []
        if samples:
            uses.setdefault(task.role, []).append(task_use(task.name, samples))
    return utilization_in(uses) if uses else None


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
        idle_gpus=tuple(idle_gpus(samples)),
    )


def idle_gpus(samples: Sequence[Sample]) -> Iterator[int]:
    end = samples[-1].time
    if samples[0].time > end - IDLE_FOR:
        return
    window = [sample for sample in samples if sample.time >= end - IDLE_FOR]
    for index in range(min(len(sample.gpus) for sample in window)):
        figures = [sample.gpus[index].utilization for sample in window]
        if all(each is not None and each <= IDLE for each in figures):
            yield index


def utilization_in(uses: Mapping[str, Sequence[LatestUse]]) -> Utilization:
    roles = tuple(role_use(role, of_role) for role, of_role in uses.items())
    idle = [use for of_role in uses.values() for use in of_role if use.idle_gpus]
    notes = [idle_note(idle)] if idle else []
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


def idle_note(idle: Sequence[LatestUse]) -> str:
    count = sum(len(use.idle_gpus) for use in idle)
    names = some([f"{use.task} ({gpus_named(use.idle_gpus)})" for use in idle], NAMED)
    return f"{count} idle GPU{'s' if count != 1 else ''} for {IDLE_FOR / 60:.0f} min: {names}"


def gpus_named(gpus: Sequence[int]) -> str:
    return f"GPU {', '.join(map(str, gpus))}"


def different(uses: Sequence[LatestUse]) -> Iterator[str]:
    """Tasks that are much busier or less busy than their role's median.

    Which of them the others wait for is not said: a GPU that waits for others in NCCL is 100 %
    busy (seen: https://github.com/cupy/cupy/issues/3557).
    """
    if len(uses) < 3:  # of two, neither is the exception
        return
    usual = median(use.busy for use in uses)
    others = [use for use in uses if abs(use.busy - usual) >= DIFFERS and not use.idle_gpus]
    if others:
        what = "CPU" if others[0].gpu is None else "GPU"
        names = some([f"{use.task} {use.busy:.0f} %" for use in others], NAMED)
        yield f"{what} of {names}; the median of the others is {usual:.0f} %"


def mean(figures: Iterable[float]) -> float | None:
    known = list(figures)
    return fmean(known) if known else None


def percent(used: int, total: int) -> float:
    return min(100.0, 100.0 * used / total) if total else 0.0
