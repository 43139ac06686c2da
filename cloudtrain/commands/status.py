"""`cloudtrain status`: clusters, their nodes as their provider lists them now, and their runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cloudtrain.commands.node_notes import cost_of, overdue
from cloudtrain.errors import (
    CloudtrainError,
    LeftoverError,
    NotAskedError,
    RateError,
    StoreError,
    TransientError,
)
from cloudtrain.run_record import Run
from cloudtrain.spent import CostSoFar
from cloudtrain.state import LockHolder, Records, known_clusters

if TYPE_CHECKING:
    from cloudtrain.commands.run_progress import RunProgress
    from cloudtrain.commands.utilization import Utilization
    from cloudtrain.model import ClusterConfig, Node
    from cloudtrain.runs.idle import IdleState

OVERDUE = LeftoverError.exit_code


@dataclass(frozen=True, kw_only=True)
class ClusterStatus:
    name: str
    provider: str | None
    """From the record; None if that cannot be read."""
    strategy: str | None
    open: bool | None
    """False once `down` has seen that nothing is left; None if unknown: no local record."""
    since: float | None
    """Time of the first event on record, Unix time."""
    holder: LockHolder | None
    """The process that holds the cluster's lock."""
    nodes: tuple[Node, ...] | None
    """As the provider lists them; None if it was not queried or did not answer."""
    runs: tuple[Run, ...]
    """Oldest first."""
    faults: tuple[str, ...]
    """Records that cannot be read."""
    prices: Mapping[str, float | None] = field(default_factory=dict)
    """Node name → $/hour of its actual machine, without disks; None if not known."""
    ceilings: Mapping[str, float | None] = field(default_factory=dict)
    """Node name → upper bound of its $/hour."""
    planned: tuple[str, ...] | None = None
    """Names of the nodes in the recorded config; None if not queried."""
    made: frozenset[str] = frozenset()
    """Names of the nodes that were requested, by the record."""
    error: CloudtrainError | None = None
    """Why the provider did not answer."""
    store: str | None = None
    """Store that the runs were read from, if none is on record here."""
    idle: IdleState | None = None
    """When `limits.idle` takes it down."""
    still_billed: str | None = None
    """Remaining cost of stopped nodes until `down`."""
    progress: RunProgress | None = None
    """Of the active run, if this machine follows its log."""
    utilization: Utilization | None = None
    """Of the active run's nodes, by role, if this machine follows it."""
    deadline: float | None = None
    """When the active run is stopped by `train.deadline`, Unix time."""
    as_of: Mapping[str, float] = field(default_factory=dict)
    """Run id → time its record was stored (Unix), for runs that were active then."""

    def cost(self, now: float) -> CostSoFar | None:
        """$ so far of the nodes that exist; None if these are not known."""
        if self.nodes is None:
            return None
        return cost_of(self.nodes, self.prices, self.ceilings, now)

    @property
    def missing(self) -> tuple[str, ...]:
        """Nodes of the plan that do not exist."""
        if self.nodes is None or self.open is False:
            return ()
        there = {node.name for node in self.nodes}
        return tuple(name for name in self.planned or () if name not in there)

    def exit_code(self, now: float) -> int:
        """Exit code of `status`. Nodes being created or destroyed do not count as missing."""
        if self.error is not None:
            silent = isinstance(self.error, TransientError | RateError)
            return NotAskedError.exit_code if silent else self.error.exit_code
        if overdue(self.nodes or (), now):
            return OVERDUE
        changing = self.holder is not None and self.holder.doing in ("up", "down")
        return 1 if self.missing and not changing else 0

    @property
    def ends(self) -> float | None:
        """Unix time at which the first of its nodes ends by itself."""
        return min((n.expires for n in self.nodes or () if n.expires is not None), default=None)


@dataclass(frozen=True, kw_only=True)
class StatusReport:
    clusters: tuple[ClusterStatus, ...]
    store: str | None = None
    """The store that was searched, if not the local records."""

    def exit_code(self, now: float) -> int:
        return max((cluster.exit_code(now) for cluster in self.clusters), default=0)


def status(
    name: str | None,
    *,
    config: ClusterConfig | None = None,
    store: str | None = None,
    offline: bool,
) -> StatusReport:
    """Status of one cluster, or of all that are known here and not down.

    For a cluster that is not on record here, and with `store` for all that it holds, the runs are
    those that landed. `offline` reads records only and loads as little as possible.
    """
    if store is not None or (config is not None and config.name not in known_clusters()):
        return StatusReport(clusters=landed(name, config, store), store=store)
    names = known_clusters() if name is None else (name,)
    recorded = [on_record(name) for name in names]
    if offline:
        return StatusReport(clusters=tuple(recorded))
    if config is not None and not recorded[0].runs:
        recorded = [with_landed(recorded[0], config)]
    return StatusReport(
        clusters=tuple(
            with_nodes(with_idle_process(one)) if one.open or name is not None else one
            for one in recorded
        )
    )


def landed(
    name: str | None, config: ClusterConfig | None, uri: str | None
) -> tuple[ClusterStatus, ...]:
    """Runs as the store has them, and nodes as the provider lists them if a config names it.
    Raises StoreError.
    """
    from cloudtrain.artifacts.run_index import clusters_in
    from cloudtrain.cloud import facts_of
    from cloudtrain.stores import open_store

    refuse_no_folder(uri)
    if name is None:
        assert uri is not None, "without a name, it is a store's clusters that are meant"
        return tuple(in_store(each, None, uri) for each in clusters_in(open_store(uri)))
    cluster = in_store(name, config, uri)
    if config is None or facts_of(config.provider).on_this_machine:
        return (
            cluster,
        )  # no config to query with, or local nodes, which only their own machine sees
    cluster = with_nodes(cluster, config)
    return (replace(cluster, open=bool(cluster.nodes) if cluster.nodes is not None else None),)


