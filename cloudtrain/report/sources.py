"""Sources of a report's facts: this machine's record of a cluster, or a run's store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cloudtrain.artifacts.download import verified
from cloudtrain.artifacts.manifest import Manifest, read_manifest
from cloudtrain.artifacts.run_index import LandedLogs
from cloudtrain.console.lines import clean
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import ConfigError, StoreError
from cloudtrain.core.events import Line as JournalLine
from cloudtrain.core.metrics import SUFFIX, LogLine, Sample, end_of, read_samples, samples_in
from cloudtrain.core.model import Artifact
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.core.run_record import Run, Task
from cloudtrain.state import Records
from cloudtrain.state.line_times import Arrival, arrivals, time_at

WHOLE = 16 << 20
"""Bytes at the end of the log from which curves are read."""

TAIL = 256 << 10
"""Bytes at the end of every other log."""

LONGEST = 300
"""Characters of a line."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Known facts of a run, and the means to read the rest."""

    run: Run
    log: Callable[[Task, int], list[LogLine]]
    """The end of a log: of an attempt of a task, at most so many bytes."""
    samples: Callable[[Task], list[Sample]]
    manifest: Manifest | None
    read: Callable[[Artifact], Iterator[bytes]]
    """Bytes of a landed file, verified. Raises StoreError."""
    journal: Sequence[JournalLine] = ()
    is_up: bool = False
    config: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()


def on_record(
    records: Records, run: Run, manifest: Manifest | None, store: ArtifactStore | None
) -> Sources:
    """A run of a cluster that has its record here, and what has landed of it; no `store` if it
    cannot be read."""

    def log(task: Task, most: int) -> list[LogLine]:
        return log_lines(records.log_path(run.id, task.name, task.attempt), task, most)

    def read(file: Artifact) -> Iterator[bytes]:
        if store is None:
            raise StoreError(f"{file.path}: its store cannot be read")
        return verified(file, run.id, store)

    try:
        config = records.config()
    except ConfigError:
        config = None
    return Sources(
        run=run,
        log=log,
        samples=lambda task: read_samples(records.metrics_path(run.id, task.name, task.attempt)),
        manifest=manifest,
        read=read,
        journal=records.events(),
        is_up=records.is_open(),
        config=config,
    )


def in_store(run: Run, store: ArtifactStore) -> Sources:
    """A run without a record here."""
    landed = LandedLogs(run.id, store)

    def name(task: Task) -> str:
        return f"{task.name}.attempt-{task.attempt}"

    return Sources(
        run=run,
        log=lambda task, most: lines_of(landed.read(f"{name(task)}.log"), task, most, ()),
        samples=lambda task: list(samples_in(landed.read(f"{name(task)}{SUFFIX}"))),
        manifest=read_manifest(store, run.id),
        read=lambda file: verified(file, run.id, store),
        notes=(
            "times, nodes, cost and config are only on the machine that created the cluster: the "
            "run has landed without its report",
        ),
    )


def log_lines(path: Path, task: Task, most: int) -> list[LogLine]:
    """Whole lines at the end of a log that is here, each with the time at which it arrived."""
    data, start = end_of(path, most)
    return lines_of(data, task, most, arrivals(path), start)


def lines_of(
    data: bytes, task: Task, most: int, index: Sequence[Arrival], start: int = 0
) -> list[LogLine]:
    if len(data) > most:
        start += len(data) - most
        data = data[-most:]
    found, offset = [], start
    for piece in data.split(b"\n"):
        text = clean(piece.replace(b"\0", b"").decode("utf-8", "replace"))
        seen = time_at(index, offset) if index else None
        found.append(LogLine(task=task.name, seen=seen or 0.0, text=text))
        offset += len(piece) + 1
    if found and not found[-1].text:
        found.pop()
    return found[1:] if start else found
