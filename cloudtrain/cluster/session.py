"""Provider, store, records and connections of one cluster, for the length of one command."""

from __future__ import annotations

import importlib
import importlib.util
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

from cloudtrain.cluster.ownership import refuse_other_owners
from cloudtrain.cluster.plan import make_plan, on_demand
from cloudtrain.config import from_json, to_json, with_environment_defaults
from cloudtrain.core import errors
from cloudtrain.core.cloud import cloud_of, facts_of, is_cloud
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.events import generations, places_tried
from cloudtrain.core.extras import install_hint
from cloudtrain.core.model import ClusterConfig, Identity, Node, Plan
from cloudtrain.core.partial_list import PartialList, Whereabouts
from cloudtrain.core.protocols import (
    ArtifactStore,
    Console,
    HostKeys,
    Provider,
    StoreBackend,
    Transport,
)
from cloudtrain.core.retry import CLOCK, Clock
from cloudtrain.core.store_kinds import scheme_of
from cloudtrain.ssh.keys import create_identity, ssh_config, write_known_hosts
from cloudtrain.state import Records, known_clusters
from cloudtrain.state.files import write_whole
from cloudtrain.stores import StoreWishes, open_store


class Handle:
    """One cluster before any query: plan, record, and provider and store, opened at first use."""

    def __init__(self, config: ClusterConfig, plan: Plan | None = None) -> None:
        self.config, self.records = config, Records(config.name)
        self._plan, self._lock = plan, threading.RLock()
        self._provider: Provider | None = None
        self._store: StoreBackend | None = None
        self.on_demand: frozenset[str] = frozenset()
        """Nodes to request on demand, although the config says spot (`train.spot_retries`)."""

    @property
    def plan(self) -> Plan:
        """The plan, computed at first use: what can no longer be planned can still be deleted."""
        self._plan = self._plan or make_plan(self.config)
        return on_demand(self._plan, self.on_demand)

    def plan_again(self) -> None:
        """Compute the plan again, when more is known about its machines."""
        self._plan = None

    @property
    def provider(self) -> Provider:
        """The provider, with the places where the cluster may be according to the record."""
        with self._lock:
            if self._provider is None:
                self._provider = open_provider(self.config)
            elif is_cloud(self.config.provider):
                self._provider.whereabouts = whereabouts(self.config)
            return self._provider

    @property
    def store(self) -> StoreBackend:
        with self._lock:
            self._store = self._store or artifact_store(self.config, self.records)
            return self._store


@dataclass(frozen=True, kw_only=True)
class Session:
    """An open cluster. `nodes` is the provider's latest list."""

    plan: Plan
    records: Records
    provider: Provider
    store: ArtifactStore
    console: Console
    identity: Identity
    transport: Transport
    host_keys: HostKeys
    nodes: tuple[Node, ...]
    clock: Clock = CLOCK

    @property
    def config(self) -> ClusterConfig:
        return self.plan.config

    def node(self, name: str) -> Node | None:
        return next((node for node in self.nodes if node.name == name), None)

    def refreshed(self) -> Session:
        """The session with its nodes listed again."""
        return replace(self, nodes=in_order(self.provider.nodes(self.config.name), self.plan))

    def patient(self) -> Session:
        """The session for commands to a node that may refuse connections for a moment: its sshd
        restarts, or the network is down."""
        from cloudtrain.ssh.transport import RetryingTransport

        waiting = RetryingTransport(self.transport, waits=self.console.warn, clock=self.clock)
        return replace(self, transport=waiting)


@contextmanager
def open_session(
    handle: Handle, console: Console, *, owner: str | None = None
) -> Iterator[Session]:
    """Open an existing cluster. Closing it leaves detached tasks running. Raises UsageError for
    another owner's cluster, unless it is the one that `owner` names."""
    from cloudtrain.ssh.transport import SshTransport

    plan, records, provider = handle.plan, handle.records, handle.provider
    listed = provider.nodes(plan.config.name)
    for each in listed.foreign if isinstance(listed, PartialList) else ():
        console.warn(f"{each}; it is left alone")
    nodes = in_order(listed, plan)
    refuse_other_owners(records, provider, nodes, owner=owner)
    identity = adopt_identity(records, plan, nodes)
    with SshTransport(identity) as transport:
        yield Session(
            plan=plan,
            records=records,
            provider=provider,
            store=handle.store,
            console=console,
            identity=identity,
            transport=transport,
            host_keys=transport,
            nodes=nodes,
        )


