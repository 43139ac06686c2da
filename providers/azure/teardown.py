"""Deletes a cluster: deallocates its VMs first, then deletes them with their groups."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

from cloudtrain.core import errors, fence
from cloudtrain.core.moments import since_boot
from cloudtrain.core.parallel import fan_out
from cloudtrain.money import node_parts
from cloudtrain.providers.azure import paths
from cloudtrain.providers.azure.client import ArmClient, ask_or_none
from cloudtrain.providers.azure.expiry import Expiries
from cloudtrain.providers.azure.facts import FACTS
from cloudtrain.providers.azure.listing import disk_gb
from cloudtrain.providers.azure.network import BEING_DELETED, until_deleted
from cloudtrain.providers.azure.vms import Vms
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.answers import typed
from cloudtrain.providers.base.driver import Resource, Vm
from cloudtrain.providers.base.http import CloudAnswer, Tree

GROUP = "resource group"
AT_ONCE = 64
FORCED = {"forceDeletionTypes": "Microsoft.Compute/virtualMachines"}
"""Query for a deletion of VMs by force, without a shutdown:
https://learn.microsoft.com/rest/api/resources/resource-groups/delete"""
SCHEDULE = "Microsoft.DevTestLab/schedules"
KINDS = (
    # In the order in which they can be deleted.
    SCHEDULE,
    "Microsoft.Network/networkInterfaces",
    "Microsoft.Network/publicIPAddresses",
    "Microsoft.Compute/disks",
    "Microsoft.Network/virtualNetworks",
    "Microsoft.Network/networkSecurityGroups",
    "Microsoft.Compute/proximityPlacementGroups",
)
"""All resource types that we create besides VMs and groups."""


FRESH = 0.5
"""Seconds for which an answer is believed that says whose a name is."""
TRIES = 4
T = TypeVar("T")


