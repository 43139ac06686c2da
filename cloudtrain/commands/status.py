"""`cloudtrain status`: clusters, their nodes as their provider lists them now, and their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cloudtrain.checks.node_notes import cost_of, overdue, without_end
from cloudtrain.core import errors, moments
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.run_record import Run
from cloudtrain.money.node_hours import CostSoFar
from cloudtrain.state import LockHolder, Records, known_clusters
from cloudtrain.state.folder import without_desks

if TYPE_CHECKING:
    from cloudtrain.away.published import AwayState
    from cloudtrain.core.events import NothingMoves
    from cloudtrain.core.model import ClusterConfig, Node
    from cloudtrain.core.partial_list import NotAsked
    from cloudtrain.money.budget import BudgetState
    from cloudtrain.runs.idle import IdleState
    from cloudtrain.runs.run_progress import RunProgress, Utilization

OVERDUE = errors.LeftoverError.exit_code


@dataclass(frozen=True, kw_only=True)
class ClusterStatus:
    """All that is known of one cluster; each field has a row in `cli/status_rows.ROWS`."""

    name: str
    provider: str | None = None
    """From the record; None if that cannot be read."""
    strategy: str | None = None
    open: bool | None = None
    """False once `down` has seen that nothing is left; None if unknown: no local record."""
    since: float | None = None
    """Time of the first event on record, Unix time."""
    holder: LockHolder | None = None
    """The process that holds the cluster's lock."""
    nodes: tuple[Node, ...] | None = None
    """As the provider lists them; None if it was not queried or did not answer."""
    runs: tuple[Run, ...] = ()
    """Oldest first."""
    earlier: int = 0
    """Runs before them that were not read."""
    faults: tuple[str, ...] = ()
    """Records that cannot be read."""
    prices: Mapping[str, float | None] = field(default_factory=dict)
    """Node name → $/hour of its actual machine, its disk and its address; None if not known."""
    ceilings: Mapping[str, float | None] = field(default_factory=dict)
    """Node name → upper bound of its $/hour."""
    planned: tuple[str, ...] | None = None
    """Names of the nodes in the recorded config; None if not queried."""
    made: frozenset[str] = frozenset()
    """Names of the nodes that were requested, by the record."""
    ended: Mapping[str, str] = field(default_factory=dict)
    """Names of the nodes that ended themselves → why, and when."""
    foreign: tuple[NotAsked, ...] = ()
    """Resources with its label and others that cannot be ours."""
    lease: str = ""
    """A line on a lease that another machine holds for over a day."""
    error: CloudtrainError | None = None
    """Why the provider did not answer."""
    store: str | None = None
    """Store that the runs were read from, if none is on record here."""
    idle: IdleState | None = None
    """When `limits.idle` takes it down."""
    budget: BudgetState | None = None
    """State of `limits.budget`."""
    shared: str | None = None
    """Shared folder that the first planned node serves from its disk."""
    still_billed: str | None = None
    """Remaining cost of stopped nodes until `down`."""
    progress: RunProgress | None = None
    """Of the active run, if this machine follows its log."""
    utilization: Utilization | None = None
    """Of the active run's nodes, by role, if this machine follows it."""
    still: NothingMoves | None = None
    """Since when nothing moves in the active run, and where its tasks wait."""
    deadline: float | None = None
    """When the active run is stopped by `train.deadline`, Unix time."""
    as_of: Mapping[str, float] = field(default_factory=dict)
    """Run id → time its record was stored (Unix), for runs that were active then."""
    away: AwayState | None = None
    """What its desk last reported, if it is or was away."""
    is_away: bool = False
    """True if it was sent away from here, whatever is known of its desk."""

    def cost(self, now: float) -> CostSoFar | None:
        """$ so far of the nodes that exist; None if these are not known."""
        if self.nodes is None:
            return None
        return cost_of(self.nodes, self.prices, self.ceilings, now)

    @property
    def missing(self) -> tuple[str, ...]:
        if self.nodes is None or self.open is False:
            return ()
        there = {node.name for node in self.nodes}
        return tuple(name for name in self.planned or () if name not in there)

    def exit_code(self, now: float) -> int:
        """Exit code of `status`. Nodes being created or destroyed do not count as missing."""
        if self.error is not None:
            silent = isinstance(self.error, errors.TransientError | errors.RateError)
            return errors.NotAskedError.exit_code if silent else self.error.exit_code
        changing = self.holder is not None and self.holder.doing in ("up", "down")
        if overdue(self.nodes or (), now):
            return OVERDUE
        if without_end(self.nodes or (), now) and not changing:
            return OVERDUE
        reported = self.away is not None and not self.away.unsigned
        at_desk = reported and self.away is not None and self.away.phase != "training"
        lost = any(name not in self.ended for name in self.missing)
        return 1 if lost and not changing and not at_desk else 0

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
    latest: int = 0,
) -> StatusReport:
    """Status of one cluster, or of all that are known here and not down. For a cluster that is not
    on record here, and with `store` for all that it holds, the runs are those that landed.
    `offline` reads records only and loads as little as possible. Of runs on record, the `latest` so
    many are read, if that is not 0."""
    # A `down` of a cluster that is not on record here leaves only its events.
    known = known_clusters()
    if store is not None or (
        config is not None and not (config.name in known and Records(config.name).configured() > 0)
    ):
        return StatusReport(clusters=landed(name, config, store), store=store)
    names = without_desks(known_clusters()) if name is None else (name,)
    recorded = [on_record(name, latest) for name in names]
    if offline:
        return StatusReport(clusters=tuple(recorded))
    recorded = [with_desk(one, config) if one.is_away else one for one in recorded]
    if config is not None and not recorded[0].runs:
        recorded = [with_landed(recorded[0], config)]
    return StatusReport(
        clusters=tuple(
            after_desk(with_nodes(with_idle_process(one))) if one.open or name is not None else one
            for one in recorded
        )
    )


