"""Creates, starts and deletes one VM with its address, NIC and end."""

from __future__ import annotations

from typing import Any

from cloudtrain.core import errors, fence
from cloudtrain.providers.azure import listing, paths, requests
from cloudtrain.providers.azure.client import ArmClient
from cloudtrain.providers.azure.expiry import Expiries, where
from cloudtrain.providers.azure.faults import TABLE, refuses_boot
from cloudtrain.providers.azure.network import ClusterNetwork, ours
from cloudtrain.providers.azure.shared_poll import NOT_DONE
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.answers import typed
from cloudtrain.providers.base.driver import LaunchRequest, Vm
from cloudtrain.providers.base.http import CloudAnswer, Tree
from cloudtrain.providers.base.teardown import roll_back
from cloudtrain.providers.base.words import last_lines

NO_IMAGE = frozenset({"PlatformImageNotFound", "ImageNotFound"})


class Vms:
    """VMs of one subscription. Thread-safe."""

    def __init__(self, arm: ArmClient, ends: Expiries) -> None:
        self._arm = arm
        self._ends = ends

    def launch(self, order: LaunchRequest[ClusterNetwork]) -> Vm:
        """Launch a VM and wait for its allocation. If it is refused, delete what it had."""
        try:
            self._make(order)
        except (errors.TransientError, errors.RateError, errors.NameTakenError):
            raise  # its outcome is unknown, or the VM is another user's
        except errors.CloudError as refusal:
            group, name, zone = order.network.group, order.node.name, order.place.zone
            mine = order.plan.generation
            error = roll_back(refusal, lambda: self.remove(group, name, zone, mine))
            raise error from refusal.__cause__
        return order.accepted(order.network.group.vm(order.node.name))

    def _make(self, order: LaunchRequest[ClusterNetwork]) -> None:
        network, node, place = order.network, order.node, order.place
        if order.expires is not None:
            self._ends.refuse(order.expires - self._arm.timing.clock.now(), place.region)
        region, tags, group = place.region, order.labels, network.group
        address, nic = group.address(node.name, place.zone), group.nic(node.name)
        vm = group.vm(node.name)
        if self._arm.given:
            for path in (address, nic, vm):
                ours(self._arm, path, order.plan.config.name)
        machines = bodies(self._arm, order)  # before anything is created: an image may be invalid
        private = order.plan.config.network.private
        if not private:
            self._arm.put(address, requests.address(region, place.zone, tags))
        interface = requests.nic(
            region,
            tags,
            subnet=network.subnet,
            firewall=network.firewall,
            address=None if private else address,
            fast=(node.machine or "").lower() in network.fast,
            internal=node.internal,
        )
        self._arm.put(nic, interface)
        begun = self._begin(vm, *machines)
        armed = order.expires is None or self._armed_early(order, order.expires)
        self._await(node.name, vm, begun)
        if requests.has_gpu(node):
            _refuse_secure_boot(self._arm.get(vm))
        if order.expires is not None and not armed:
            self._ends.arm(network.group, node.name, region, tags, order.expires)

    def _await(self, name: str, path: str, begun: CloudAnswer | None) -> None:
        """Wait until the VM is created. Raises CapacityError (`stuck`) if that takes too long."""
        within = self._arm.timing.boot
        try:
            if begun is None:
                self._arm.settle(f"PUT virtualMachines/{name}", path, within=within)
            else:
                self._arm.made(path, begun, within=within)
        except errors.TransientError as error:
            if error.code != NOT_DONE:
                raise
            raise listing.stuck(within) from error

    def _begin(self, path: str, body: Tree, *others: Tree) -> CloudAnswer | None:
        """Begin to create the VM; None if an earlier call, whose answer was lost, has begun.
        `others`: images to try in turn if the first does not exist."""
        try:
            return self._arm.call("PUT", path, body, retried=errors.BusyError)
        except errors.BusyError:
            if self._arm.find(path) is None:
                raise
            return None
        except errors.CloudConfigError as error:
            if others and error.code in NO_IMAGE:
                return self._begin(path, *others)
            weaker = requests.with_next_boot(body)
            if weaker == body or not refuses_boot(error):
                raise
            return self._begin(path, weaker, *map(requests.with_next_boot, others))

    def _armed_early(self, order: LaunchRequest[ClusterNetwork], expires: float) -> bool:
        """Set the end once the VM is accepted; False if its schedule needs the VM to be ready."""
        try:
            return self._ends.arm(
                order.network.group, order.node.name, order.place.region, order.labels, expires
            )
        except (errors.NotFoundError, errors.BusyError, errors.CloudConfigError):
            return False

    def start(self, machine: Vm, expires: float | None) -> None:
        """Start a stopped VM; its end is set before the VM is billed."""
        group, name = where(machine)
        path = group.vm(name)
        if expires is not None:
            self._ends.move_one(machine, expires)
        begun = self._arm.call("POST", f"{path}/start", retried=errors.BusyError)
        self._arm.finish("POST", f"{path}/start", begun, within=self._arm.timing.boot)

    def remove(self, group: paths.Group, name: str, zone: str, generation: str) -> None:
        """Delete the VM, then what `deleteOption` should have deleted with it. Raises
        LookAgainError if another creation has made a VM of that name."""
        path = group.vm(name)
        vm = self._arm.find(path)
        known = labels.read(typed(vm or {}, "tags", dict, null=True))
        if isinstance(known, labels.NotOurs):
            raise errors.NameTakenError(f"VM {name} {known.reason}")
        if known is not None and known.generation not in ("", generation):
            raise errors.LookAgainError(f"{name} was created anew meanwhile")
        fence.refuse_stale()
        self._arm.delete(path, within=self._arm.timing.boot)
        self._ends.disarm(group, name)
        # The disk that was created with the VM; disks attached later are kept.
        profile = ((vm or {}).get("properties") or {}).get("storageProfile") or {}
        disk = ((profile.get("osDisk") or {}).get("managedDisk") or {}).get("id")
        for each in filter(None, (group.nic(name), group.address(name, zone), disk)):
            fence.refuse_stale()
            self._arm.delete(str(each))

    def delete(self, machine: Vm) -> None:
        self.remove(*where(machine), machine.place.zone, machine.generation)


