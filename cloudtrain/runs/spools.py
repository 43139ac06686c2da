"""Lands what nodes stored unattended, before a command reads or ends a run."""

from __future__ import annotations

from functools import partial

from cloudtrain.artifacts.landing import own_manifests
from cloudtrain.artifacts.spool import can_spool, counted, ingest_spools, pending_spools
from cloudtrain.away.find_away import attended, find_away
from cloudtrain.cluster.session import Handle
from cloudtrain.core import moments
from cloudtrain.core.errors import CloudtrainError, LockedError
from cloudtrain.core.protocols import ArtifactStore, Console
from cloudtrain.core.run_record import Run
from cloudtrain.runs.find_run import FoundRun
from cloudtrain.state import Records


def ingest_before_reading(found: FoundRun, console: Console, doing: str) -> None:
    """Land spools before reading a run that this machine started or sent away; a supervised run
    lands them itself.

    Other machines only read: two that change one manifest would undo each other's work.
    """
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
    """Records of a cluster that was sent away from here, once its desk has ended; None for another.
    Raises StoreError.
    """
    records = Records(run.cluster)
    if not records.is_away() or attended(find_away(run.cluster, None), moments.now()) is not None:
        return None
    return records


def ingest_before_down(handle: Handle, console: Console) -> None:
    """Land spools, for the holder of the lock. Those that cannot be landed stay in the store,
    for `fetch`.
    """
    runs = handle.records.runs()
    for run in [run for run in runs if run.ended is None or run == runs[-1]]:
        try:
            ingest(handle.records, run, handle.store, console)
        except CloudtrainError as error:
            console.warn(f"cannot land what unattended nodes stored: {error}")


def ingest(records: Records, run: Run, store: ArtifactStore, console: Console) -> None:
    log_path, own = partial(records.log_path, run.id), own_manifests(records)
    ingest_spools(run, store, console, log_path=log_path, own=own)
