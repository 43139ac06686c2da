"""Finds a run, on record here or in its store, and the checkpoint that `--resume` names."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from cloudtrain.artifacts.checkpoints import StoredCheckpoint, step_of, stored_checkpoint, torn_part
from cloudtrain.artifacts.landing import own_manifests
from cloudtrain.artifacts.run_index import StoredRuns, clusters_in
from cloudtrain.artifacts.spool import can_spool, counted, ingest_spools
from cloudtrain.artifacts.spool_archive import pending_spools
from cloudtrain.away.find_away import attended, find_away
from cloudtrain.cluster.session import (
    Handle,
    artifact_store,
    recorded_config,
    shared_store,
    store_at,
)
from cloudtrain.core import moments
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CloudtrainError, DataError, LockedError, UsageError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.protocols import ArtifactStore, Console
from cloudtrain.core.run_record import ResumedFrom, Run
from cloudtrain.core.store_kinds import scheme_of
from cloudtrain.state import Records, known_clusters
from cloudtrain.state.folder import ENDED, RUN_ID
from cloudtrain.stores import open_store


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
            with records.lock(doing):
                ingest(records, found.run, store, console)
        elif left := pending_spools(found.run.id, store):
            console.warn(
                f"{counted(len(left))} stored by unattended nodes not landed yet; run "
                f"`cloudtrain fetch {found.run.cluster}` on the machine that started the run"
            )
    except LockedError:
        return
    except CloudtrainError as error:
        console.warn(f"cannot land what unattended nodes stored: {error}")


def sender_of(run: Run) -> Records | None:
    """Records of a cluster sent away from here, once its desk has ended. Raises StoreError."""
    records = Records(run.cluster)
    if not records.is_away() or attended(find_away(run.cluster, None), moments.now()) is not None:
        return None
    return records


def ingest_before_down(handle: Handle, console: Console) -> None:
    """Land spools, for the holder of the lock; those that cannot be landed stay, for `fetch`."""
    runs = handle.records.runs()
    for run in [run for run in runs if run.ended is None or run == runs[-1]]:
        ingest_or_warn(handle.records, run, lambda: handle.store, console)


def ingest_or_warn(
    records: Records, run: Run, store: Callable[[], ArtifactStore], console: Console
) -> None:
    try:
        ingest(records, run, store(), console)
    except CloudtrainError as error:
        console.warn(f"cannot land what unattended nodes stored: {error}")


def ingest(records: Records, run: Run, store: ArtifactStore, console: Console) -> None:
    if can_spool(store):
        log_path, own = partial(records.log_path, run.id), own_manifests(records)
        ingest_spools(run, store, console, log_path=log_path, own=own)


LAST = "last"

NOT_LANDED = (
    "a run lands the folder that its own `train.checkpoints` names, at its end and every "
    "`artifacts.every`"
)


def resume_source(handle: Handle, wanted: str, console: Console) -> ResumedFrom:
    """Find the checkpoint that `--resume` names, before anything is created for the new run.

    `wanted` is a run's id, `last` (this cluster's latest run with a landed checkpoint) or the URI
    of a run or of a cluster's store. The caller holds the cluster's lock. Raises UsageError if
    there is none, StoreError.
    """
    if handle.config.train.checkpoints is None:  # nobody knows where the script looks
        raise UsageError(
            "--resume needs train.checkpoints, the folder from which the script resumes",
            hint="add `train: {checkpoints: ckpt}` with the folder that it reads and writes",
        )
    if "://" in wanted:
        landed = at_uri(wanted, handle.config, console)
    elif wanted == LAST:
        landed = _last(handle, console)
    else:
        landed = _by_id(handle, wanted, console)
    torn = torn_part(landed)
    if torn is not None:
        raise UsageError(
            f"the checkpoint of run {landed.run} is not complete: the store lacks files of {torn}",
            hint="parts of it were on the disk of a ps that is gone: resume an earlier run",
        )
    found = ResumedFrom(run=landed.run, store=landed.store.uri.rstrip("/"), step=step_of(landed))
    console.say(f"the run begins with {found.step} of run {found.run}")
    return found


def _last(handle: Handle, console: Console) -> StoredCheckpoint:
    """Checkpoint of the latest run that has one, on record here or landed by another machine."""
    name, records = handle.config.name, handle.records
    known = {run.id: run for run in records.runs()}
    shared = StoredRuns(handle.store, name)
    for run_id in sorted({*known, *shared.ids()}, reverse=True):
        if run_id in known:
            landed = _on_record(records, known[run_id], console, held=True)
        else:
            landed = _stored(run_id, handle.store, console)
        if landed is not None:
            return landed
    if not known:
        raise UsageError(f"{name} has no runs", hint="pass a run's id, or the URI of its store")
    raise UsageError(f"no run of {name} has landed a checkpoint", hint=NOT_LANDED)


# ── an id ────────────────────────────────────────────────────────────────────


def _by_id(handle: Handle, wanted: str, console: Console) -> StoredCheckpoint:
    """A run's checkpoint: of this cluster, of another one that is known here, or in the store."""
    if not RUN_ID.match(wanted):
        raise UsageError(
            f"--resume {wanted}: no run has such an id",
            hint="use a run's id, `last`, or the URI of its store",
        )
    own = handle.config.name
    for name in (own, *(each for each in known_clusters() if each != own)):
        run = _recorded(Records(name), wanted)
        if run is not None:
            landed = _on_record(Records(name), run, console, held=name == own)
            if landed is None:
                raise UsageError(f"run {wanted} has landed no checkpoint", hint=NOT_LANDED)
            return landed
    landed = _stored(wanted, handle.store, console)
    if landed is None:
        runs = [run.id for run in handle.records.runs()]
        listed = f"runs of {own}: {', '.join(runs[-5:])}; " if runs else ""
        raise UsageError(
            f"no run {wanted} with a checkpoint on record here or in {handle.store.uri}",
            hint=f"{listed}for a run of another store, pass `--resume URI/{wanted}`",
        )
    return landed


