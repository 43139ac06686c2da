"""`cloudtrain fetch`: a run's artifacts from the store to a folder here, each verified."""

from __future__ import annotations

from pathlib import Path

from cloudtrain.errors import UsageError
from cloudtrain.landing.manifest import Manifest
from cloudtrain.landing.retrieve import retrieve
from cloudtrain.protocols import Console
from cloudtrain.records import Records
from cloudtrain.session import artifact_store, recorded_config


def fetch(name: str, destination: Path, *, run: str | None = None, console: Console) -> Manifest:
    """The latest run's artifacts, or those of `run`, below `destination` as `<task>/<path>`.

    Asks the store alone: also when the nodes are gone. Raises StoreError.
    """
    records = Records(name)
    wanted = records.run(run) if run is not None else records.latest_run()
    if wanted is None:
        raise UsageError(f"{name} has had no run", hint="`cloudtrain train` starts one")
    store = artifact_store(recorded_config(records), records)
    return retrieve(wanted.id, store, destination, console)