class SubscriptionTeardown:
    """Deletes our resources in one subscription. Thread-safe."""

    def __init__(self, arm: ArmClient, vms: Vms, ends: Expiries) -> None:
        self._arm = arm
        self._vms = vms
        self._ends = ends

    def delete(self, machines: Sequence[Vm], resources: Sequence[Resource]) -> None:
        """Delete our groups with their contents, and our resources in other groups one by one."""
        groups = [resource for resource in resources if resource.kind == GROUP]
        known = {machine.generation for machine in machines}
        steps: dict[str, Callable[[], None]] = {
            machine.id: partial(self._vms.delete, machine)
            for machine in machines
            if paths.group_of(machine.id) not in {group.name.lower() for group in groups}
        }
        for group in groups:
            mine = [m for m in machines if paths.group_of(m.id) == group.name.lower()]
            steps[f"{GROUP} {group.name}"] = partial(self._drop, group, known, mine)
        try:
            fan_out(list(steps), lambda name: steps[name](), name=paths.last, workers=AT_ONCE)
        finally:
            others = [resource for resource in resources if resource.kind != GROUP]
            for other in sorted(others, key=lambda r: KINDS.index(r.kind)):
                fence.refuse_stale()
                if other.kind == SCHEDULE:
                    self._ends.disarm_orphan(other.id)
                else:
                    self._arm.delete(other.id)

    def delete_from_inside(self, machines: Sequence[Vm], resources: Sequence[Resource]) -> None:
        """Delete the group of the VM that runs this program, with all that is in it: Azure goes on
        when the VM is gone. It is not deallocated first, as it could not send the next call. In a
        group of the user's own, the VM alone: its parts go with it (`deleteOption`)."""
        groups = [resource for resource in resources if resource.kind == GROUP]
        whole = {group.name.lower() for group in groups}
        known = {machine.generation for machine in machines}
        for group in groups:
            there = self._arm.group(group.name)
            _refuse_other(self._vms_of(there), known)
            ends = self._ends.of_group(there)
            self._refuse_anew(group)
            answer = self._arm.call("DELETE", there.itself, query=FORCED)
            self._ends.cancel(ends)
            self._arm.finish("DELETE", there.itself, answer, within=BEING_DELETED)
        for machine in machines:
            if paths.group_of(machine.id) not in whole:
                _refuse_other([self._arm.find(machine.id) or {}], [machine.generation])
                fence.refuse_stale()
                self._arm.delete(machine.id)

    def _drop(self, found: Resource, known: Collection[str], mine: Sequence[Vm]) -> None:
        """Deallocate the VMs of a group, which takes seconds and stops their billing, then delete
        the group, which takes minutes. A group has no id but its name, which another creation may
        use by now: it and its VMs are looked at once more. `known`: generations of the VMs. With a
        VM whose labels cannot be ours, the group stays, and our own are deleted one by one.

        The VMs' ends stay until both are accepted, or the group is gone: if one is refused or
        broken off, Azure still ends the VMs."""
        group = self._arm.group(found.name)
        ends = self._ends.of_group(group)
        vms = _fresh(lambda: self._vms_of(group))
        fence.refuse_stale()
        try:
            _refuse_other(vms, known)
        except errors.NameTakenError:
            fan_out(mine, self._vms.delete, name=lambda machine: machine.node.name)
            raise
        begun, canceled, path = self._deallocate(vms), False, group.itself
        self._refuse_anew(found)
        try:
            answer = self._arm.call("DELETE", path, query=FORCED)
            # Nobody could find these operations after a kill; left, they would end the next cluster
            # of that name.
            canceled = len(begun) == len(vms) and self._ends.cancel(ends)
            self._arm.finish("DELETE", path, answer, within=BEING_DELETED)
        except errors.NotFoundError:
            self._ends.cancel(ends)
            return
        except errors.PermissionsError as refusal:
            raise self._not_deleted(found.name, vms, begun, refusal) from refusal
        except errors.BusyError as error:
            if error.code != "ResourceGroupBeingDeleted":
                raise
        until_deleted(self._arm, found.name, lambda: self._arm.find(path) is None or None)
        if not canceled:
            self._ends.cancel(ends)

    def _refuse_anew(self, listed: Resource) -> None:
        """Raise LookAgainError if the group of that name is another creation's by now."""
        itself = self._arm.group(listed.name).itself
        there = _fresh(lambda: ask_or_none(lambda: self._arm.find(itself)))
        fence.refuse_stale()
        _refuse_other([there or {}], [listed.generation])

    def _vms_of(self, group: paths.Group) -> list[Tree]:
        path = f"{group.path}/providers/Microsoft.Compute/virtualMachines"
        return self._arm.pages_if_told(path)

    def _deallocate(self, vms: Sequence[Tree]) -> dict[str, CloudAnswer]:
        """Begin to deallocate the VMs; the answers by ID. One that is refused is still deleted."""

        def ask(vm: Tree) -> CloudAnswer | None:
            try:
                return self._arm.call("POST", f"{vm['id']}/deallocate")
            except errors.CloudError:
                return None

        answers = fan_out(vms, ask, name=lambda vm: str(vm.get("name")), workers=AT_ONCE)
        return {str(vm["id"]): a for vm, a in zip(vms, answers, strict=True) if a is not None}

    def _not_deleted(
        self,
        name: str,
        vms: Sequence[Tree],
        begun: dict[str, CloudAnswer],
        refusal: errors.CloudError,
    ) -> errors.PermissionsError:
        """The error for a locked group: its machines are no longer billed, all else in it is."""
        still = [str(vm.get("name")) for vm in vms if str(vm["id"]) not in begun]
        for id, answer in begun.items():
            try:
                self._arm.finish("POST", f"{id}/deallocate", answer, within=self._arm.timing.boot)
            except errors.CloudError:
                still.append(paths.last(id))
        words = "deallocated, not deleted" if vms and not still else "not deleted"
        billed = [f"the machine {vm}" for vm in still]
        sizes = [disk_gb(vm.get("properties") or {}) for vm in vms]
        billed += [node_parts.describe(FACTS, sizes)] if vms else []
        text = f"{words}: still billed are {', '.join(billed)}" if billed else words
        return errors.PermissionsError(
            f"{GROUP} {name}: {text}. {refusal.message}",
            hint=refusal.hint,
            scope=refusal.scope,
            code=refusal.code,
        )


def _fresh(ask: Callable[[], T]) -> T:
    """Ask again while the answer took so long that it may be old, at most `TRIES` times."""
    for _ in range(TRIES):
        asked = since_boot()
        found = ask()
        if since_boot() - asked < FRESH:
            break
    return found


def _refuse_other(things: Sequence[Tree], known: Collection[str]) -> None:
    """Raise LookAgainError if one of these is of a generation that was not listed before, and
    NameTakenError if the labels of one cannot be ours."""
    for thing in things:
        parsed = labels.read(typed(thing, "tags", dict, null=True))
        if isinstance(parsed, labels.NotOurs):
            raise errors.NameTakenError(f"{thing.get('name')} {parsed.reason}: it is left alone")
        if parsed is not None and parsed.generation and parsed.generation not in known:
            raise errors.LookAgainError(f"{thing.get('name')} was created anew meanwhile")
