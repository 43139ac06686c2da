"""Finds a cluster that is away: by its record here, or by what its desk reports to the store."""

from __future__ import annotations

import time
from dataclasses import dataclass

from cloudtrain.artifacts.run_index import StoredRuns
from cloudtrain.away.published import AwayState, Published
from cloudtrain.away.record import AwayRecord, away_record
from cloudtrain.cluster.session import store_at
from cloudtrain.commands.find_run import config_on_record, shared_store
from cloudtrain.errors import NoBucketError, UsageError
from cloudtrain.model import ClusterConfig
from cloudtrain.protocols import ArtifactStore
from cloudtrain.state import Records, known_clusters
from cloudtrain.stores import open_store


@dataclass(frozen=True, kw_only=True)
class FoundAway:
    """A cluster with a desk. `record` is None if it was sent away from another machine."""

    name: str
    store: ArtifactStore
    published: Published
    record: AwayRecord | None

    def state(self) -> AwayState | None:
        """The desk's last report. Raises StoreError."""
        return self.published.state()


def find_away(name: str, config: ClusterConfig | None, uri: str | None = None) -> FoundAway | None:
    """The cluster's latest desk; None if it has none.

    A record here counts first: a cluster that is up from here is not away. Raises StoreError.
    """
    records = Records(name) if name in known_clusters() else None
    record = away_record(records) if records is not None and uri is None else None
    if record is not None:
        config = config or config_on_record(name)
        store = store_at(record.store, config) if config else open_store(record.store)
        published = Published(store, name, record.desk)
        return FoundAway(name=name, store=store, published=published, record=record)
    if uri is None and (config is None or (records is not None and records.is_open())):
        return None
    try:
        there = shared_store(name, config, uri)
        published = Published(there, name)
        if published.desk is None:
            return None
    except (UsageError, NoBucketError):
        return None  # the config names no store, or one that is to be created
    return FoundAway(name=name, store=there, published=published, record=None)


def attended(found: FoundAway | None, now: float) -> AwayState | None:
    """What the desk reports if it is still at work; None if it has ended.

    A desk that has not reported for long counts as ended once the cluster has a later run.
    """
    state = found.state() if found is not None else None
    if found is None or state is None or state.phase == "ended":
        return None
    if not state.is_silent(now):
        return state
    last = time.strftime("%Y%m%d-%H%M%S", time.gmtime(state.as_of))
    later = any(run > last for run in StoredRuns(found.store, found.name).ids())
    return None if later else state
