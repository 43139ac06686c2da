"""Traces of a task that trained: samples of its node (node/sampler.py), and its log."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from cloudtrain.core.dataclass import dataclass

SUFFIX = ".metrics.jsonl"
"""Of a task's samples, beside its log."""

GPU_RESTS = 5.0
"""Percent up to which a GPU counts as resting. `limits.idle` is of a cluster: `runs/idle.py`."""

LATEST_BYTES = 1 << 16
"""Bytes at a file's end with the latest samples: `status --watch` reads them every two seconds."""


@dataclass(frozen=True, kw_only=True)
class GpuSample:
    """One GPU; memory in bytes."""

    utilization: float | None
    """Percent of the last second in which it computed anything; None if the driver does not say."""
    memory_used: int
    memory_total: int


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One sample of a node, of all its tasks. Rates are bytes per second since the one before."""

    time: float
    """Unix time of the node's clock."""
    cpu: float
    """Percent of all cores."""
    memory_used: int
    memory_total: int
    gpus: tuple[GpuSample, ...]
    received: float
    sent: float
    disk_read: float
    disk_written: float


def read_samples(path: Path) -> list[Sample]:
    """All samples of a file, in order; none without a file. Invalid lines are skipped."""
    try:
        return list(samples_in(path.read_bytes()))
    except OSError:
        return []


def latest_samples(path: Path) -> list[Sample]:
    """The samples at the end of a file, in order: of several minutes."""
    data, start = end_of(path, LATEST_BYTES)
    return list(samples_in(data.partition(b"\n")[2] if start else data))


def end_of(path: Path, most: int) -> tuple[bytes, int]:
    """The last bytes of a file, and their offset; nothing of one that cannot be read."""
    try:
        with path.open("rb") as file:
            start = file.seek(max(0, file.seek(0, os.SEEK_END) - most))
            return file.read(most), start
    except OSError:
        return b"", 0


def samples_in(data: bytes) -> Iterator[Sample]:
    for line in data.split(b"\n"):
        sample = parse_sample(line)
        if sample is not None:
            yield sample


def parse_sample(line: bytes) -> Sample | None:
    """None for anything but a sample with possible figures."""
    try:
        facts = json.loads(line)
        sample = Sample(
            time=_figure(facts["time"]),
            cpu=_percent(facts["cpu"]),
            memory_used=_bytes(facts["memory"][0]),
            memory_total=_bytes(facts["memory"][1]),
            gpus=tuple(
                GpuSample(
                    utilization=None if busy == -1 else _percent(busy),
                    memory_used=_bytes(used),
                    memory_total=_bytes(total),
                )
                for busy, used, total in facts["gpus"]
            ),
            received=_figure(facts["network"][0]),
            sent=_figure(facts["network"][1]),
            disk_read=_figure(facts["disk"][0]),
            disk_written=_figure(facts["disk"][1]),
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return sample


def _figure(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1e18:  # not NaN either
        raise ValueError(value)
    return float(value)


def _bytes(value: Any) -> int:
    return int(_figure(value))


def _percent(value: Any) -> float:
    if _figure(value) > 100:
        raise ValueError(value)
    return float(value)


# ── Progress and loss of a training script, as its log shows them; pure ───────────────────────

Unit = Literal["step", "epoch"]

_STEP = re.compile(r"\b(?:global[_ ])?steps?\b\s*[:=#]?\s*(\d+)", re.IGNORECASE)
"""`step 120`, `Step: 120`, `global_step = 120`; not `10 steps`."""
_EPOCH = re.compile(r"\bepoch\b\s*[:=#]?\s*(\d+)", re.IGNORECASE)
"""`Epoch 3/10` of Keras, `epoch: 3` of custom loops."""
_LOSS = re.compile(
    r"(?<![\w])(?:final[_ ]|train[_ ])?loss\b\s*[:=]?\s*(\d+(?:\.\d+)?(?:e[-+]?\d+)?)", re.I
)
"""`loss: 0.1234` of Keras' bar and of most loops; not `val_loss`."""


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One line of a task's log, and when it was seen."""

    task: str
    seen: float
    """Unix time."""
    text: str


def unit_of(lines: Iterable[LogLine]) -> Unit | None:
    """Unit in which the script counts: steps, if its log has any; None if it counts nothing."""
    found: Unit | None = None
    for line in lines:
        if _STEP.search(line.text):
            return "step"
        if _EPOCH.search(line.text):
            found = "epoch"
    return found


def training(lines: Iterable[LogLine], unit: Unit | None) -> list[LogLine]:
    """The lines with a number of this unit; all lines if the script has none."""
    return [line for line in lines if unit is None or counts([line], unit)]


def counts(lines: Iterable[LogLine], unit: Unit) -> list[int]:
    """Every number of a step or an epoch, in the order of the lines."""
    pattern = _STEP if unit == "step" else _EPOCH
    return [int(found[1]) for line in lines if (found := pattern.search(line.text))]


def span_of(lines: Iterable[LogLine], unit: Unit | None) -> tuple[int, int] | None:
    """First and highest number of an undisturbed run; None if it counts nothing, or up to one."""
    numbers = counts(lines, unit) if unit else []
    return (numbers[0], max(numbers)) if numbers and numbers[0] < max(numbers) else None


def has_reached(
    lines: Iterable[LogLine], unit: Unit | None, span: tuple[int, int] | None, share: float
) -> bool:
    """True if a run has come to this share of what the undisturbed run counted."""
    if unit is None or span is None:
        return False
    first, last = span
    return any(number >= first + share * (last - first) for number in counts(lines, unit))


def last_loss(lines: Sequence[LogLine]) -> float | None:
    """The last loss that was printed."""
    for line in reversed(lines):
        found = _LOSS.findall(line.text)
        if found:
            return float(found[-1])
    return None


def repeated_of(attempts: Iterable[list[int]]) -> int:
    """Number of steps or epochs that attempts began again, by the numbers of each."""
    found = reached = 0
    for numbers in attempts:
        if numbers:
            found += max(0, min(reached, max(numbers)) - numbers[0] + 1)
            reached = max(reached, *numbers)
    return found


def repeated(before: Iterable[LogLine], after: Iterable[LogLine], unit: Unit) -> int | None:
    """Steps or epochs begun before a fault and again after it; None without numbers in both."""
    seen, again = counts(before, unit), counts(after, unit)
    return max(0, max(seen) - again[0] + 1) if seen and again else None
