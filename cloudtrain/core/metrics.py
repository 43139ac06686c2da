"""Samples of what a task's node did while it trained, as node/sampler.py writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUFFIX = ".metrics.jsonl"
"""Of a task's samples, beside its log."""

IDLE = 5.0
"""Percent up to which a GPU counts as idle."""

LATEST_BYTES = 1 << 16
"""Bytes at the end of a file that hold the latest samples: `status --watch` reads them every two
seconds."""


@dataclass(frozen=True, kw_only=True)
class GpuSample:
    """One GPU; memory in bytes."""

    utilization: float | None
    """Percent of the last second in which it computed anything; None if the driver does not say."""
    memory_used: int
    memory_total: int


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One sample of a whole node: tasks that share it have the same. Rates are bytes per second
    since the sample before.
    """

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
    """All samples of a file, in order; none if there is no file. Invalid lines are skipped: a node
    may be compromised.
    """
    try:
        return list(samples_in(path.read_bytes()))
    except OSError:
        return []


def latest_samples(path: Path) -> list[Sample]:
    """The samples at the end of a file, in order: of several minutes."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, 2) - LATEST_BYTES)
            file.seek(start)
            data = file.read(LATEST_BYTES)
    except OSError:
        return []
    return list(samples_in(data.partition(b"\n")[2] if start else data))


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
            gpus=tuple(_gpu(*each) for each in facts["gpus"]),
            received=_figure(facts["network"][0]),
            sent=_figure(facts["network"][1]),
            disk_read=_figure(facts["disk"][0]),
            disk_written=_figure(facts["disk"][1]),
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return sample


def _gpu(utilization: Any, used: Any, total: Any) -> GpuSample:
    return GpuSample(
        utilization=None if utilization == -1 else _percent(utilization),
        memory_used=_bytes(used),
        memory_total=_bytes(total),
    )


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
