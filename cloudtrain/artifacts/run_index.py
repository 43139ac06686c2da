"""Run records in a store: writes them, and reads what other machines have written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal

from cloudtrain.artifacts.download import verified
from cloudtrain.artifacts.manifest import read_manifest
from cloudtrain.core.codec import UNIX_TIME, decode
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import CloudtrainError, StoreError, UsageError
from cloudtrain.core.model import Artifact
from cloudtrain.core.paths import shown
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.core.run_record import Run, published, run_to_json
from cloudtrain.core.task_id import CLUSTER_NAME
from cloudtrain.state.folder import RUN_ID

RECORD = "run.json"
FORMAT = 1
LARGEST = 16 << 20
"""Limit of a record in bytes."""

INDEX = ".runs"
"""`.runs/<cluster>/<run>` exists for each run that has a record, so that a cluster's runs are found
without listing all their artifacts. No run has such an id."""

SIDE_BY_SIDE = 8
SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A stored run. `as_of`: Unix time at which the record of an active run was stored."""

    run: Run
    as_of: float | None = None


@dataclass(frozen=True, kw_only=True)
class _RecordHead:
    """Keys that a record has beside the run's own."""

    format: Literal[1]
    as_of: float | None = field(default=None, metadata=UNIX_TIME)


def record_of(run: Run, as_of: float | None = None) -> bytes:
    facts: dict[str, Any] = {"format": FORMAT, **run_to_json(published(run))}
    if as_of is not None:
        facts["as_of"] = as_of
    return json.dumps(facts, indent=1).encode("ascii")


def store_record(run: Run, store: ArtifactStore, now: float) -> None:
    """Store the record of an active run, which no manifest lists: the newest replaces the last."""
    store.upload(f"{run.id}/{RECORD}", [record_of(run, now)])
    index(run, store)


def index(run: Run, store: ArtifactStore) -> None:
    """Write the index after the record, so that every name leads to one."""
    store.upload(f"{INDEX}/{run.cluster}/{run.id}", [run.id.encode("ascii")])


def clusters_in(store: ArtifactStore) -> tuple[str, ...]:
    """Names of the clusters with runs in the store, sorted."""
    paths = (found.path.split("/") for found in store.list(f"{INDEX}/"))
    return tuple(sorted({p[1] for p in paths if len(p) == 3 and CLUSTER_NAME.match(p[1])}))


class StoredRuns:
    """Runs of one cluster, read from its store alone."""

    def __init__(self, store: ArtifactStore, cluster: str) -> None:
        self.store, self.cluster = store, cluster

    def ids(self) -> tuple[str, ...]:
        """Ids from the oldest on."""
        prefix = f"{INDEX}/{self.cluster}/"
        names = (found.path[len(prefix) :] for found in self.store.list(prefix))
        return tuple(sorted(name for name in names if RUN_ID.match(name)))

    def run(self, run: str) -> StoredRun:
        """The run with that id. Raises UsageError without one, StoreError for an invalid record."""
        found = self._read(run) if RUN_ID.match(run) else None
        if found is None or found.run.cluster != self.cluster:
            raise UsageError(
                f"{self.cluster} has no run {run!r} in {self.store.uri}", hint=self._hint()
            )
        return found

    def latest(self) -> StoredRun:
        """The latest run. An unreadable one is an error: no older one is taken for the latest."""
        for run in reversed(self.ids()):
            found = self._read(run)
            if found is not None and found.run.cluster == self.cluster:
                return found
        raise UsageError(f"no run of {self.cluster} in {self.store.uri}", hint=self._hint())

    def runs_and_faults(self) -> tuple[tuple[StoredRun, ...], tuple[str, ...]]:
        """All runs, and what is wrong with unreadable records."""

        def read(run: str) -> StoredRun | CloudtrainError | None:
            try:
                return self._read(run)
            except CloudtrainError as error:
                return error

        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            read_all = tuple(pool.map(read, self.ids()))
        runs = (each for each in read_all if isinstance(each, StoredRun))
        faults = (each.message for each in read_all if isinstance(each, CloudtrainError))
        return tuple(each for each in runs if each.run.cluster == self.cluster), tuple(faults)

    def _read(self, run: str) -> StoredRun | None:
        """The record; None if the run has been deleted."""
        name = f"{run}/{RECORD}"
        sizes = [found.size for found in self.store.list(name) if found.path == name]
        if not sizes:
            return None
        try:
            if sizes[0] > LARGEST:
                raise ValueError(f"it has {sizes[0]} bytes")
            return stored_run(run, b"".join(self.store.download(name)))
        except (ValueError, RecursionError) as error:
            raise StoreError(
                f"{self.store.uri.rstrip('/')}/{name} is not a run record that this version can "
                f"read: {shown(error)}",
                hint="use `--run ID` for another run; `cloudtrain status` lists them",
            ) from error

    def _hint(self) -> str:
        if ids := self.ids():
            return "its latest runs: " + ", ".join(ids[-SHOWN:])
        others = ", ".join(clusters_in(self.store))
        none = "no run has landed there yet: `cloudtrain train` starts one"
        return f"the store has runs of: {others}" if others else none


def stored_run(run: str, text: bytes) -> StoredRun:
    """Parse a record. Raises ValueError with the reason: others may write to a store too."""
    facts = json.loads(text)
    head, found = decode(_RecordHead, facts), decode(Run, facts)
    if found.id != run:
        raise ValueError(f"it is the record of run {found.id!r}")
    own = replace(found, written={})  # a published record has none
    return StoredRun(run=own, as_of=head.as_of)


class LandedLogs:
    """A run's logs in its store, as the manifest lists them; updated during the run."""

    def __init__(self, run: str, store: ArtifactStore) -> None:
        self._run, self._store = run, store
        self._files = self._listed()

    def read(self, name: str) -> bytes:
        """Contents of `chief0.attempt-1.log`, verified; empty if it has not landed."""
        landed = self._files.get(f"logs/{name}")
        if landed is None:
            return b""
        try:
            return self._bytes(landed)
        except StoreError:
            self._files = self._listed()
            newer = self._files.get(landed.path)
            if newer is None or newer == landed:
                raise
            return self._bytes(newer)

    def _bytes(self, landed: Artifact) -> bytes:
        return b"".join(verified(landed, self._run, self._store))

    def _listed(self) -> Mapping[str, Artifact]:
        manifest = read_manifest(self._store, self._run)
        return {} if manifest is None else manifest.files
