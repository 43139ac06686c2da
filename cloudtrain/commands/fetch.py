"""`cloudtrain fetch`: downloads a run's artifacts from the store, each verified."""

from __future__ import annotations

from pathlib import Path

from cloudtrain.artifacts.download import download_run
from cloudtrain.artifacts.manifest import Manifest
from cloudtrain.commands.find_run import find_run
from cloudtrain.commands.spools import ingest_before_reading
from cloudtrain.model import ClusterConfig
from cloudtrain.protocols import Console


def fetch(
    name: str,
    destination: Path,
    *,
    config: ClusterConfig | None = None,
    store: str | None = None,
    run: str | None = None,
    console: Console,
) -> Manifest:
    """Download the artifacts of `run`, or of the latest one, to `destination` as `<task>/<path>`.

    Reads the store alone, so it works when the nodes are gone and if the run is not on record.
    Raises StoreError.
    """
    found = find_run(name, run, config=config, uri=store)
    ingest_before_reading(found, console, "fetch")
    return download_run(found.run.id, found.store(), destination, console)
