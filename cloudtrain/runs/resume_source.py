"""Finds the checkpoint that `--resume` names, on record here or in a store."""

from __future__ import annotations

from cloudtrain.artifacts.checkpoints import StoredCheckpoint, step_of, stored_checkpoint, torn_part
from cloudtrain.artifacts.run_index import StoredRuns, clusters_in
from cloudtrain.artifacts.spool import can_spool, counted, ingest_if_free, ingest_or_warn
from cloudtrain.artifacts.spool_archive import pending_spools
from cloudtrain.cluster.session import Handle, artifact_store, recorded_config, store_at
from cloudtrain.core.errors import DataError, UsageError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.protocols import ArtifactStore, Console
from cloudtrain.core.run_record import ResumedFrom, Run
from cloudtrain.core.store_kinds import scheme_of
from cloudtrain.state import Records, known_clusters
from cloudtrain.state.folder import ENDED, RUN_ID

LAST = "last"

NOT_LANDED = (
    "a run lands the folder that its own `train.checkpoints` names, at its end and every "
    "`artifacts.every`"
)


def resume_source(handle: Handle, wanted: str, console: Console) -> ResumedFrom:
    """Find the checkpoint that `--resume` names, before anything is created for the new run.

    `wanted` is a run's id, `last` (this cluster's latest run with a landed checkpoint) or the URI
    of a run or of a cluster's store. The caller holds the cluster's lock. Raises UsageError if
    there is none, StoreError."""
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
        ingest_if_free(records, run, store, console, "train --resume")
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
    is_of_own_kind = own is not None and scheme_of(own) == scheme_of(uri)
    return store_at(uri, config if is_of_own_kind else None)


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