def open_provider(config: ClusterConfig) -> Provider:
    """Create the config's provider."""
    folder = f"cloudtrain.providers.{config.provider}"
    if importlib.util.find_spec(folder) is None:
        raise errors.UsageError(
            f"provider {config.provider} is not in this version of cloudtrain",
            hint="use `provider: local` to rehearse the whole path on this machine",
        )
    missing = missing_extra(config.provider)
    if missing is not None:
        raise errors.UsageError(
            f"provider {config.provider} needs {missing}, which is not installed",
            hint=install_hint(config.provider),
        )
    module = importlib.import_module(f"{folder}.provider")
    provider = cast("Callable[[ClusterConfig], Provider]", module.provider)(config)
    if is_cloud(config.provider):
        provider.whereabouts = whereabouts(config)
    return provider


def whereabouts(config: ClusterConfig) -> Whereabouts:
    """Places where this config's cluster may be, from the record if that is of the same account."""
    records = Records(config.name)
    try:
        recorded = recorded_config(records)
        same = records.is_open() and account(recorded) == account(config)
    except errors.ConfigError:
        same = False
    if not same:
        return Whereabouts(cluster=config.name, places=config.placement)
    events = records.events()
    asked, complete = places_tried(events)
    places = dict.fromkeys((*asked, *recorded.placement, *config.placement))
    return Whereabouts(
        cluster=config.name,
        places=tuple(places),
        complete=complete,
        generations=generations(events),
        tried=asked,
    )


def missing_extra(provider: str) -> str | None:
    """The first missing package that this provider needs; None if all are installed."""
    for package in facts_of(provider).packages:
        try:
            if importlib.util.find_spec(package) is None:
                return package
        except ModuleNotFoundError:  # its namespace package does not exist
            return package
    return None


def artifact_store(config: ClusterConfig, records: Records) -> StoreBackend:
    """The configured store; by default a local folder of the cluster, so that nothing is only on a
    node that is about to be deleted."""
    return store_at(config.artifacts.store or (records.folder / "artifacts").as_uri(), config)


def store_at(uri: str, config: ClusterConfig | None) -> StoreBackend:
    """The store at that URI, configured by the config if there is one."""
    if config is None:
        return open_store(uri)
    return open_store(
        uri,
        endpoint=config.endpoints.storage,
        project=config.project if is_of_the_nodes_cloud(uri, config) else None,
        wishes=StoreWishes(encryption=config.artifacts.encryption),
    )


def shared_store(name: str, config: ClusterConfig | None, uri: str | None) -> ArtifactStore:
    """The store that other machines see too. Raises UsageError if the config names none."""
    config = config or config_on_record(name)
    uri = uri or (config.artifacts.store if config else None)
    if uri is None:
        raise errors.UsageError(
            f"no local record of {name}, and its config has no artifacts.store",
            hint="its artifacts are on the machine that ran it; pass --store URI to read a store",
        )
    return store_at(uri, config)


def config_on_record(name: str) -> ClusterConfig | None:
    try:
        return recorded_config(Records(name)) if name in known_clusters() else None
    except errors.ConfigError:
        return None


def is_of_the_nodes_cloud(uri: str, config: ClusterConfig) -> bool:
    """True if the store belongs to the nodes' cloud."""
    cloud = cloud_of(config.provider)
    return cloud is not None and scheme_of(uri) == cloud.store_scheme


def in_order(nodes: Iterable[Node], plan: Plan) -> tuple[Node, ...]:
    """Sort nodes in the plan's order, then all others by name."""
    order = {node.name: number for number, node in enumerate(plan.nodes)}
    return tuple(sorted(nodes, key=lambda node: (order.get(node.name, len(order)), node.name)))


def adopt_identity(records: Records, plan: Plan, nodes: tuple[Node, ...]) -> Identity:
    """The cluster's keys, created if missing, with the existing nodes pinned to theirs."""
    if nodes and not records.has_keys():
        raise without_keys(plan.config, nodes)
    names = [node.name for node in plan.nodes]
    names += [node.name for node in nodes if node.name not in names]
    identity = create_identity(records.folder, names)
    write_known_hosts(identity, nodes)
    return identity


