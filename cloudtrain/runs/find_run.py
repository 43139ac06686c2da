"""Finds a run: on record here, or in its store, where it landed from any machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from cloudtrain.artifacts.run_index import StoredRuns
from cloudtrain.cluster.session import artifact_store, recorded_config, shared_store
from cloudtrain.core.errors import CloudtrainError, UsageError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.core.run_record import Run
from cloudtrain.state import Records, known_clusters


@dataclass(frozen=True, kw_only=True)
class FoundRun:
    """A run, and how to open its store. `records` is None if the run has no record here."""

    run: Run
    store: Callable[[], ArtifactStore]
    records: Records | None


def find_run(
    name: str, run: str | None, *, config: ClusterConfig | None, uri: str | None
) -> FoundRun:
    """The cluster's latest run, or the one with that id.

    The record here counts first, unless it is away, then the store of the config (of a FILE, or of
    the last `up`). `uri` names a store to read instead of both. Raises UsageError, StoreError.
    """
    if uri is not None or name not in known_clusters():
        return in_store(name, run, config, uri)
    records = Records(name)
    if records.is_away() and run not in records.run_ids():
        return in_store(name, run, config, None)
    try:
        return on_record(records, run)
    except UsageError as unknown:
        try:
            return in_store(name, run, config, None)
        except CloudtrainError:
            if config is not None and run is None:
                raise
            raise unknown from None


def on_record(records: Records, run: str | None) -> FoundRun:
    wanted = records.run(run) if run is not None else records.latest_run()
    if wanted is None:
        raise UsageError(f"{records.name} has no runs", hint="`cloudtrain train` starts one")
    return FoundRun(
        run=wanted,
        store=cache(lambda: artifact_store(recorded_config(records), records)),
        records=records,
    )


def in_store(name: str, run: str | None, config: ClusterConfig | None, uri: str | None) -> FoundRun:
    store = shared_store(name, config, uri)
    runs = StoredRuns(store, name)
    found = runs.run(run) if run is not None else runs.latest()
    return FoundRun(run=found.run, store=lambda: store, records=None)
