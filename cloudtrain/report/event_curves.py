"""Metric curves of the TensorBoard event files that a run has landed, by TensorBoard's own reader
(the extra `report`).
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cloudtrain.core.model import Artifact
from cloudtrain.core.run_record import RunAttempt
from cloudtrain.report.facts import Chart, Series
from cloudtrain.report.log_curves import MOST, thinned

LARGEST = 32 << 20
"""Bytes of all event files that are read; files with images or profiles are larger."""

MOST_POINTS = 200_000

Points = dict[tuple[str, str, int], dict[int, float]]
"""By tag, folder and attempt: step → value."""


def charts_of_events(
    files: Sequence[Artifact],
    read: Callable[[Artifact], Iterable[bytes]],
    attempts: Sequence[RunAttempt],
) -> tuple[tuple[Chart, ...], tuple[str, ...]]:
    """Charts of these files' scalars, and what was left out. Raises ImportError without
    TensorBoard, StoreError if a file cannot be read.
    """
    from tensorboard.backend.event_processing import event_file_loader  # noqa: F401  # before any I/O

    points: Points = {}
    not_finite: dict[tuple[str, str, int], int] = {}
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
                if not math.isfinite(value):
                    not_finite[key] = not_finite.get(key, 0) + 1
                else:
                    points.setdefault(key, {})[step] = value
    return tuple(_charts(points, not_finite))[:MOST], tuple(notes)


def _scalars(path: Path) -> Iterator[tuple[str, int, float, float]]:
    """Tag, step, Unix time and value of each scalar. A file that is torn ends where it is torn.

    The loader turns TensorFlow 1's scalars into tensors, as TensorFlow 2 writes them
    (tensorboard/data_compat.py, read in 2.21's source).
    """
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util import tensor_util

    known: set[str] = set()  # only the first value of a tag names its plugin
    with suppress(Exception):
        for count, event in enumerate(EventFileLoader(str(path)).Load()):
            if count >= MOST_POINTS:
                return
            for value in event.summary.value:
                if _is_scalar(value):
                    known.add(value.tag)
                if value.tag in known and value.HasField("tensor"):
                    figure = float(tensor_util.make_ndarray(value.tensor).reshape(-1)[0])
                    yield value.tag, int(event.step), float(event.wall_time), figure


def _is_scalar(value: Any) -> bool:
    return bool(value.metadata.plugin_data.plugin_name == "scalars")


def attempt_at(time: float, attempts: Sequence[RunAttempt]) -> int:
    """The number of the attempt that ran at this time; the first for anything before."""
    begun = [attempt.number for attempt in attempts if attempt.started <= time + 1.0]
    return begun[-1] if begun else 1


def _charts(points: Points, not_finite: dict[tuple[str, str, int], int]) -> Iterator[Chart]:
    keys = sorted(points.keys() | not_finite.keys())
    for tag in dict.fromkeys(tag for tag, _, _ in keys):
        series = []
        for key in keys:
            if key[0] != tag:
                continue
            values = points.get(key, {})
            xs = thinned(tuple(float(step) for step in sorted(values)))
            series.append(
                Series(
                    name=key[1],
                    attempt=key[2],
                    x=xs,
                    y=tuple(values[int(x)] for x in xs),
                    not_finite=not_finite.get(key, 0),
                )
            )
        yield Chart(metric=tag, unit="step", series=tuple(series))
