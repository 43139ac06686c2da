"""How far an active run is: epoch or step, loss and time left, by the log of its first task."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudtrain.console.lines import clean
from cloudtrain.rehearsal.progress import Line, Unit, counts, last_loss, unit_of
from cloudtrain.run_record import Run
from cloudtrain.runs.line_times import arrivals, time_at
from cloudtrain.state import Records

LATEST_BYTES = 1 << 18
"""Bytes at the end of a log that are read: `status --watch` does so every two seconds."""

_EPOCHS = re.compile(r"\bepoch\b\s*[:=#]?\s*\d+\s*(?:/|of)\s*(\d+)", re.IGNORECASE)
"""`Epoch 3/10` of Keras: the number of all epochs."""


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """By the task's own words; a script may count in any way."""

    unit: Unit
    at: int
    of: int | None = None
    """Number of all epochs, if the log names it."""
    loss: float | None = None
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
    return RunProgress(unit=unit, at=at, of=of, loss=last_loss(lines), left=left)


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
