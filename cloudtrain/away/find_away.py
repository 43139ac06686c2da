"""Finds a cluster that is away: by its record here, or by what its desk reports to the store."""

from __future__ import annotations

from dataclasses import dataclass

from cloudtrain.away.desk_keys import DeskKeys
from cloudtrain.away.own_desk import desk_marks, desk_nodes
from cloudtrain.away.published import AwayState, Published
from cloudtrain.cluster.session import config_on_record, shared_store, store_at
from cloudtrain.core.errors import CloudtrainError, NoBucketError, UsageError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.state import Records, known_clusters
from cloudtrain.state.away_record import AwayRecord, away_record
from cloudtrain.state.folder import AWAY_SEEN
from cloudtrain.stores import open_store


@dataclass(frozen=True, kw_only=True)
class FoundAway:
    """A cluster with a desk. `record` is None if it was sent away from another machine."""

    name: str
    store: ArtifactStore
    published: Published
    record: AwayRecord | None
    config: ClusterConfig | None
    """None if only its name is known: then nothing is done on its account."""

    def state(self) -> AwayState | None:
        """The desk's last report. Raises StoreError."""
        return self.published.state()

    def is_gone(self) -> bool:
        """True if no place of the account lists the desk at work, and all answered."""
        if self.config is None:
            return True
        try:
            listed = desk_nodes(self.config)
        except CloudtrainError:
            return False
        return not listed.not_asked and all(node.state == "stopped" for node in listed)


def find_away(name: str, config: ClusterConfig | None, uri: str | None = None) -> FoundAway | None:
    """The cluster's latest desk; None if it has none.

    A record here counts first: a cluster that is up from here is not away. Raises StoreError.
    """
    records = Records(name) if name in known_clusters() else None
    record = away_record(records) if records is not None and uri is None else None
    if record is not None:
        config = config or config_on_record(name)
        store = store_at(record.store, config) if config else open_store(record.store)
        published = Published(
            store,
            name,
            record.desk,
            keys=DeskKeys(record),
            seen_file=Records(name).folder / AWAY_SEEN,
        )
        return FoundAway(name=name, store=store, published=published, record=record, config=config)
    if uri is None and (config is None or (records is not None and records.is_open())):
        return None
    try:
        there = shared_store(name, config, uri)
        keys = DeskKeys(None, lambda: desk_marks(config) if config is not None else ())
        published = Published(there, name, keys=keys)
        if published.desk is None:
            return None
    except (UsageError, NoBucketError):
        return None  # the config names no store, or one that is to be created
    return FoundAway(name=name, store=there, published=published, record=None, config=config)


def attended(found: FoundAway | None, now: float) -> AwayState | None:
    """Last report of the desk if it is still at work; None if it has ended.

    The account has the last word on a desk that has not reported for long, and on an end that the
    run's desk has not signed.
    """
    state = found.state() if found is not None else None
    if found is None or state is None or (state.phase == "ended" and not state.unsigned):
        return None
    in_doubt = state.phase == "ended" or state.is_silent(now)
    return None if in_doubt and found.is_gone() else state
