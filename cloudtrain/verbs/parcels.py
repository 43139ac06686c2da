"""What nodes stored while nobody was there, taken by a command that reads or ends a run."""

from __future__ import annotations

from functools import partial

from cloudtrain.cluster.session import Handle
from cloudtrain.errors import CloudtrainError, LockedError
from cloudtrain.landing.parcels import counted, may_keep, parcels_of, take_parcels
from cloudtrain.model import Run
from cloudtrain.protocols import ArtifactStore, Console
from cloudtrain.records import Records
from cloudtrain.verbs.find_run import Found


def take_before_reading(found: Found, console: Console, doing: str) -> None:
    """Who attends to the run takes them itself. Another machine than the one that started the run
    only reads, as two that change one manifest would undo each other's work."""
    try:
        store = found.store()
        if not may_keep(store):
            return
        if found.records is not None:
            with found.records.lock(doing):
                take(found.records, found.run, store, console)
        elif left := parcels_of(found.run.id, store):
            console.warn(
                f"{counted(len(left))} that nodes stored while nobody was there: not taken yet; "
                f"`cloudtrain fetch {found.run.cluster}` does it where the run was started"
            )
    except LockedError:
        return
    except CloudtrainError as error:
        console.warn(f"what nodes stored while nobody was there is not taken: {error}")


def take_before_down(handle: Handle, console: Console) -> None:
    """For who holds the lock. They stay in the store where they cannot be taken, for `fetch`."""
    runs = handle.records.runs()
    for run in [run for run in runs if run.ended is None or run == runs[-1]]:
        try:
            take(handle.records, run, handle.store, console)
        except CloudtrainError as error:
            console.warn(f"what nodes stored while nobody was there is not taken: {error}")


def take(records: Records, run: Run, store: ArtifactStore, console: Console) -> None:
    take_parcels(run, store, console, log_path=partial(records.log_path, run.id))
