"""`provider: gcp`: instances of Google Compute Engine, or hosts of a TPU, in one project."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cloudtrain.core.errors import CloudError
from cloudtrain.core.model import ClusterConfig, MachineType, Plan
from cloudtrain.core.partial_list import PartialList, SpotEvidence
from cloudtrain.core.protocols import Allowance, Finding, Journal, MachineFacts, Principal
from cloudtrain.providers.base.answers import answers_by_shape
from cloudtrain.providers.base.driver import (
    CloudDriver,
    LaunchRequest,
    Location,
    Resource,
    Vm,
)
from cloudtrain.providers.base.provider import CloudProvider
from cloudtrain.providers.base.ssh_access import caller_cidr, with_proxies
from cloudtrain.providers.base.timing import TIMING, Timing
from cloudtrain.providers.gcp import (
    checks,
    machine_types,
    permissions,
    quota,
    resources,
    spot,
    ssh_service,
    teardown,
    tpu_checks,
    tpu_hosts,
    tpus,
    zones,
)
from cloudtrain.providers.gcp.client import GcpClient
from cloudtrain.providers.gcp.network import NetworkBuilder
from cloudtrain.providers.gcp.requests import ClusterNetwork
from cloudtrain.providers.gcp.tpus import Tpus
from cloudtrain.providers.gcp.vms import VmLaunch, refusal, serial_log, start


def provider(config: ClusterConfig) -> CloudProvider[ClusterNetwork]:
    account = GcpDriver(config)
    return CloudProvider(
        account, caller=lambda: caller_cidr(config, account.endpoint, proxy=ssh_service.RANGE)
    )


@answers_by_shape
class GcpDriver(CloudDriver[ClusterNetwork]):
    """Driver for one project. Sends no request before its first use. It moves no ends: Google
    accepts setScheduling for stopped VMs only."""

    name = "gcp"
    ends_by_shutdown = False
    """A VM that shuts itself down is stopped, its disk billed. `maxRunDuration` ends it."""
    at_once = 512
    """Each waits for its operation. Its three calls count towards three quotas of 1,500 a minute,
    for changes, reads and operations: https://cloud.google.com/compute/api-quota (2026-11)."""
    soonest_end = 60.0

    def __init__(self, config: ClusterConfig, timing: Timing = TIMING) -> None:
        self._config = config
        self._api = GcpClient(config, timing)
        self._tpus = Tpus(self._api, config)

    @property
    def endpoint(self) -> str | None:
        return self._api.endpoint

    def principal(self) -> Principal | None:
        return self._api.credentials.principal()

    def check(self, plan: Plan) -> tuple[Finding, ...]:
        if self._tpus.needed:
            return tpu_checks.check(self._api, self._tpus, plan)
        return checks.check(self._api, plan)

    def policy(self, config: ClusterConfig) -> str:
        """The commands that give a user the least role for this file."""
        return permissions.commands(config)

    def machine_facts(self, plan: Plan, names: Sequence[str]) -> tuple[MachineFacts, ...]:
        return machine_types.facts(self._api, self._zones_of(plan), names)

    def allowances(
        self, machines: Sequence[MachineType], regions: Sequence[str]
    ) -> PartialList[Allowance]:
        return quota.allowances(self._api, machines, regions)

    def _zones_of(self, plan: Plan) -> Iterator[Location]:
        """Query the placement only if its zones are wanted."""
        for those in zones.zones(self._api, plan).values():
            yield from those

    def places(self, plan: Plan) -> tuple[Location, ...]:
        if self._tpus.needed:
            return tpu_checks.places(self._api, self._tpus, plan)
        return zones.places(self._api, plan)

    def spot_evidence(self, plan: Plan, places: Sequence[Location]) -> tuple[SpotEvidence, ...]:
        return () if self._tpus.needed else spot.evidence(self._api, plan, places)

    def machines(
        self, cluster: str | None = None, place: Location | None = None, places: Sequence[str] = ()
    ) -> PartialList[Vm]:
        found = resources.machines(self._api, self._tpus, cluster, place, places)
        project = self._api.project

        def iap(machine: Vm) -> tuple[str, ...]:
            return ssh_service.command(project, machine.place.zone, machine.node.name)

        return with_proxies(found, self._config.network, project=project, service=iap)

    def resources(
        self, cluster: str | None = None, places: Sequence[str] = ()
    ) -> PartialList[Resource]:
        return resources.resources(self._api, cluster)

    def create_network(
        self, plan: Plan, place: Location, caller: str, journal: Journal
    ) -> ClusterNetwork:
        is_tpu = self._tpus.needed
        return NetworkBuilder(self._api, plan, place, caller, journal, tpu=is_tpu).create()

    def is_close(self, network: ClusterNetwork) -> bool:
        return network.policy is not None

    def launch(self, order: LaunchRequest[ClusterNetwork]) -> Vm:
        if self._tpus.needed:
            return tpus.TpuLaunch(api=self._api, tpus=self._tpus, order=order).run()
        return VmLaunch(self._api, order).run()

    def refusal(self, machine: Vm) -> CloudError | None:
        return None if tpu_hosts.is_host(machine) else refusal(self._api, machine)

    def start(self, machine: Vm, expires: float | None) -> None:
        if tpu_hosts.is_host(machine):
            tpus.start(self._tpus, machine)
        else:
            start(self._api, machine, expires)

    def serial_log(self, machine: Vm) -> str:
        return "" if tpu_hosts.is_host(machine) else serial_log(self._api, machine)

    def delete(self, machines: Sequence[Vm], resources: Sequence[Resource]) -> None:
        teardown.delete_all(self._api, self._tpus, machines, resources)

    def delete_from_inside(self, machines: Sequence[Vm], resources: Sequence[Resource]) -> None:
        teardown.delete_from_inside(self._api, machines, resources)
