"""`cloudtrain gpus --cloud`: what accounts' quotas allow of the machines shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cloudtrain.cluster.session import open_provider
from cloudtrain.commands.accounts import AccountRef, account_of
from cloudtrain.commands.gpus import GpuMachine
from cloudtrain.core.errors import (
    CloudtrainError,
    CredentialsError,
    NodesError,
    NotAskedError,
    UsageError,
)
from cloudtrain.core.model import MachineType
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.partial_list import NotAsked
from cloudtrain.core.protocols import Allowance, RentsMachines


@dataclass(frozen=True, kw_only=True)
class AccountQuota:
    account: AccountRef
    allowances: tuple[Allowance, ...] = ()
    """In the order of the machines and, of each, of its regions; on demand, then spot."""
    not_asked: tuple[NotAsked, ...] = ()
    error: CloudtrainError | None = None

    @property
    def exit_code(self) -> int:
        """6 for regions that did not answer. Missing credentials and packages count only for a
        named account, regions without access never.
        """
        if any(not each.denied for each in self.not_asked):
            return NotAskedError.exit_code
        if self.error is None or (
            isinstance(self.error, CredentialsError | UsageError) and not self.account.named
        ):
            return 0
        return self.error.exit_code


def account_quotas(
    machines: Sequence[GpuMachine], accounts: Sequence[AccountRef], *, only_known: bool = False
) -> tuple[AccountQuota, ...]:
    """Ask all accounts side by side; one that could not be asked has its `error`.

    A machine's regions are those of its places, or all that answer if none is known. `only_known`:
    ask no region besides those of the places. Accounts of other providers are left out.
    """
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
                raise UsageError(f"{account}: this provider reports no quotas")
            types = [_type(machine) for machine in wanted]
            found = provider.allowances(types, sorted(regions) if only_known else ())
        except (CloudtrainError, NodesError) as error:
            return AccountQuota(account=account, error=error)
        return AccountQuota(
            account=account,
            allowances=tuple(each for machine in wanted for each in _of(machine, found)),
            not_asked=found.not_asked,
        )

    return tuple(fan_out(asked, one, name=str))


def _type(machine: GpuMachine) -> MachineType:
    return MachineType(
        provider=machine.provider,
        name=machine.name,
        vcpus=machine.vcpus,
        memory_gib=machine.memory_gib,
        accelerator=machine.accelerator,
    )


def _of(machine: GpuMachine, found: Sequence[Allowance]) -> list[Allowance]:
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