def landed(
    name: str | None, config: ClusterConfig | None, uri: str | None
) -> tuple[ClusterStatus, ...]:
    """Runs as the store has them, and nodes as the provider lists them if a config names it. Raises
    StoreError."""
    from cloudtrain.artifacts.run_index import clusters_in
    from cloudtrain.core.cloud import facts_of
    from cloudtrain.core.store_kinds import is_on_this_machine
    from cloudtrain.stores import open_store
    from cloudtrain.stores.file import FileStore

    # For a reader, a `file://` store whose folder does not exist is a wrong name, not empty.
    if uri is not None and is_on_this_machine(uri) and not FileStore(uri).root.is_dir():
        raise errors.StoreError(
            f"{uri}: no such folder", hint="pass the `artifacts.store` of the config as --store"
        )
    if name is None:
        assert uri is not None, "without a name, it is a store's clusters that are meant"
        names = clusters_in(open_store(uri))
        return tuple(with_desk(in_store(each, None, uri), None, uri) for each in names)
    cluster = with_desk(in_store(name, config, uri), config, uri)
    # No config to query with, or local nodes, which only their own machine sees.
    if config is None or facts_of(config.provider).on_this_machine:
        return (cluster,)
    cluster = with_nodes(cluster, config)
    return (replace(cluster, open=bool(cluster.nodes) if cluster.nodes is not None else None),)


def with_desk(
    cluster: ClusterStatus, config: ClusterConfig | None, uri: str | None = None
) -> ClusterStatus:
    """The same with what its desk reports, and for one that was sent away from here, its runs as
    the store has them."""
    from cloudtrain.artifacts.run_index import StoredRuns
    from cloudtrain.away.find_away import find_away

    try:
        found = find_away(cluster.name, config, uri)
        state = found.state() if found is not None else None
        if found is None or not cluster.is_away:
            return replace(cluster, away=state)
        stored, faults = StoredRuns(found.store, cluster.name).runs_and_faults()
    except CloudtrainError as error:
        return replace(cluster, faults=(*cluster.faults, error.message))
    return replace(
        cluster,
        away=state,
        runs=tuple(each.run for each in stored),
        earlier=0,
        faults=(*cluster.faults, *faults),
        as_of={each.run.id: each.as_of for each in stored if each.as_of is not None},
    )


def after_desk(cluster: ClusterStatus) -> ClusterStatus:
    """The same, down if its desk has ended and nothing is left."""
    ended = cluster.away is not None and cluster.away.phase == "ended"
    return replace(cluster, open=False) if ended and cluster.nodes == () else cluster


