"""Curves of a report: metrics, pace and stragglers by the tasks' own logs, metrics by TensorBoard's
event files, utilization by samples of the nodes."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean, median

from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.metrics import GPU_RESTS, LogLine, Sample, Unit, counts, unit_of
from cloudtrain.core.model import Artifact
from cloudtrain.core.run_record import RunAttempt, Task
from cloudtrain.report.facts import Chart, Pace, Series, TaskUse

POINTS = 400
"""Points of one curve: more than a page is wide."""

MOST = 24
"""Metrics that a report has."""

SLOWER = 1.25
"""A task is a straggler from this multiple of its role's median time per step or epoch."""

_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?|nan|[-+]?inf"
_WORDS = (
    "loss|accuracy|acc|auc|precision|recall|mae|mse|rmse|perplexity|error_rate|f1|iou|bleu"
    "|learning_rate|lr|examples/sec|examples_per_second|samples/sec|images/sec"
)
_BEFORE = "train|training|val|validation|test|eval|evaluation|mean|average"
METRIC = re.compile(
    rf"(?<![\w./])(?:final )?((?:{_BEFORE} )?(?:[a-z]\w*_)?(?:{_WORDS}))\b"
    rf"\s*[:=]?\s*({_NUMBER})(?![\w.])",
    re.IGNORECASE,
)
"""`val_loss: 0.31` of Keras' bar, `loss=0.5`, `final loss 0.3` of loops; not `lost 3 peers`."""


@dataclass(kw_only=True)
class _Points:
    """Points of one metric while a log is read; the last value of an `x` counts."""

    values: dict[float, float] = field(default_factory=dict)
    not_finite: int = 0

    def add(self, x: float, y: float) -> None:
        if math.isfinite(y):
            self.values[x] = y
        else:
            self.not_finite += 1

    def series(self, name: str, attempt: int) -> Series:
        xs = thinned(tuple(self.values))
        ys = tuple(self.values[x] for x in xs)
        return Series(name=name, attempt=attempt, x=xs, y=ys, not_finite=self.not_finite)


def charts_in(logs: Sequence[tuple[Task, Sequence[LogLine]]]) -> tuple[Chart, ...]:
    """One chart for each metric of these logs, with a curve for each of them."""
    unit = unit_of(line for _, lines in logs for line in lines)
    found: dict[str, list[Series]] = {}
    for task, lines in logs:
        for metric, points in _metrics(lines, unit).items():
            found.setdefault(metric, []).append(points.series(task.name, task.attempt))
    charts = (
        Chart(metric=metric, unit=unit or "line with a value", series=tuple(each))
        for metric, each in found.items()
    )
    return tuple(charts)[:MOST]


def _metrics(lines: Iterable[LogLine], unit: Unit | None) -> dict[str, _Points]:
    found: dict[str, _Points] = {}
    at = number = 0
    before = 0  # steps of earlier epochs, if each epoch counts its own
    for line in lines:
        here = counts([line], unit) if unit else []
        if here and unit == "step" and here[0] < at:
            before += at
        at = here[0] if here else at
        for name, value in METRIC.findall(line.text):
            number += 1
            metric = name.lower()
            x = float(before + at) if unit else float(number)
            found.setdefault(metric, _Points()).add(x, float(value))
    return found


def thinned(values: tuple[float, ...]) -> tuple[float, ...]:
    """At most POINTS of them, evenly, with the first and the last."""
    if len(values) <= POINTS:
        return values
    step = (len(values) - 1) / (POINTS - 1)
    return tuple(values[round(number * step)] for number in range(POINTS))


def pace_of(task: Task, lines: Sequence[LogLine]) -> Pace | None:
    """None for a task that has printed no step and no epoch."""
    unit = unit_of(lines)
    if unit is None:
        return None
    timed = [(counts([line], unit)[0], line.seen) for line in lines if counts([line], unit)]
    first, last = timed[0], timed[-1]
    seconds = None
    if first[1] and last[1] > first[1] and last[0] > first[0]:
        seconds = (last[1] - first[1]) / (last[0] - first[0])
    return Pace(task=task.name, role=task.role, unit=unit, reached=last[0], seconds=seconds)


