"""`provider: azure`: virtual machines over Azure Resource Manager on apache-libcloud.

A cluster has one resource group in each region that `up` tries: everything that is created for it
is in there and is deleted with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.listing import Listing
from cloudtrain.model import ClusterConfig, Plan
from cloudtrain.protocols import Finding, Journal, MachineFacts, Principal
from cloudtrain.providers._azure import checks, credentials, ground, places
from cloudtrain.providers._azure.connection import Arm, endpoint_of
from cloudtrain.providers._azure.console import console
from cloudtrain.providers._azure.ends import SOONEST, Ends
from cloudtrain.providers._azure.ground import Ground
from cloudtrain.providers._azure.holdings import Holdings
from cloudtrain.providers._azure.rehearsal import rehearse
from cloudtrain.providers._azure.removal import Removal
from cloudtrain.providers._azure.services import Services
from cloudtrain.providers._azure.skus import Skus
from cloudtrain.providers._azure.vms import Vms
from cloudtrain.providers._cloud.account import Machine, Order, Place, Resource, Tell
from cloudtrain.providers._cloud.caller import caller_cidr
from cloudtrain.providers._cloud.provider import CloudProvider
from cloudtrain.providers._cloud.timing import TIMING, Timing


def provider(config: ClusterConfig) -> CloudProvider[Ground]:
    """The provider of a config. Sends no request."""
    account = AzureAccount(config)
    return CloudProvider(account, caller=lambda: caller_cidr(config, endpoint_of(config)))


class AzureAccount:
    """Driver for one subscription."""

    name = "azure"
    ends_by_shutdown = False
    """A VM that is shut down from inside is still billed: a schedule deallocates it."""
    soonest_end = SOONEST

    def __init__(self, config: ClusterConfig, timing: Timing = TIMING) -> None:
        self._config = config
        self._arm = Arm(config, timing)
        self._skus = Skus(self._arm)
        self._services = Services(self._arm)
        self._ends = Ends(self._arm, self._services)
        self._vms = Vms(self._arm, self._ends)
        self._holdings = Holdings(self._arm)
        self._removal = Removal(self._arm, self._vms, self._ends)

    def principal(self) -> Principal | None:
        return credentials.principal(self._arm.token())

    def check(self, plan: Plan) -> tuple[Finding, ...]:
        return checks.check(self._arm, self._skus, self._services, plan, self.machines)

    def rehearse(self, plan: Plan) -> tuple[Finding, ...]:
        return tuple(rehearse(self._arm, self._skus, plan, self.places(plan)))

    def machine_facts(self, plan: Plan, names: Sequence[str]) -> tuple[MachineFacts, ...]:
        return self._skus.facts([places.asked(p).region for p in plan.config.placement], names)

    def places(self, plan: Plan) -> tuple[Place, ...]:
        return places.places(self._arm, self._skus, self._services, plan)

    def machines(
        self,
        cluster: str | None = None,
        place: Place | None = None,
        places: Sequence[str] = (),
    ) -> Listing[Machine]:
        return Listing(self._holdings.machines(cluster, place))

    def resources(
        self, cluster: str | None = None, places: Sequence[str] = ()
    ) -> Listing[Resource]:
        return Listing(self._holdings.resources(cluster))

    def ground(self, plan: Plan, place: Place, caller: str, journal: Journal) -> Ground:
        mend = self._ends.mend
        return ground.make(
            self._arm, self._skus, self._services, plan, place, caller, journal, mend
        )

    def is_close(self, ground: Ground) -> bool:
        return ground.proximity is not None

    def launch(self, order: Order[Ground]) -> Machine:
        return self._vms.launch(order)

    def start(self, machine: Machine, expires: float | None) -> None:
        self._vms.start(machine, expires)

    def move_ends(
        self, machines: Sequence[Machine], expires: float | None, tell: Tell | None = None
    ) -> bool:
        self._ends.move(machines, expires)
        return True

    def console(self, machine: Machine) -> str:
        return console(self._arm, machine)

    def erase(self, machines: Sequence[Machine], resources: Sequence[Resource]) -> None:
        self._removal.erase(machines, resources)
