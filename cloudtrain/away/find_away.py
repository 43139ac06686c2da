"""Finds a cluster that is away, by its record here or its desk's reports, and its own desk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cloudtrain.away.desk_cluster import ROLE
from cloudtrain.away.published import AwayState, Published
from cloudtrain.away.signatures import DeskKeys
from cloudtrain.cluster import session
from cloudtrain.cluster.lease import is_recorded_desk
from cloudtrain.cluster.ownership import is_recorded
from cloudtrain.core.cloud import facts_of
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CloudtrainError, NoBucketError, UsageError
from cloudtrain.core.model import Away, ClusterConfig, Node
from cloudtrain.core.partial_list import PartialList
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.core.task_id import CLUSTER_NAME
from cloudtrain.state import Records, known_clusters
from cloudtrain.state.away_record import AwayRecord, away_record
from cloudtrain.state.folder import AWAY_SEEN


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
    """The cluster's latest desk; None if it has none. A record here counts first: a cluster that is
    up from here is not away. Raises StoreError."""
    records = Records(name) if name in known_clusters() else None
    record = away_record(records) if records is not None and uri is None else None
    if record is not None:
        config = config or session.config_on_record(name)
        store = session.store_at(record.store, config)
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

    def marks() -> tuple[str, ...]:
        """Labels of the cluster's desks; none if the account does not answer."""
        try:
            nodes = desk_nodes(config) if config is not None else ()
            return tuple(node.desk for node in nodes if node.desk)
        except CloudtrainError:
            return ()

    try:
        there = session.shared_store(name, config, uri)
        published = Published(there, name, keys=DeskKeys(None, marks))
        if published.desk is None:
            return None
    except (UsageError, NoBucketError):
        return None  # the config names no store, or one that is to be created
    return FoundAway(name=name, store=there, published=published, record=None, config=config)


def attended(found: FoundAway | None, now: float) -> AwayState | None:
    """Last report of the desk if it is still at work; None if it has ended. The account has the
    last word on a desk that has not reported for long, and on an end that the run's desk has not
    signed."""
    state = found.state() if found is not None else None
    if found is None or state is None or (state.phase == "ended" and not state.unsigned):
        return None
    in_doubt = state.phase == "ended" or state.is_silent(now)
    return None if in_doubt and found.is_gone() else state


# ── own desks ──────────────────────────────────────────────────────────────────
# A name proves nothing: `mnist-desk` may be a cluster of the user's own. A desk has the role `desk`
# and the label that `run --away` gives it, or is on record here as the desk of that cluster.


def own_desk(config: ClusterConfig) -> session.Handle | None:
    """The desk's own cluster: what the account has of it, or a record here says was created for it.
    None if there is neither. Raises CloudError."""
    if not may_have_desk(config):
        return None
    desk, name = desk_handle(config), f"{config.name}-{ROLE}"
    there = [node for node in desk.provider.find(name) if node.state != "gone"]
    if there:
        return desk if are_desk(config.name, there) else None
    if is_recorded_desk(config.name):
        return desk if desk.records.is_open() else None
    held = (each for each in desk.provider.sweep() if each.cluster == name)
    return desk if any(each.desks for each in held) else None


def desk_nodes(config: ClusterConfig) -> PartialList[Node]:
    """The desk's nodes as the account lists them, and silent places. Raises CloudError."""
    if not may_have_desk(config):
        return PartialList(())
    found = desk_handle(config).provider.find(f"{config.name}-{ROLE}")
    there = [node for node in found if node.state != "gone"]
    mine = there if are_desk(config.name, there) else []
    return PartialList(mine, found.not_asked)


def may_have_desk(config: ClusterConfig) -> bool:
    """False where no machine is rented, and for a name that is too long for one."""
    fits = CLUSTER_NAME.match(f"{config.name}-{ROLE}") is not None
    return fits and not facts_of(config.provider).takes_hosts


def desk_handle(config: ClusterConfig) -> session.Handle:
    """The cluster of a desk's name, by its record here or by the config of the run's cluster."""
    name = f"{config.name}-{ROLE}"
    if is_recorded_desk(config.name):
        return session.Handle(session.recorded_config(Records(name)))
    return session.Handle(replace(config, name=name, away=Away(), candidates=()))


def are_desk(cluster: str, nodes: Sequence[Node]) -> bool:
    """True if these are the cluster's desk and nothing else. Earlier versions gave it no label: it
    then has to be on record here, and its keys with it."""
    own = Records(f"{cluster}-{ROLE}")
    if any(node.role != ROLE for node in nodes):
        return False
    if all(node.desk for node in nodes):
        return True
    return is_recorded_desk(cluster) and own.has_keys() and is_recorded(own, nodes)
