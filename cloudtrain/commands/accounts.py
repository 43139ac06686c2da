"""`cloudtrain ls --cloud`, `gc` and `gpus --cloud`: what accounts hold under our labels, and what
their quotas allow."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

from cloudtrain.checks.node_notes import overdue, without_end
from cloudtrain.cluster.lease import held_long, may_be_creating
from cloudtrain.cluster.ownership import is_mine
from cloudtrain.cluster.session import missing_extra, open_provider, recorded_config
from cloudtrain.commands.gpus import GpuMachine
from cloudtrain.core import errors, moments
from cloudtrain.core.cloud import Cloud, facts_of, providers
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.events import Event
from cloudtrain.core.model import ClusterConfig, Holding, MachineType, Node
from cloudtrain.core.owner import matches_owner
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.partial_list import NotAsked
from cloudtrain.core.protocols import Allowance, Console, Provider, RentsMachines
from cloudtrain.state import Records, known_clusters
from cloudtrain.training.strategies import CUSTOM


@dataclass(frozen=True, kw_only=True)
class AccountRef:
    """An account to query: of the config, only provider, project and endpoints count."""

    config: ClusterConfig
    named: bool
    """The user named this account: a failure to query it counts as an error."""

    @property
    def key(self) -> tuple[str, str | None, str | None]:
        return (self.config.provider, self.config.project, self.config.endpoints.compute)

    def __str__(self) -> str:
        return " ".join(filter(None, [self.config.provider, self.config.project]))


@dataclass(frozen=True, kw_only=True)
class HeldCluster:
    """A cluster in an account. `known`: its keys are here, so `down NAME` lands its work. `mine`:
    it belongs to the account's principal, or to nobody."""

    holding: Holding
    known: bool
    mine: bool
    lease: str = ""
    """A line on a lease that another machine holds for over a day, if it is known here."""
    being_created: bool = False
    """A command, perhaps on another machine, may be creating it."""

    @property
    def runs(self) -> bool:
        """True if a node is running or starting, and has not expired."""
        return any(node.state != "stopped" for node in self._with_time_left)

    @property
    def lasts(self) -> bool:
        """True if a node has not expired: one that is stopped may hold what has not landed."""
        return bool(self._with_time_left)

    @property
    def _with_time_left(self) -> list[Node]:
        now, nodes = moments.now(), self.holding.nodes
        return [node for node in nodes if node.expires is None or node.expires > now]


@dataclass(frozen=True, kw_only=True)
class DeletionScope:
    """Clusters that `gc` is to delete besides those that have expired or have no node."""

    name: str | None = None
    """This cluster alone, in whatever state; but not while it may be being created."""
    owner: str | None = None
    """Whose, by name, id or principal; None: one's own. With a name also what may be being created:
    they answer for it."""
    running: bool = False

    def covers(self, held: HeldCluster) -> bool:
        """True for clusters that were named, running or not."""
        if held.known or self.name not in (None, held.holding.cluster):
            return False
        if self.owner is None:
            return held.mine
        return all(matches_owner(owner, self.owner) for owner in held.holding.owners)

    def takes(self, held: HeldCluster) -> bool:
        if not self.covers(held) or (held.being_created and not (self.name and self.owner)):
            return False
        return self.running or self.name is not None or not held.lasts


@dataclass(frozen=True, kw_only=True)
class AccountAnswer:
    """Answer of one account; `error`: why there is none."""

    account: AccountRef
    not_asked: tuple[NotAsked, ...] = ()
    error: errors.CloudtrainError | None = None
    excused: ClassVar[tuple[type[errors.CloudtrainError], ...]] = (errors.CredentialsError,)
    """Errors that count only for an account that the user named."""

    @property
    def exit_code(self) -> int:
        """6 for places that did not answer; those without access never count."""
        if any(each.silent for each in self.not_asked):
            return errors.NotAskedError.exit_code
        if self.error is None or (isinstance(self.error, self.excused) and not self.account.named):
            return 0
        return self.error.exit_code