def _recorded(records: Records, wanted: str) -> Run | None:
    try:
        return records.run(wanted)
    except UsageError:
        return None


def _on_record(
    records: Records, run: Run, console: Console, *, held: bool
) -> StoredCheckpoint | None:
    """The checkpoint of a run that is on record here, once its spools are ingested; `held`: the
    caller holds its cluster's lock."""
    if run.state not in ENDED:
        console.warn(
            f"run {run.id} of {run.cluster} has not ended: using the last checkpoint that landed"
        )
    config = recorded_config(records)
    uri = (run.store or "").removesuffix(f"/{run.id}")  # `artifacts.store` may have changed since
    store = source_store(uri, config) if uri else artifact_store(config, records)
    if held:
        ingest_or_warn(records, run, lambda: store, console)
    else:
        found = FoundRun(run=run, store=lambda: store, records=records)
        ingest_before_reading(found, console, "train --resume")
    return stored_checkpoint(run.id, store)


def at_uri(uri: str, config: ClusterConfig, console: Console) -> StoredCheckpoint:
    """The checkpoint below `<store>/<run>`, or of the latest run of the one cluster in a store."""
    whole = uri.rstrip("/")
    parent, _, last = whole.rpartition("/")
    if RUN_ID.match(last) and not parent.endswith((":", "/")):
        landed = _stored(last, source_store(parent, config), console)
        if landed is not None:
            return landed
    store = source_store(whole, config)
    names = clusters_in(store)
    if len(names) > 1:
        raise UsageError(
            f"{whole} has runs of {len(names)} clusters: {', '.join(names)}",
            hint=f"name the run: `--resume {whole}/RUN`",
        )
    for run_id in reversed(StoredRuns(store, names[0]).ids() if names else ()):
        landed = _stored(run_id, store, console)
        if landed is not None:
            return landed
    raise UsageError(f"no landed checkpoint of a run in {whole}", hint=NOT_LANDED)


def _stored(run: str, store: ArtifactStore, console: Console) -> StoredCheckpoint | None:
    """The checkpoint of a run without a record here: its spools are not ingested from here."""
    landed = stored_checkpoint(run, store)
    if can_spool(store) and (left := pending_spools(run, store)):
        console.warn(
            f"run {run}: {counted(len(left))} stored by unattended nodes not landed yet, which may "
            "have a newer checkpoint; run `cloudtrain fetch` on the machine that started it"
        )
    return landed


def source_store(uri: str, config: ClusterConfig) -> ArtifactStore:
    """The store of another run; `endpoints.storage` counts if it is of the config's own kind."""
    own = config.artifacts.store
    if own is not None and scheme_of(own) == scheme_of(uri):
        return store_at(uri, config)
    return open_store(uri)


def source_of(run: Run, config: ClusterConfig) -> StoredCheckpoint | None:
    """The checkpoint that the run resumes from; None if it begins by itself. Raises DataError if it
    no longer exists: training from the beginning instead would waste what the nodes cost."""
    if run.resumed_from is None:
        return None
    source = run.resumed_from
    landed = stored_checkpoint(source.run, source_store(source.store, config))
    if landed is None:
        raise DataError(
            f"{source.store}/{source.run}: the checkpoint from which run {run.id} resumes is gone",
            hint="pass the URI of a copy to `cloudtrain train --resume`, or train without it",
        )
    return landed
