"""`provider: azure`: virtual machines over Azure Resource Manager on apache-libcloud.

A cluster has one resource group in each region that `up` tries. The group contains everything that
is created for the cluster in that region, and is deleted with the cluster. With `resource_group`,
everything is in that group of the user's, from which it is deleted one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cloudtrain.core.model import ClusterConfig, MachineType, Plan
from cloudtrain.core.partial_list import PartialList, SpotEvidence
from cloudtrain.core.protocols import Allowance, Finding, Journal, MachineFacts, Principal
from cloudtrain.identities.azure import principal
from cloudtrain.providers.azure import (
    checks,
    network,
    paths,
    permissions,
    quota,
    ssh_service,
    zones,
)
from cloudtrain.providers.azure.client import ArmClient, endpoint_of
from cloudtrain.providers.azure.dry_run import dry_run
from cloudtrain.providers.azure.expiry import SOONEST, Expiries
from cloudtrain.providers.azure.machine_types import Skus
from cloudtrain.providers.azure.network import ClusterNetwork
from cloudtrain.providers.azure.resource_providers import ResourceProviders
from cloudtrain.providers.azure.resources import Resources
from cloudtrain.providers.azure.teardown import SubscriptionTeardown
from cloudtrain.providers.azure.vms import Vms, serial_log
from cloudtrain.providers.base.answers import answers_by_shape
from cloudtrain.providers.base.driver import (
    CloudDriver,
    LaunchRequest,
    Location,
    Resource,
    Tell,
    Vm,
)
from cloudtrain.providers.base.provider import CloudProvider
from cloudtrain.providers.base.ssh_access import caller_cidr, with_proxies
from cloudtrain.providers.base.timing import TIMING, Timing

PATIENT = replace(TIMING, boot=900.0)
"""Azure leaves some VMs in the state Creating: after 15 min, such a VM is deleted and made again.

https://github.com/scylladb/scylla-cluster-tests/pull/15004 began with 5 min, which were too few.
`redeploy` is not tried: https://github.com/scylladb/scylla-cluster-tests/pull/15455 found that it
helped none of 20 such VMs, and that deleting them did."""


def provider(config: ClusterConfig) -> CloudProvider[ClusterNetwork]:
    """The provider for a config. Sends no request."""
    account = AzureDriver(config)
    return CloudProvider(
        account, caller=lambda: caller_cidr(config, endpoint_of(config)), timing=PATIENT
    )


@answers_by_shape
class AzureDriver(CloudDriver[ClusterNetwork]):
    """Driver for one subscription."""

    name = "azure"
    ends_by_shutdown = False
    """False: a VM that shuts itself down is still billed. A schedule deallocates it instead."""
    at_once = 512
    soonest_end = SOONEST

    def __init__(self, config: ClusterConfig, timing: Timing = PATIENT) -> None:
        self._config = config
        self._arm = ArmClient(config, timing)
        self._skus = Skus(self._arm)
        self._services = ResourceProviders(self._arm)
        self._ends = Expiries(self._arm, self._services)
        self._vms = Vms(self._arm, self._ends)
        self._holdings = Resources(self._arm)
        self._removal = SubscriptionTeardown(self._arm, self._vms, self._ends)

    def principal(self) -> Principal | None:
        return principal(self._arm.token())

    def check(self, plan: Plan) -> tuple[Finding, ...]:
        return checks.check(self._arm, self._skus, self._services, plan, self.machines)

    def policy(self, config: ClusterConfig) -> str:
        """The commands that give a user the least role for this file."""
        return permissions.commands(config)

    def dry_run(self, plan: Plan) -> tuple[Finding, ...]:
        return tuple(dry_run(self._arm, self._skus, plan, self.places(plan)))

    def machine_facts(self, plan: Plan, names: Sequence[str]) -> tuple[MachineFacts, ...]:
        return self._skus.facts(
            [zones.parse_location(p).region for p in plan.config.placement], names
        )

    def allowances(
        self, machines: Sequence[MachineType], regions: Sequence[str]
    ) -> PartialList[Allowance]:
        return quota.allowances(self._arm, self._skus, machines, regions)

    def places(self, plan: Plan) -> tuple[Location, ...]:
        return zones.places(self._arm, self._skus, self._services, plan)

    def spot_evidence(self, plan: Plan, places: Sequence[Location]) -> tuple[SpotEvidence, ...]:
        return zones.spot_evidence(self._arm, plan, places)

    def machines(
        self, cluster: str | None = None, place: Location | None = None, places: Sequence[str] = ()
    ) -> PartialList[Vm]:
        found = self._holdings.machines(cluster, place)
        return with_proxies(
            found, self._config.network, project=self._arm.subscription, service=self._bastion
        )

    def _bastion(self, machine: Vm) -> tuple[str, ...]:
        named = self._config.network.ssh_proxy
        id = paths.bastion(self._arm.subscription, (named and named.bastion) or "")
        return ssh_service.command(id, machine.id)

    def resources(
        self, cluster: str | None = None, places: Sequence[str] = ()
    ) -> PartialList[Resource]:
        return self._holdings.resources(cluster)

    def create_network(
        self, plan: Plan, place: Location, caller: str, journal: Journal
    ) -> ClusterNetwork:
        repair = self._ends.repair
        callers = network.ssh_sources(self._arm, plan.config.network, caller)
        return network.make(
            self._arm, self._skus, self._services, plan, place, callers, journal, repair
        )

    def is_close(self, network: ClusterNetwork) -> bool:
        return network.proximity is not None

    def launch(self, order: LaunchRequest[ClusterNetwork]) -> Vm:
        return self._vms.launch(order)

    def start(self, machine: Vm, expires: float | None) -> None:
        self._vms.start(machine, expires)

    def move_ends(
        self, machines: Sequence[Vm], expires: float | None, tell: Tell | None = None
    ) -> bool:
        self._ends.move(machines, expires)
        return True

    def missing_ends(self, machines: Sequence[Vm]) -> dict[str, str]:
        return self._ends.missing(machines)

    def repair_ends(self, machines: Sequence[Vm]) -> None:
        """Nothing: `create_network` repairs the ends of all VMs."""

    def serial_log(self, machine: Vm) -> str:
        return serial_log(self._arm, machine)

    def delete(self, machines: Sequence[Vm], resources: Sequence[Resource]) -> None:
        self._removal.delete(machines, resources)

    def delete_from_inside(self, machines: Sequence[Vm], resources: Sequence[Resource]) -> None:
        self._removal.delete_from_inside(machines, resources)
