"""`cloudtrain fetch`: a run's artifacts from the store to a folder here, each verified."""

from __future__ import annotations

from pathlib import Path

from cloudtrain.landing.manifest import Manifest
from cloudtrain.landing.retrieve import retrieve
from cloudtrain.model import ClusterConfig
from cloudtrain.protocols import Console
from cloudtrain.verbs.find_run import find_run
from cloudtrain.verbs.parcels import take_before_reading


def fetch(
    name: str,
    destination: Path,
    *,
    config: ClusterConfig | None = None,
    store: str | None = None,
    run: str | None = None,
    console: Console,
) -> Manifest:
    """The latest run's artifacts, or those of `run`, below `destination` as `<task>/<path>`.

    Asks the store alone: also when the nodes are gone, and where the run is not on record.
    Raises StoreError.
    """
    found = find_run(name, run, config=config, uri=store)
    take_before_reading(found, console, "fetch")
    return retrieve(found.run.id, found.store(), destination, console)
