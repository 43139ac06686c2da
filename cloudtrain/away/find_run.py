"""Finds a run: on record here, sent away, or landed in its store."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from cloudtrain.artifacts.run_index import StoredRuns, clusters_in
from cloudtrain.artifacts.spool import can_spool, counted, ingest_if_free
from cloudtrain.artifacts.spool_archive import pending_spools
from cloudtrain.away.find_away import attended, find_away
from cloudtrain.cluster.session import artifact_store, recorded_config, shared_store, store_at
from cloudtrain.core import moments
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CloudtrainError, UsageError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.protocols import ArtifactStore, Console
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
    """The cluster's latest run, or the one with that id. The record here counts first, unless it is
    away, then the store of the config (of a FILE, or of the last `up`). `uri` names a store to read
    instead of both. Raises UsageError, StoreError."""
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


def ingest_before_reading(found: FoundRun, console: Console, doing: str) -> None:
    """Land spools before reading a run that this machine started or sent away; a supervised run
    lands them itself. Other machines only read: two that change one manifest would undo each
    other's work."""
    try:
        store = found.store()
        if not can_spool(store):
            return
        records = found.records or sender_of(found.run)
        if records is not None:
            ingest_if_free(records, found.run, store, console, doing)
        elif left := pending_spools(found.run.id, store):
            console.warn(
                f"{counted(len(left))} stored by unattended nodes not landed yet; run "
                f"`cloudtrain fetch {found.run.cluster}` on the machine that started the run"
            )
    except CloudtrainError as error:
        console.warn(f"cannot land what unattended nodes stored: {error}")


def sender_of(run: Run) -> Records | None:
    """Records of a cluster sent away from here, once its desk has ended. Raises StoreError."""
    records = Records(run.cluster)
    if not records.is_away() or attended(find_away(run.cluster, None), moments.now()) is not None:
        return None
    return records


def only_cluster_in(uri: str) -> str:
    """Name of the one cluster with runs in that store. Raises UsageError, StoreError."""
    names = clusters_in(store_at(uri, None))
    if len(names) != 1:
        raise UsageError(
            f"{uri} has runs of {len(names)} clusters{': ' if names else ''}{', '.join(names)}",
            hint="name one of them" if names else "pass the `artifacts.store` of the run's config",
        )
    return names[0]
