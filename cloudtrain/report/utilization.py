"""Utilization of the nodes: by role over time, and by task; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from cloudtrain.core.metrics import IDLE, Sample
from cloudtrain.core.run_record import Task
from cloudtrain.report.facts import Chart, Series, TaskUse

BUCKETS = 120
"""Points of one curve."""

SHORT = 180.0
"""Seconds up to which a run's time is counted in seconds."""

Samples = Mapping[Task, Sequence[Sample]]
"""Of each task in each of its attempts."""


def use_of(task: Task, samples: Sequence[Sample]) -> TaskUse | None:
    if not samples:
        return None
    gpus = [figure for sample in samples if (figure := gpu(sample)) is not None]
    filled = [figure for sample in samples if (figure := gpu_memory(sample)) is not None]
    return TaskUse(
        task=task.name,
        role=task.role,
        cpu=fmean(sample.cpu for sample in samples),
        memory=fmean(memory(sample) for sample in samples),
        gpu=fmean(gpus) if gpus else None,
        gpu_memory=fmean(filled) if filled else None,
        idle=100.0 * sum(figure <= IDLE for figure in gpus) / len(gpus) if gpus else None,
    )


def charts_of(samples: Samples, begin: float) -> tuple[Chart, ...]:
    """GPU, CPU, memory and network by role, over the time since `begin` (Unix)."""
    kinds: tuple[tuple[str, Callable[[Sample], float | None]], ...] = (
        ("GPU, %", gpu),
        ("GPU memory, %", gpu_memory),
        ("CPU, %", lambda sample: sample.cpu),
        ("memory, %", memory),
        ("network, MB/s", lambda sample: (sample.received + sample.sent) / 1e6),
    )
    charts = (_chart(name, figure, samples, begin) for name, figure in kinds)
    return tuple(chart for chart in charts if chart.series)


def _chart(
    name: str, figure: Callable[[Sample], float | None], samples: Samples, begin: float
) -> Chart:
    times = [sample.time for each in samples.values() for sample in each]
    width = max(1.0, (max(times) - begin) / BUCKETS) if times else 1.0
    unit, scale = ("minute", 60.0) if times and max(times) - begin >= SHORT else ("second", 1.0)
    by_role: dict[str, dict[int, list[float]]] = {}
    for task, each in samples.items():
        for sample in each:
            value = figure(sample)
            if value is not None and sample.time >= begin:
                bucket = int((sample.time - begin) / width)
                by_role.setdefault(task.role, {}).setdefault(bucket, []).append(value)
    series = (
        Series(
            name=role,
            attempt=0,
            x=tuple(round((bucket + 0.5) * width / scale, 3) for bucket in sorted(buckets)),
            y=tuple(round(fmean(buckets[bucket]), 2) for bucket in sorted(buckets)),
        )
        for role, buckets in by_role.items()
    )
    return Chart(metric=name, unit=unit, series=tuple(series))


def gpu(sample: Sample) -> float | None:
    return _mean(each.utilization for each in sample.gpus if each.utilization is not None)


def gpu_memory(sample: Sample) -> float | None:
    return _mean(_percent(each.memory_used, each.memory_total) for each in sample.gpus)


def memory(sample: Sample) -> float:
    return _percent(sample.memory_used, sample.memory_total)


def _percent(used: int, total: int) -> float:
    return min(100.0, 100.0 * used / total) if total else 0.0


def _mean(figures: Iterable[float]) -> float | None:
    known = list(figures)
    return fmean(known) if known else None
