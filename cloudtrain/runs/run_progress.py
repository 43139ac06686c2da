"""Progress of an active run: epoch or step, loss and time left, by the log of its first task."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudtrain.console.lines import clean
from cloudtrain.core.metrics import Line, Unit, counts, last_loss, unit_of
from cloudtrain.core.run_record import Run
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


def progress_in(lines: Sequence[Line], now: float) -> RunProgress | None:
    unit = unit_of(lines)
    if unit is None:
        return None
    counted = [line for line in lines if counts([line], unit)]
    at = counts(counted[-1:], unit)[0]
    totals = _EPOCHS.findall(counted[-1].text) if unit == "epoch" else []
    of = int(totals[0]) if totals else None
    left = None if of is None else seconds_left(counted, at, of, now)
    return RunProgress(
        unit=unit, at=at, of=of, loss=last_loss(lines), rate=last_rate(lines), left=left
    )


def last_rate(lines: Sequence[Line]) -> str | None:
    """The last speed that was printed."""
    for line in reversed(lines):
        found = list(_RATE.finditer(line.text))
        if found:
            number, unit = found[-1]["number"], found[-1]["unit"]
            return f"{number} {unit.lower()}/s"
        step = _STEP_TIME.search(line.text)
        if step is not None and float(step[1]) > 0:
            seconds = float(step[1]) * _SECONDS[step[2]]
            return f"{1 / seconds:.3g} steps/s"
    return None


def seconds_left(counted: Sequence[Line], at: int, of: int, now: float) -> float | None:
    """`counted`: one line for each epoch that began."""
    first = counts(counted[:1], "epoch")[0]
    begun, latest = counted[0].seen, counted[-1].seen
    if at <= first or not begun or latest <= begun:
        return None
    pace = (latest - begun) / (at - first)
    return max(0.0, (of - at + 1) * pace - (now - latest))


def latest_lines(log: Path) -> list[Line]:
    """Whole lines at the end of a log, each with the time at which it began to arrive; 0 if that is
    not known.
    """
    try:
        with log.open("rb") as file:
            start = max(0, file.seek(0, 2) - LATEST_BYTES)
            file.seek(start)
            data = file.read(LATEST_BYTES)
    except OSError:
        return []
    index, found, offset = arrivals(log), [], start
    for piece in data.split(b"\n"):
        text = clean(piece.decode("utf-8", "replace"))
        found.append(Line(task="", seen=time_at(index, offset) or 0.0, text=text))
        offset += len(piece) + 1
    return found[1:] if start else found