@dataclass(frozen=True, kw_only=True)
class AccountInventory(AccountAnswer):
    held: tuple[HeldCluster, ...] = ()

    @property
    def exit_code(self) -> int:
        """6 also for expired nodes that still exist, and nodes without an end."""
        nodes, now = [node for held in self.held for node in held.holding.nodes], moments.now()
        billed = overdue(nodes, now) or without_end(nodes, now)
        return errors.NotAskedError.exit_code if billed else super().exit_code


@dataclass(frozen=True, kw_only=True)
class AccountQuota(AccountAnswer):
    allowances: tuple[Allowance, ...] = ()
    """In the order of the machines and, of each, of its regions; on demand, then spot."""
    excused = (errors.CredentialsError, errors.UsageError)


def account_of(name: str, provider: str, project: str | None) -> ClusterConfig:
    """Minimal config to find and delete a cluster that no local file describes."""
    return ClusterConfig(
        name=name, provider=provider, project=project, strategy=CUSTOM.name, nodes={}
    )


def accounts() -> tuple[AccountRef, ...]:
    """Accounts of the clusters known here, then of each cloud whose extra is installed, and
    `local`."""
    found: dict[tuple[str, str | None, str | None], AccountRef] = {}
    for name in known_clusters():
        try:
            config = recorded_config(Records(name))
        except errors.ConfigError:
            continue
        if not facts_of(config.provider).takes_hosts:
            account = AccountRef(config=config, named=Records(name).is_open())
            # A resource group is all that some may list.
            if account.key not in found or config.resource_group:
                found[account.key] = account
    asked = {account.config.provider for account in found.values()}
    for row in sorted(providers(), key=lambda row: isinstance(row, Cloud)):
        if row.takes_hosts or row.name in asked or missing_extra(row.name) is not None:
            continue
        config = account_of("any", row.name, None)
        found[(row.name, None, None)] = AccountRef(config=config, named=False)
    return tuple(found.values())


def list_accounts(accounts: Sequence[AccountRef]) -> tuple[AccountInventory, ...]:
    """List all accounts in parallel; one that could not be listed has its `error`. All are opened
    first, in this thread: one may ask for an MFA code."""
    opened: dict[object, Provider | errors.CloudtrainError] = {}
    for each in accounts:
        try:
            opened[each.key] = open_provider(each.config)
        except errors.CloudtrainError as error:
            opened[each.key] = error

    def one(account: AccountRef) -> AccountInventory:
        try:
            provider = opened[account.key]
            if isinstance(provider, errors.CloudtrainError):
                raise provider
            holdings = provider.sweep()
            held = tuple(held_of(holding, provider, account.config) for holding in holdings)
        except (errors.CloudtrainError, errors.NodesError) as error:
            return AccountInventory(account=account, error=error)
        return AccountInventory(account=account, held=held, not_asked=holdings.not_asked)

    return tuple(fan_out(accounts, one, name=str))


def held_of(holding: Holding, provider: Provider, account: ClusterConfig) -> HeldCluster:
    records = Records(holding.cluster)
    known = is_known(holding.cluster, account)
    return HeldCluster(
        holding=holding,
        known=known,
        lease=held_long(recorded_config(records)) if known and holding.nodes else "",
        being_created=may_be_creating(records, holding),
        mine=all(is_mine(owner, provider, records) for owner in holding.owners),
    )


def is_known(cluster: str, account: ClusterConfig) -> bool:
    """True if keys here open the nodes that this cluster may have in that account. If one of the
    two names no project, both may mean the same one."""
    try:
        records = Records(cluster)
        recorded = recorded_config(records)
    except errors.CloudtrainError:
        return False
    projects = {recorded.project, account.project} - {None}
    same = recorded.provider == account.provider and len(projects) < 2
    return same and records.is_open() and records.has_keys()