def in_store(name: str, config: ClusterConfig | None, uri: str | None) -> ClusterStatus:
    from cloudtrain.artifacts.run_index import StoredRuns
    from cloudtrain.cluster.session import shared_store

    lacks_store = uri is None and config is not None and config.artifacts.store is None
    store = None if lacks_store else shared_store(name, config, uri)
    stored, faults = StoredRuns(store, name).runs_and_faults() if store else ((), ())
    return ClusterStatus(
        name=name,
        provider=config.provider if config else None,
        strategy=config.strategy if config else None,
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


def on_record(name: str, latest: int = 0) -> ClusterStatus:
    records = Records(name)
    runs, faults = records.runs_and_faults(latest)
    config: dict[str, Any] = {}
    try:
        config = records.config()
    except CloudtrainError as error:
        faults = (error.message, *faults)
    limits, train = config.get("limits"), config.get("train")
    budget = None
    if isinstance(limits, dict) and limits.get("budget") is not None:
        from cloudtrain.runs.idle import recorded_budget

        budget = recorded_budget(records, moments.now())
    active = runs[-1] if runs and runs[-1].ended is None else None
    seconds = train.get("deadline") if isinstance(train, dict) else None
    deadline = None
    if isinstance(seconds, int | float) and active is not None:
        deadline = active.created + seconds
    return ClusterStatus(
        name=name,
        provider=config.get("provider"),
        strategy=config.get("strategy"),
        open=records.is_open(),
        since=records.since(),
        holder=records.holder(),
        runs=runs,
        earlier=sum(each < runs[0].id for each in records.run_ids()) if latest and runs else 0,
        faults=faults,
        idle=_idle(records, limits),
        budget=budget,
        deadline=deadline,
        is_away=records.is_away(),
        **(_activity(records, active) if active is not None else {}),
    )


def _activity(records: Records, run: Run) -> dict[str, Any]:
    """Progress and utilization of the active run, from what has arrived here."""
    from cloudtrain.core.events import nothing_moves
    from cloudtrain.runs.run_progress import progress_of, utilization_of

    now = moments.now()
    return {
        "progress": progress_of(records, run, now),
        "utilization": utilization_of(records, run, now),
        "still": nothing_moves(records.events(), run.id),
    }


def _idle(records: Records, limits: object) -> IdleState | None:
    """State of `limits.idle`; None if no process sees to it, unless it has failed: then without
    `due`, as a command tries again."""
    from cloudtrain.core.events import down_fault

    limited = isinstance(limits, dict) and limits.get("idle") is not None
    if not records.is_open() or not (limited or down_fault(records.events())):
        return None
    from cloudtrain.runs.idle import idle_state  # slow to import

    found = idle_state(records)
    if found is None or records.idle_process() is not None:
        return found
    return replace(found, due=None) if found.fault is not None else None


def with_idle_process(cluster: ClusterStatus) -> ClusterStatus:
    """The same, with a new idle process: the old one may have ended with this machine."""
    from cloudtrain.runs.idle import ensure_idle_process, idle_state

    records = Records(cluster.name)
    return replace(cluster, idle=idle_state(records)) if ensure_idle_process(records) else cluster


def with_nodes(cluster: ClusterStatus, config: ClusterConfig | None = None) -> ClusterStatus:
    """The same with its nodes, or with the reason why they are not known."""
    from cloudtrain.cluster.lease import held_long
    from cloudtrain.cluster.plan import make_plan
    from cloudtrain.cluster.session import open_provider, recorded_config
    from cloudtrain.core.cloud import served_folder
    from cloudtrain.core.events import nodes_requested
    from cloudtrain.core.partial_list import PartialList
    from cloudtrain.core.protocols import RentsMachines
    from cloudtrain.money.estimate import price_of

    try:
        config = config or recorded_config(Records(cluster.name))
        provider = open_provider(config)
        ask = provider.nodes_and_ends if isinstance(provider, RentsMachines) else provider.nodes
        nodes = ask(cluster.name)
    except CloudtrainError as error:
        return replace(cluster, error=error)
    prices = {node.name: price_of(config, node) for node in nodes}
    return replace(
        cluster,
        nodes=tuple(sorted(nodes, key=lambda node: node.rank)),
        lease=held_long(config) if nodes else "",
        foreign=nodes.foreign if isinstance(nodes, PartialList) else (),
        prices={name: price.per_hour for name, price in prices.items()},
        ceilings={name: price.most for name, price in prices.items()},
        planned=tuple(node.name for node in make_plan(config).nodes),
        made=frozenset(nodes_requested(Records(cluster.name).events())),
        shared=served_folder(config),
        still_billed=_kept(config, nodes),
        ended=_ended(config, nodes),
    )


def _ended(config: ClusterConfig, nodes: Sequence[Node]) -> dict[str, str]:
    """Nodes of this machine's cluster that ended themselves, by the marks that they left."""
    from cloudtrain.core.events import own_ends

    records = Records(config.name)
    running = {node.name for node in nodes if node.state not in ("stopped", "gone")}
    if not records.is_open() or own_ends(records.events()) is None:
        return {}
    from cloudtrain.runs.own_ends import ended_by_their_words

    return ended_by_their_words(config, records, running)


def _kept(config: ClusterConfig, nodes: Sequence[Node]) -> str | None:
    """Cost of what stopped nodes leave behind, on a cloud that bills it."""
    from cloudtrain.core.model import NodeGroup
    from cloudtrain.money import node_parts

    stopped = [node for node in nodes if node.state == "stopped"]
    left = node_parts.left_by(config)
    if left is None or not stopped:
        return None
    disks = [config.nodes.get(node.role, NodeGroup()).disk_gb for node in stopped]
    place, address = stopped[0].placement, not config.network.private
    return node_parts.describe(left, disks, place=place, address=address)
