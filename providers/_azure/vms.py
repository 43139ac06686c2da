"""The life of one VM: address, NIC, machine, the end that is armed, and its removal."""

from __future__ import annotations

from cloudtrain.errors import (
    BusyError,
    CloudConfigError,
    CloudError,
    NameTakenError,
    NotFoundError,
    RateError,
    TransientError,
)
from cloudtrain.model import Node
from cloudtrain.providers._azure import bodies, paths
from cloudtrain.providers._azure.client import Answer, Tree
from cloudtrain.providers._azure.connection import Arm, optional
from cloudtrain.providers._azure.ground import Ground
from cloudtrain.providers._cloud import labels
from cloudtrain.providers._cloud.account import Machine, Order
from cloudtrain.providers._cloud.clear import told_with

LONGEST = 24 * 3600.0
"""Seconds: the schedule that ends a VM knows a time of day and no date."""


def refuse_long_life(seconds: float | None) -> None:
    """Raises CloudConfigError for a lifetime that Azure cannot end by itself."""
    if seconds is not None and seconds > LONGEST:
        raise CloudConfigError(
            f"limits.max_lifetime of {seconds / 3600:.3g} h: on Azure a VM is ended by a schedule "
            "that reaches 24 h ahead",
            hint="limits.max_lifetime: 24h or less; a restarted cluster gets as much again",
        )


class Vms:
    """Safe to use from many threads."""

    def __init__(self, arm: Arm) -> None:
        self._arm = arm

    def launch(self, order: Order[Ground]) -> Machine:
        """The VM is there and its allocation known. What was made of a refused one is removed."""
        try:
            self._make(order)
        except (TransientError, RateError, NameTakenError):
            raise  # Nobody knows what came of it; or it is another's.
        except CloudError as refusal:
            with told_with(refusal, lambda *_, **__: None):
                self.remove(order.ground.group, order.node.name, order.place.zone)
            raise
        known = labels.read(order.labels)
        node = order.node
        return Machine(
            cluster=order.plan.config.name,
            node=Node(
                name=node.name,
                role=node.role,
                index=node.index,
                state="starting",
                address="",
                internal="",
                placement=str(order.place),
                machine=node.machine or "",
                spot=node.spot,
                expires=order.expires,
            ),
            place=order.place,
            id=order.ground.group.vm(node.name),
            owner=known.owner if known else "",
        )

    def _make(self, order: Order[Ground]) -> None:
        ground, node, place = order.ground, order.node, order.place
        if order.expires is not None:
            # A minute for the time since it was counted.
            refuse_long_life(order.expires - self._arm.pace.now() - 60.0)
        region, tags = place.region, order.labels
        address, nic, vm = (
            ground.group.address(node.name, place.zone),
            ground.group.nic(node.name),
            ground.group.vm(node.name),
        )
        machine = bodies.machine(
            region,
            place.zone,
            tags,
            node=node,
            image=order.plan.config.image,
            nic=nic,
            user_data=order.user_data,
            public_key=order.public_key,
            proximity=ground.proximity,
        )
        private = order.plan.config.network.private
        if not private:
            self._arm.put(address, bodies.address(region, place.zone, tags))
        interface = bodies.nic(
            region,
            tags,
            subnet=ground.subnet,
            firewall=ground.firewall,
            address=None if private else address,
            fast=(node.machine or "").lower() in ground.fast,
        )
        self._arm.put(nic, interface)
        begun = self._begin(vm, machine)
        armed = order.expires is None or self._armed_early(order, order.expires)
        if begun is None:
            self._arm.settle(f"PUT virtualMachines/{node.name}", vm, within=self._arm.pace.boot)
        else:
            self._arm.made(vm, begun, within=self._arm.pace.boot)
        if order.expires is not None and not armed:
            self._arm_end(ground.group, node.name, region, tags, order.expires)

    def _begin(self, path: str, body: Tree) -> Answer | None:
        """None where it is being made already: by an earlier call whose answer was lost."""
        try:
            return self._arm.call("PUT", path, body, retried=BusyError)
        except BusyError:
            if self._arm.find(path) is None:
                raise
            return None

    def _armed_early(self, order: Order[Ground], expires: float) -> bool:
        """As soon as the VM is accepted; later where the schedule wants one that is finished."""
        try:
            self._arm_end(
                order.ground.group, order.node.name, order.place.region, order.labels, expires
            )
        except (NotFoundError, BusyError, CloudConfigError):
            return False
        return True

    def _arm_end(
        self, group: paths.Group, name: str, region: str, tags: bodies.Tags, expires: float
    ) -> None:
        body = bodies.schedule(region, tags, vm=group.vm(name), expires=expires)
        self._arm.put(group.schedule(name), body)

    def mend_ends(self, group: paths.Group) -> None:
        """A schedule for each VM whose creation was cut off before it got one."""
        vms = self._arm.pages(f"{group.path}/providers/Microsoft.Compute/virtualMachines")
        schedules = f"{group.path}/providers/Microsoft.DevTestLab/schedules"
        told = optional(lambda: self._arm.pages(schedules)) or []
        armed = {str(schedule.get("name", "")).lower() for schedule in told}
        for vm in vms:
            name, tags = str(vm.get("name", "")), vm.get("tags") or {}
            known = labels.read(tags)
            if known is None or known.expires is None:
                continue
            if paths.last(group.schedule(name)).lower() not in armed:
                region = str(vm.get("location", ""))
                self._arm_end(group, name, region, tags, known.expires)

    def start(self, machine: Machine, lifetime: float | None) -> None:
        """A stopped one, armed anew for `lifetime` seconds before it costs anything."""
        group, name = _where(machine)
        path = group.vm(name)
        if lifetime is not None:
            refuse_long_life(lifetime)
            expires = self._arm.pace.now() + lifetime
            tags = {**(self._arm.get(path).get("tags") or {}), labels.EXPIRES: str(int(expires))}
            self._arm.finish("PATCH", path, self._arm.call("PATCH", path, {"tags": tags}))
            self._arm_end(group, name, machine.place.region, tags, expires)
        begun = self._arm.call("POST", f"{path}/start", retried=BusyError)
        self._arm.finish("POST", f"{path}/start", begun, within=self._arm.pace.boot)

    def remove(self, group: paths.Group, name: str, zone: str) -> None:
        """The VM, then what `deleteOption` should have deleted with it."""
        path = group.vm(name)
        vm = self._arm.find(path)
        self._arm.delete(path, within=self._arm.pace.boot)
        left = [group.schedule(name), group.nic(name), group.address(name, zone), *_disks(vm)]
        for each in left:
            self._arm.delete(each)

    def erase(self, machine: Machine) -> None:
        self.remove(*_where(machine), machine.place.zone)


def _where(machine: Machine) -> tuple[paths.Group, str]:
    found = paths.vm_of(machine.id)
    assert found is not None, machine.id
    return found


def _disks(vm: Tree | None) -> list[str]:
    """The one that was made with it: disks that somebody attached later stay."""
    profile = ((vm or {}).get("properties") or {}).get("storageProfile") or {}
    id = ((profile.get("osDisk") or {}).get("managedDisk") or {}).get("id")
    return [str(id)] if id else []
