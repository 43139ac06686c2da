"""`provider: gcp`: instances of Google Compute Engine, or hosts of a TPU, in one project."""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.core import errors
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.model import ClusterConfig, MachineType, Plan
from cloudtrain.core.partial_list import PartialList, SpotEvidence
from cloudtrain.core.protocols import Allowance, Finding, Journal, MachineFacts, Principal
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.answers import answers_by_shape
from cloudtrain.providers.base.driver import CloudDriver, LaunchRequest, Location, Resource, Vm
from cloudtrain.providers.base.provider import CloudProvider
from cloudtrain.providers.base.ssh_access import caller_cidr, with_proxies
from cloudtrain.providers.base.timing import TIMING, Timing
from cloudtrain.providers.base.words import last_lines
from cloudtrain.providers.gcp import (
    checks,
    listing,
    machine_types,
    permissions,
    quota,
    requests,
    resources,
    scheduling,
    ssh_service,
    teardown,
    tpu_hosts,
    tpus,
    zones,
)
from cloudtrain.providers.gcp.client import OPERATION, GcpClient, Json
from cloudtrain.providers.gcp.network import NetworkBuilder
from cloudtrain.providers.gcp.requests import ClusterNetwork
from cloudtrain.providers.gcp.tpus import Tpus

SERIAL_LOG = 16 * 1024
"""Bytes of the log to request."""


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
            return checks.check_tpu(self._api, self._tpus, plan)
        return checks.check(self._api, plan)

    def policy(self, config: ClusterConfig) -> str:
        """The commands that give a user the least role for this file."""
        return permissions.commands(config)

    def machine_facts(self, plan: Plan, names: Sequence[str]) -> tuple[MachineFacts, ...]:
        return machine_types.facts(self._api, lambda: zones.zones(self._api, plan), names)

    def allowances(
        self, machines: Sequence[MachineType], regions: Sequence[str]
    ) -> PartialList[Allowance]:
        return quota.allowances(self._api, machines, regions)

    def places(self, plan: Plan) -> tuple[Location, ...]:
        if self._tpus.needed:
            return checks.tpu_places(self._api, self._tpus, plan)
        return zones.places(self._api, plan)

    def spot_evidence(self, plan: Plan, places: Sequence[Location]) -> tuple[SpotEvidence, ...]:
        return () if self._tpus.needed else zones.spot_evidence(self._api, plan, places)

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

    def refusal(self, machine: Vm) -> errors.CloudError | None:
        """Ask the operation that should have created the VM."""
        if tpu_hosts.is_host(machine):
            return None
        what = f"creating {machine.node.name} in {machine.place}"
        params = {"filter": f"(targetId={machine.id}) (operationType=insert)"}
        path = self._api.path(f"zones/{machine.place.zone}/operations")
        found = self._api.call(what, "GET", path, params=params).get("items") or ()
        failed = (self._api.failure(what, each, path, new_vm=True) for each in found)
        return next(filter(None, failed), None)

    def start(self, machine: Vm, expires: float | None) -> None:
        if tpu_hosts.is_host(machine):
            tpus.start(self._tpus, machine)
        else:
            start(self._api, machine, expires)

    def serial_log(self, machine: Vm) -> str:
        """The end of the log. A negative start counts from the end:
        https://cloud.google.com/compute/docs/reference/rest/v1/instances/getSerialPortOutput"""
        if tpu_hosts.is_host(machine):
            return ""
        what, path = f"serial log of {machine.node.name}", teardown.instance_path(machine)
        params = {"port": "1", "start": str(-SERIAL_LOG)}
        answer = self._api.call(what, "GET", f"{path}/serialPort", params=params)
        return last_lines(str(answer.get("contents") or ""))

    def delete(self, machines: Sequence[Vm], resources: Sequence[Resource]) -> None:
        teardown.delete_all(self._api, self._tpus, machines, resources)

    def delete_from_inside(self, machines: Sequence[Vm], resources: Sequence[Resource]) -> None:
        teardown.delete_from_inside(self._api, machines, resources)


# Launches one VM: creates it or adopts an existing one, and deletes a VM whose creation failed