def delete_leftovers(
    answers: Sequence[AccountInventory], wanted: DeletionScope, console: Console
) -> tuple[str, ...]:
    """Delete all that is wanted and return the names. Each account is listed once more, as others
    go on meanwhile: what is not wanted any more, is known here by now, or was created anew is left
    alone. Raises LeftoverError, or NodesError with every failure."""
    listed = [(a, tuple(filter(wanted.takes, a.held))) for a in answers]
    again = fan_out(
        [item for item in listed if item[1]],
        lambda item: _look_again(item[0].account, item[1], wanted, console),
        name=lambda item: str(item[0].account),
    )
    work = [each for found in again for each in found]

    def one(item: _Orphan) -> str | None:
        cluster = item.holding.cluster
        with Records(cluster).lock("gc"):
            if is_known(cluster, item.account.config):
                return None
            with suppress(errors.NotAskedError):  # the next listing names those places
                item.provider.destroy(cluster, no_record, claimed=item.holding.generations)
        stage.done(cluster, "gone")
        return cluster

    with console.stage("orphans", len(work)) as stage:
        done = fan_out(work, one, name=lambda item: item.holding.cluster, workers=8)
    return tuple(name for name in done if name is not None)


@dataclass(frozen=True, kw_only=True)
class _Orphan:
    """Holding to delete, with the provider that listed it: that one deletes nothing newer."""

    account: AccountRef
    provider: Provider
    holding: Holding


def _look_again(
    account: AccountRef, before: Sequence[HeldCluster], wanted: DeletionScope, console: Console
) -> list[_Orphan]:
    provider = open_provider(account.config)
    now = {found.cluster: found for found in provider.sweep()}
    orphans = []
    for held in before:
        found, name = now.get(held.holding.cluster), held.holding.cluster
        if found is None:
            continue
        same = set(found.generations) <= set(held.holding.generations)
        if same and wanted.takes(held_of(found, provider, account.config)):
            orphans.append(_Orphan(account=account, provider=provider, holding=found))
        else:
            console.warn(f"{name} has changed since it was listed, and is left alone")
    return orphans


def no_record(event: Event, /) -> None:
    """Journal that records nothing: a record would make an orphan a known cluster."""


def account_quotas(
    machines: Sequence[GpuMachine], accounts: Sequence[AccountRef], *, only_known: bool = False
) -> tuple[AccountQuota, ...]:
    """Ask all accounts side by side; one that could not be asked has its `error`. A machine's
    regions are those of its places, or all that answer if none is known. `only_known`: ask no
    region besides those of the places. Accounts of other providers are left out."""
    own = {machine.provider for machine in machines}
    asked = [account for account in accounts if account.config.provider in own]
    for provider in sorted(own - {account.config.provider for account in asked}):
        config = account_of("any", provider, None)
        asked.append(AccountRef(config=config, named=False))  # not installed: `error` says so

    def one(account: AccountRef) -> AccountQuota:
        wanted = [each for each in machines if each.provider == account.config.provider]
        regions = {place.region for each in wanted for place in each.places} - {""}
        try:
            provider = open_provider(account.config)
            if not isinstance(provider, RentsMachines):
                raise errors.UsageError(f"{account}: this provider reports no quotas")
            types = [
                MachineType(
                    provider=machine.provider,
                    name=machine.name,
                    vcpus=machine.vcpus,
                    memory_gib=machine.memory_gib,
                    accelerator=machine.accelerator,
                )
                for machine in wanted
            ]
            found = provider.allowances(types, sorted(regions) if only_known else ())
        except (errors.CloudtrainError, errors.NodesError) as error:
            return AccountQuota(account=account, error=error)
        return AccountQuota(
            account=account,
            allowances=tuple(each for machine in wanted for each in _quota_of(machine, found)),
            not_asked=found.not_asked,
        )

    return tuple(fan_out(asked, one, name=str))


def _quota_of(machine: GpuMachine, found: Sequence[Allowance]) -> list[Allowance]:
    """Those of one machine on the markets on which it is sold, in the order of its regions."""
    places = {place.region: place for place in machine.places}
    anywhere = places.get("")

    def is_sold(each: Allowance) -> bool:
        place = places.get(each.region, anywhere)
        return place is not None and (place.spot if each.spot else place.on_demand) is not None

    order = {region: number for number, region in enumerate(places)}
    own = [each for each in found if each.machine == machine.name]
    own = [each for each in own if each.accelerator == machine.accelerator and is_sold(each)]
    return sorted(own, key=lambda each: (order.get(each.region, len(order)), each.region))