def refuse_no_folder(uri: str | None) -> None:
    """Refuse a `file://` store whose folder does not exist: for a reader it is a wrong name, not
    an empty store.
    """
    if uri is None:
        return
    from cloudtrain.stores import is_on_this_machine
    from cloudtrain.stores.file import FileStore

    if not is_on_this_machine(uri):
        return

    if not FileStore(uri).root.is_dir():
        raise StoreError(
            f"{uri}: no such folder", hint="pass the `artifacts.store` of the config as --store"
        )


def in_store(name: str, config: ClusterConfig | None, uri: str | None) -> ClusterStatus:
    from cloudtrain.artifacts.run_index import StoredRuns
    from cloudtrain.commands.find_run import shared_store

    store = None if lacks_store(config, uri) else shared_store(name, config, uri)
    stored, faults = StoredRuns(store, name).runs_and_faults() if store else ((), ())
    return ClusterStatus(
        name=name,
        provider=config.provider if config else None,
        strategy=config.strategy if config else None,
        open=None,
        since=None,
        holder=None,
        nodes=None,
        runs=tuple(each.run for each in stored),
        faults=faults,
        store=store.uri if store else None,
        as_of={each.run.id: each.as_of for each in stored if each.as_of is not None},
    )


def with_landed(cluster: ClusterStatus, config: ClusterConfig) -> ClusterStatus:
    """Add runs of other machines to a cluster that is on record here without a run."""
    try:
        found = in_store(cluster.name, config, None)
    except CloudtrainError:
        return cluster
    if not found.runs:
        return cluster
    return replace(cluster, runs=found.runs, as_of=found.as_of, store=found.store)


def lacks_store(config: ClusterConfig | None, uri: str | None) -> bool:
    return uri is None and config is not None and config.artifacts.store is None


def on_record(name: str) -> ClusterStatus:
    records = Records(name)
    runs, faults = records.runs_and_faults()
    config: dict[str, Any] = {}
    try:
        config = records.config()
    except CloudtrainError as error:
        faults = (error.message, *faults)
    return ClusterStatus(
        name=name,
        provider=config.get("provider"),
        strategy=config.get("strategy"),
        open=records.is_open(),
        since=records.since(),
        holder=records.holder(),
        nodes=None,
        runs=runs,
        faults=faults,
        idle=_idle(records) if records.idle_process() is not None else None,
        deadline=_deadline(config, runs),
        **_activity(records, runs),
    )


def _deadline(config: Mapping[str, Any], runs: Sequence[Run]) -> float | None:
    train = config.get("train")
    seconds = train.get("deadline") if isinstance(train, dict) else None
    if not isinstance(seconds, int | float) or not runs or runs[-1].ended is not None:
        return None
    return runs[-1].created + seconds


def _activity(records: Records, runs: Sequence[Run]) -> dict[str, Any]:
    """Progress and utilization of the active run, from what has arrived here."""
    if not runs or runs[-1].ended is not None:
        return {}
    from cloudtrain.commands.run_progress import progress_of
    from cloudtrain.commands.utilization import utilization_of

    now = time.time()
    return {
        "progress": progress_of(records, runs[-1], now),
        "utilization": utilization_of(records, runs[-1], now),
    }


def _idle(records: Records) -> IdleState | None:
    from cloudtrain.runs.idle import idle_state

    return idle_state(records)


def with_idle_process(cluster: ClusterStatus) -> ClusterStatus:
    """The same, with a new idle process: the old one may have ended with this
    machine.
    """
    from cloudtrain.runs.background import ensure_idle_process

    records = Records(cluster.name)
    return replace(cluster, idle=_idle(records)) if ensure_idle_process(records) else cluster


def with_nodes(cluster: ClusterStatus, config: ClusterConfig | None = None) -> ClusterStatus:
    """The same with its nodes, or with the reason why they are not known."""
    from cloudtrain.catalog.estimate import prices_of
    from cloudtrain.cluster.plan import make_plan
    from cloudtrain.cluster.session import open_provider, recorded_config
    from cloudtrain.events import nodes_requested

    try:
        config = config or recorded_config(Records(cluster.name))
        nodes = open_provider(config).nodes(cluster.name)
    except CloudtrainError as error:
        return replace(cluster, error=error)
    prices = {node.name: prices_of(config, node) for node in nodes}
    return replace(
        cluster,
        nodes=tuple(sorted(nodes, key=lambda node: node.rank)),
        prices={name: price for name, (price, _) in prices.items()},
        ceilings={name: most for name, (_, most) in prices.items()},
        planned=tuple(node.name for node in make_plan(config).nodes),
        made=frozenset(nodes_requested(Records(cluster.name).events())),
        still_billed=_kept(config, nodes),
    )


def _kept(config: ClusterConfig, nodes: Sequence[Node]) -> str | None:
    """Cost of what stopped nodes leave behind, on a cloud that bills it."""
    from cloudtrain.catalog import billed_after_end
    from cloudtrain.model import NodeGroup

    stopped = [node for node in nodes if node.state == "stopped"]
    left = billed_after_end.left_by(config)
    if left is None or not stopped:
        return None
    disks = [config.nodes.get(node.role, NodeGroup()).disk_gb for node in stopped]
    return billed_after_end.describe(left, disks, address=not config.network.private)