def without_keys(config: ClusterConfig, nodes: tuple[Node, ...]) -> errors.CloudtrainError:
    """Error for nodes whose keys are not on this machine."""
    if all(node.state in ("unknown", "untrusted") for node in nodes):
        unknown = {node.name: errors.NodeUnreachable(node.name, node.fault) for node in nodes}
        hint = f"cannot tell whether {config.name} exists: try again once they answer"
        return errors.NodesError(unknown, hint=hint)
    machines = ", ".join(sorted({node.owner.machine for node in nodes} - {""}))
    return errors.UsageError(
        f"{config.name} exists, but its SSH keys are not on this machine",
        hint=f"they are on the machine that created it{f' ({machines})' if machines else ''}: "
        "continue there, or give this one another `name:`",
    )


def recorded_config(records: Records) -> ClusterConfig:
    """Config of the last `up`."""
    return with_environment_defaults(from_json(records.config()))


def refuse_other_use(config: ClusterConfig, records: Records, *, adopt: bool) -> None:
    """Raise UsageError if the record is of a cluster that a desk attends to, that is in another
    account, or that another project's file has created."""
    refuse_away(records)
    refuse_other_account(config, records)
    refuse_other_folder(config, records, adopt=adopt)


def refuse_other_account(config: ClusterConfig, records: Records) -> None:
    """Raise UsageError for a name in use in another account: a record has one cluster's keys."""
    if not records.is_open():
        return
    try:
        recorded = recorded_config(records)
    except errors.ConfigError:
        return
    same = account(recorded) == account(config)
    machines = {(host.address, host.port, host.user) for host in config.hosts}
    if same and {(host.address, host.port, host.user) for host in recorded.hosts} <= machines:
        return
    raise errors.UsageError(
        f"cluster {config.name} is already running on {_words(recorded)}; this config targets "
        f"{_words(config)}",
        hint=f"run `cloudtrain down {config.name}` first, or use another `name`",
    )


def refuse_other_folder(config: ClusterConfig, records: Records, *, adopt: bool) -> None:
    """Raise UsageError for the cluster of another project's file with the same name. If the file
    that it was created from no longer exists, any file may use it."""
    if adopt or not config.source or not records.is_open():
        return
    try:
        made_from = Path(str(records.config().get("source") or ""))
    except errors.ConfigError:
        return
    source = Path(config.source)
    same = made_from.parent.resolve() == source.parent.resolve()
    if same or not made_from.is_absolute() or not made_from.is_file():
        return
    raise errors.UsageError(
        f"{config.name} was created from {made_from}, not from {source}",
        hint="give this one its own `name:`, or pass --adopt to use the cluster with this file",
    )


def refuse_away(records: Records) -> None:
    """Raise UsageError for a cluster that a desk attends to: the nodes' keys are there."""
    if records.is_open() and records.is_away():
        name = records.name
        raise errors.UsageError(
            f"{name} is away: the controller of `run --away` attends to it",
            hint=f"`cloudtrain status {name}` shows what it does; `cloudtrain down {name}` ends "
            "it, and deletes what a controller that has ended left",
        )


def account(config: ClusterConfig) -> tuple[str | None, ...]:
    """Account in which a cluster is looked for: equal for two configs that mean the same one."""
    return (config.provider, config.project, config.endpoints.compute, config.resource_group)


def _words(config: ClusterConfig) -> str:
    hosts = ", ".join(host.address for host in config.hosts)
    group = config.resource_group and f"in resource group {config.resource_group}"
    return " ".join(filter(None, [config.provider, config.project, hosts, group]))


def record_cluster(config: ClusterConfig, records: Records) -> None:
    """Record a cluster that this machine is about to create or change."""
    records.create()
    records.end_away()
    records.save_config(to_json(config))


def write_ssh_config(records: Records, identity: Identity, nodes: tuple[Node, ...]) -> Path:
    """Write a config for OpenSSH's `-F`, and pin the nodes' host keys. Whole: by an Include of the
    user's each `ssh` reads it, and ends at half a line."""
    write_known_hosts(identity, nodes)
    path = records.folder / "ssh_config"
    write_whole(path, ssh_config(identity, nodes).encode())
    return path
