"""`cloudtrain report`: everything that is known of one run, for one page."""

from __future__ import annotations

from dataclasses import replace

from cloudtrain.artifacts.manifest import read_manifest
from cloudtrain.away.find_run import find_run
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.report.build import build
from cloudtrain.report.facts import Report
from cloudtrain.report.landed import landed_report
from cloudtrain.report.sources import in_store, on_record


def report(
    name: str,
    *,
    config: ClusterConfig | None = None,
    store: str | None = None,
    run: str | None = None,
) -> Report:
    """The report of `run`, or of the latest one: from the record here, or as it landed. Changes
    nothing. A store that cannot be read is an error only if it is the only source."""
    found = find_run(name, run, config=config, uri=store)
    if found.records is not None:
        try:
            opened = found.store()
            manifest = read_manifest(opened, found.run.id)
        except CloudtrainError as error:
            why = f"what has landed is not known: {error.message}"
            return build(replace(on_record(found.records, found.run, None, None), notes=(why,)))
        return build(on_record(found.records, found.run, manifest, opened))
    opened, id = found.store(), found.run.id
    landed = None
    if found.run.ended is not None:
        landed = landed_report(id, read_manifest(opened, id), opened)
    return landed or build(in_store(found.run, opened))