def bodies(arm: ArmClient, order: LaunchRequest[ClusterNetwork]) -> list[requests.Body]:
    """The bodies of the VM, with one image each, to be tried in turn."""
    network, node, config = order.network, order.node, order.plan.config
    return [
        requests.machine(
            order.place.region,
            order.place.zone,
            order.labels,
            node=node,
            image=image,
            nic=network.group.nic(node.name),
            user_data=order.user_data,
            public_key=order.public_key,
            proximity=network.proximity,
            identity=paths.identity(arm.subscription, config.identity) if config.identity else None,
            reservation=network.reserved.get(node.provisioning.name),
            disk_key=paths.disk_key(arm.subscription, config.disk_key_in(order.place.region)),
            plan=network.plans.get(image),
            nvme=(node.machine or "").lower() in network.nvme,
        )
        for image in network.images.get(node.name) or requests.images_of(config.image, node)
    ]


def _refuse_secure_boot(vm: Tree) -> None:
    """Raise CloudConfigError if Azure has enabled Secure Boot all the same, unsaid."""
    profile = (vm.get("properties") or {}).get("securityProfile") or {}
    if (profile.get("uefiSettings") or {}).get("secureBootEnabled"):
        raise errors.CloudConfigError(
            "Azure created it with Secure Boot, with which the kernel refuses NVIDIA's modules",
            what=str(vm.get("name")),
            hint="run `az feature register --namespace Microsoft.Compute --name "
            "UseStandardSecurityType`, then try again",
        )


# ── Reads the serial log from managed boot diagnostics, free and without a storage key ────────


MINUTES = "10"
"""Validity of the link to the log, in minutes."""
TIMEOUT = 20.0
"""Seconds without data before a request times out."""


def serial_log(arm: ArmClient, machine: Vm) -> str:
    """The end of the serial log:
    https://learn.microsoft.com/rest/api/compute/virtual-machines/retrieve-boot-diagnostics-data"""
    group, name = where(machine)
    path = f"{group.vm(name)}/retrieveBootDiagnosticsData"
    answer = arm.call("POST", path, query={"sasUriExpirationTimeInMinutes": MINUTES})
    body: Any = answer.body
    url = body.get("serialConsoleLogBlobUri") if isinstance(body, dict) else None
    if not url:
        return ""
    import requests

    # The link is presigned: it is fetched without our token, and no error shows it.
    with TABLE.mapped(f"GET serial log of {name}"):
        try:
            log = requests.get(str(url), timeout=TIMEOUT)
        except requests.RequestException as error:
            raise ConnectionError(type(error).__name__) from None
    return last_lines(log.content.decode("utf-8", "replace")) if log.ok else ""