def stragglers(paces: Sequence[Pace]) -> Iterator[str]:
    """Tasks that took much longer for a step or epoch than the median of their role. Where all wait
    for each other, as in synchronous training, none is slower than the others."""
    for role in dict.fromkeys(pace.role for pace in paces):
        known = [(p, p.seconds) for p in paces if p.role == role and p.seconds is not None]
        if len(known) < 3:  # of two, neither is the exception
            continue
        usual = median(seconds for _, seconds in known)
        for pace, seconds in known:
            if seconds >= SLOWER * usual:
                yield (
                    f"{pace.task}: {seconds:.3g} s per {pace.unit}; "
                    f"the median of its role is {usual:.3g} s"
                )


# ── TensorBoard's event files, by its own reader (the extra `report`) ─────────


LARGEST = 32 << 20
"""Bytes of all event files that are read; files with images or profiles are larger."""

MOST_POINTS = 200_000


def charts_of_events(
    files: Sequence[Artifact],
    read: Callable[[Artifact], Iterable[bytes]],
    attempts: Sequence[RunAttempt],
) -> tuple[tuple[Chart, ...], tuple[str, ...]]:
    """Charts of these files' scalars, and what was left out. Raises ImportError without
    TensorBoard, StoreError if a file cannot be read."""
    from tensorboard.backend.event_processing import event_file_loader  # noqa: F401  # before any I/O

    points: dict[tuple[str, str, int], _Points] = {}  # by tag, folder and attempt
    left, notes = LARGEST, []
    with tempfile.TemporaryDirectory(prefix="cloudtrain-report-") as folder:
        for number, file in enumerate(files):
            if file.size > left:
                notes.append(f"{file.path} was not read: the event files are too large")
                continue
            left -= file.size
            path = Path(folder, str(number))
            with path.open("wb") as copy:
                copy.writelines(read(file))
            name = file.path.rpartition("/")[0]
            for tag, step, time, value in _scalars(path):
                key = (tag, name, attempt_at(time, attempts))
                points.setdefault(key, _Points()).add(float(step), value)
    series: dict[str, list[Series]] = {}
    for (tag, name, attempt), each in sorted(points.items(), key=lambda item: item[0]):
        each.values = dict(sorted(each.values.items()))
        series.setdefault(tag, []).append(each.series(name, attempt))
    charts = [Chart(metric=tag, unit="step", series=tuple(all_)) for tag, all_ in series.items()]
    return tuple(charts)[:MOST], tuple(notes)


def _scalars(path: Path) -> Iterator[tuple[str, int, float, float]]:
    """Tag, step, Unix time and value of each scalar. A file that is torn ends where it is torn. The
    loader turns TensorFlow 1's scalars into tensors, as TensorFlow 2 writes them
    (tensorboard/data_compat.py, read in 2.21's source)."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util import tensor_util

    known: set[str] = set()  # only the first value of a tag names its plugin
    with suppress(Exception):
        for count, event in enumerate(EventFileLoader(str(path)).Load()):
            if count >= MOST_POINTS:
                return
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    known.add(value.tag)
                if value.tag in known and value.HasField("tensor"):
                    figure = float(tensor_util.make_ndarray(value.tensor).reshape(-1)[0])
                    yield value.tag, int(event.step), float(event.wall_time), figure


def attempt_at(time: float, attempts: Sequence[RunAttempt]) -> int:
    """The number of the attempt that ran at this time; the first for anything before."""
    begun = [attempt.number for attempt in attempts if attempt.started <= time + 1.0]
    return begun[-1] if begun else 1


# ── utilization of the nodes: by role over time, and by task ───────────────────


BUCKETS = 120
"""Points of one curve."""

SHORT = 180.0
"""Seconds up to which a run's time is counted in seconds."""

SamplesOfTasks = Mapping[Task, Sequence[Sample]]
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
        idle=100.0 * sum(figure <= GPU_RESTS for figure in gpus) / len(gpus) if gpus else None,
    )


def charts_of(samples: SamplesOfTasks, begin: float) -> tuple[Chart, ...]:
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
    name: str, figure: Callable[[Sample], float | None], samples: SamplesOfTasks, begin: float
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
