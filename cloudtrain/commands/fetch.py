"""`cloudtrain fetch`: downloads a run's artifacts from the store, or from the nodes, verified."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from cloudtrain.artifacts.download import download_run
from cloudtrain.artifacts.land import by_folder, land_so_far
from cloudtrain.artifacts.manifest import Manifest
from cloudtrain.away.find_run import find_run, ingest_before_reading
from cloudtrain.cluster.session import Handle, open_session, recorded_config, store_at
from cloudtrain.core.model import AUTO, ArtifactRules, ClusterConfig
from cloudtrain.core.protocols import Console
from cloudtrain.runs.idle import starting_idle_process
from cloudtrain.runs.tasks import ask_unlanded, landing_of, run_known, runs_of
from cloudtrain.state import Records


def fetch(
    name: str,
    destination: Path,
    *,
    config: ClusterConfig | None = None,
    store: str | None = None,
    run: str | None = None,
    overwrite: bool = False,
    console: Console,
) -> Manifest:
    """Download the artifacts of `run`, or of the latest one, to `destination` as `<task>/<path>`. A
    file that no earlier fetch wrote is replaced with `overwrite` alone. Reads the store alone, so
    it works when the nodes are gone and if the run is not on record. Raises StoreError."""
    found = find_run(name, run, config=config, uri=store)
    ingest_before_reading(found, console, "fetch")
    tasks = [task.name for task in found.run.tasks]
    return download_run(
        found.run.id, found.store(), destination, console, tasks=tasks, overwrite=overwrite
    )


def fetch_from_nodes(name: str, destination: Path, *, console: Console) -> tuple[str, ...]:
    """Copy everything of the runs that have not landed completely from the nodes to `destination`,
    as `<run>/<task>/<path>`, whatever `artifacts.limit` is; returns the runs. Changes nothing else:
    for `down`, the files have not landed. Raises NotLanded, StoreError."""
    records = Records(name)
    with (
        starting_idle_process(records),
        records.in_use("fetch"),
        open_session(Handle(recorded_config(records)), console) as session,
    ):
        left = ask_unlanded(session)
        landing = replace(
            landing_of(session),
            store=store_at(destination.absolute().as_uri(), None),
            rules=ArtifactRules(paths=(AUTO, *session.config.artifacts.paths), limit=sys.maxsize),
        )
        nodes = {node.task: node for node in session.nodes}
        if left:
            console.say(f"only on the nodes: {by_folder(left)}")
        for run_id in runs_of(left):
            land_so_far(landing, run_known(session, run_id, left), nodes)
    return tuple(runs_of(left))
