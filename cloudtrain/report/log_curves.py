"""Metric curves, pace and stragglers, as the tasks' own logs show them; pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from cloudtrain.core.metrics import Line, Unit, counts, unit_of
from cloudtrain.core.run_record import Task
from cloudtrain.report.facts import Chart, Pace, Series

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


def charts_in(logs: Sequence[tuple[Task, Sequence[Line]]]) -> tuple[Chart, ...]:
    """One chart for each metric of these logs, with a curve for each of them."""
    unit = unit_of(line for _, lines in logs for line in lines)
    found: dict[str, list[Series]] = {}
    for task, lines in logs:
        for metric, points in _metrics(lines, unit).items():
            found.setdefault(metric, []).append(_series(task, points))
    charts = (
        Chart(metric=metric, unit=unit or "line with a value", series=tuple(series))
        for metric, series in found.items()
    )
    return tuple(charts)[:MOST]


def _metrics(lines: Iterable[Line], unit: Unit | None) -> dict[str, _Points]:
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


def _series(task: Task, points: _Points) -> Series:
    xs = thinned(tuple(points.values))
    return Series(
        name=task.name,
        attempt=task.attempt,
        x=xs,
        y=tuple(points.values[x] for x in xs),
        not_finite=points.not_finite,
    )


def thinned(values: tuple[float, ...], most: int = POINTS) -> tuple[float, ...]:
    """At most so many of them, evenly, with the first and the last."""
    if len(values) <= most:
        return values
    step = (len(values) - 1) / (most - 1)
    return tuple(values[round(number * step)] for number in range(most))


def pace_of(task: Task, lines: Sequence[Line]) -> Pace | None:
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
    """Tasks that took much longer for a step or epoch than the median of their role.

    Where all wait for each other, as in synchronous training, none is slower than the others.
    """
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