@dataclass(frozen=True)
class VmLaunch:
    api: GcpClient
    order: LaunchRequest[ClusterNetwork]

    def run(self) -> Vm:
        return self.api.persist(self._attempt)

    @property
    def _what(self) -> str:
        return f"creating {self.order.node.name} in {self.order.place}"

    @property
    def _collection(self) -> str:
        return f"zones/{self.order.place.zone}/instances"

    def _attempt(self) -> Vm:
        body = requests.instance(self.order, self.api.project, now=self.api.timing.clock.now())
        flex = self.order.node.provisioning.market == "flex-start"
        queue = scheduling.queue_seconds(self.order.queue)
        try:
            operation = self.api.run(
                self._what,
                "POST",
                self._collection,
                body=body,
                new_vm=True,
                undo=self._undo,
                accepted=self._is_queued if flex and queue > 0 else None,
            )
        except errors.NameTakenError as taken:
            return self._adopt(taken)
        except errors.NotFoundError as error:  # the zone, the machine type or the image
            raise errors.CloudConfigError(
                error.message, code=error.code, scope=error.scope
            ) from error
        machine = listing.to_vm(self._instance() or {})
        zone, name = self.order.place.zone, self.order.node.name
        return machine or self.order.accepted(str(operation.get("targetId") or f"{zone}/{name}"))

    def _instance(self) -> Json | None:
        name = self.order.node.name
        return self.api.find(f"instance {name}", f"{self._collection}/{name}")

    def _is_queued(self) -> bool:
        """True if the VM waits for capacity: it is listed, deleted like any other, and not billed.

        `PENDING`: "Compute Engine attempts to acquire the necessary resources to start your VM
        until its wait time ends"; then "Compute Engine deletes the Flex-start VM".
        https://cloud.google.com/compute/docs/instances/instance-lifecycle, read 2026-11-24"""
        return (self._instance() or {}).get("status") == "PENDING"

    def _adopt(self, taken: errors.NameTakenError) -> Vm:
        """Adopt the existing VM of that name. Raises BusyError while it is being deleted,
        NameTakenError if it is not ours."""
        instance = self._instance()
        if instance is None:
            self._free_disk(taken)
            raise errors.BusyError(taken.message, hint=taken.hint, code=taken.code) from taken
        machine = listing.to_vm(instance)
        if machine is None or not self._is_wanted(machine):
            raise taken
        if instance.get("status") in listing.LEAVING:
            raise errors.BusyError(
                f"{self._what}: its predecessor is still being deleted", code=taken.code
            )
        if machine.node.state == "stopped":
            start(self.api, machine, self.order.expires)
        return machine

    def _is_wanted(self, machine: Vm) -> bool:
        node, wanted, plan = machine.node, self.order.node, self.order.plan
        same = machine.generation in ("", plan.generation)
        return same and (machine.cluster, node.rank) == (plan.config.name, wanted.rank)

    def _free_disk(self, taken: errors.NameTakenError) -> None:
        """Delete a boot disk that outlived its VM and blocks the name of the new disk."""
        name, zone = self.order.node.name, self.order.place.zone
        path = f"zones/{zone}/disks/{name}"
        found = self.api.find(f"disk {name}", path)
        if found is None or found.get("users"):
            return
        disk = listing.to_disk(found)
        if not isinstance(disk, Resource) or disk.cluster != self.order.plan.config.name:
            raise taken
        teardown.delete(self.api, str(disk), path)

    def _undo(self) -> None:
        """Delete the VM of a failed operation: some, as RESOURCE_NOT_FOUND, leave it behind."""
        machine = listing.to_vm(self._instance() or {})
        if machine is not None and self._is_wanted(machine):
            teardown.delete_vm(self.api, machine)


def start(api: GcpClient, machine: Vm, expires: float | None) -> None:
    """Start a stopped or suspended VM, waiting first if it is still stopping. `maxRunDuration`
    begins anew at each start, so the end of a stopped VM is set as a time instead."""
    path = teardown.instance_path(machine)
    what = f"starting {machine.node.name} in {machine.place}"

    def attempt() -> None:
        status = api.get(what, path).get("status")
        if status in listing.LEAVING:
            raise errors.BusyError(f"{what}: the VM is {status}")
        if status == "SUSPENDED":
            api.run(what, "POST", f"{path}/resume")
        elif listing.STATES.get(str(status)) == "stopped":
            _set_end(api, what, path, expires)
            api.run(what, "POST", f"{path}/start")

    try:
        api.persist(attempt, within=OPERATION)
    except errors.NotFoundError as error:
        hint = "the VM was being deleted: run `cloudtrain up` to recreate it"
        raise errors.NotFoundError(error.message, hint=hint, code=error.code) from error


def _set_end(api: GcpClient, what: str, path: str, expires: float | None) -> None:
    """Set the end of a TERMINATED VM: as documented, setScheduling accepts no other state."""
    instance = api.get(what, path)
    now = api.timing.clock.now()
    body = scheduling.with_end(instance.get("scheduling") or {}, expires, now=now)
    if body != (instance.get("scheduling") or {}):
        api.run(what, "POST", f"{path}/setScheduling", body=body)
    present = instance.get("labels") or {}
    wanted = labels.with_expiry(present, expires)
    if wanted != present:
        given = {"labels": wanted, "labelFingerprint": instance.get("labelFingerprint")}
        api.run(what, "POST", f"{path}/setLabels", body=given)
