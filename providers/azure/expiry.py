"""Has Azure itself end the VMs: by a deallocation at a date and time, with a daily schedule as a
fallback.

The deallocation is an operation of Microsoft.ComputeSchedule. The fallback is a schedule of
Microsoft.DevTestLab, which has a time of day but no date. As operations cannot be listed, a tag of
the schedule holds the operation's ID.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cloudtrain.errors import CloudConfigError, CloudError, CredentialsError, TransientError
from cloudtrain.parallel import fan_out
from cloudtrain.providers.azure import listing, paths, requests
from cloudtrain.providers.azure.client import ArmClient, ask_or_none
from cloudtrain.providers.azure.http import Tree
from cloudtrain.providers.azure.resource_providers import DEADLINES, ResourceProviders
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.driver import Vm
from cloudtrain.providers.base.words import lasting

SOONEST = 35 * 60.0
"""Minimum lead time in seconds. According to Microsoft's support, a schedule runs on its first day
only if it was created 31 minutes ahead; for a changed schedule the documentation says 30:
https://learn.microsoft.com/azure/devtest-labs/devtest-lab-auto-shutdown
"""
CHANGED_LATE = 31 * 60.0
"""Minimum seconds before a schedule's old time for a change to take effect on the same day; a later
change takes effect the next day.
"""
LONGEST = 24 * 3600.0
"""Maximum lead time of an end that a schedule can hold, in seconds."""
SLACK = 60.0
"""Tolerance in seconds: this much time may have passed since the end was computed."""
OPERATION = "cloudtrain-deadline"
"""Tag of a schedule that holds the ID of the operation that ends its VM."""
PENDING = frozenset({"pendingscheduling", "scheduled", "pendingexecution", "executing", "unknown"})


def refuse_lifetime(seconds: float | None, *, far: bool) -> None:
    """Raise CloudConfigError for a lifetime that Azure cannot end in time.

    `far`: True if Microsoft.ComputeSchedule is available, which can end a VM more than a day ahead.
    """
    if seconds is None:
        return
    words = f"limits.max_lifetime of {lasting(seconds)}: on Azure, an end"
    if seconds < SOONEST:
        raise CloudConfigError(
            f"{words} less than {lasting(SOONEST)} ahead may come a day late",
            hint=f"set limits.max_lifetime to {SOONEST / 60:.0f}m or more; to end sooner, run "
            "`cloudtrain down`",
        )
    if seconds > LONGEST and not far:
        raise CloudConfigError(
            f"{words} more than 24 h ahead needs Microsoft.ComputeSchedule, which is not available "
            "here",
            hint="set limits.max_lifetime to 24h or less, or run az provider register --namespace "
            "Microsoft.ComputeSchedule",
        )


@dataclass(frozen=True)
class _Armed:
    """The end that a VM's schedule sets."""

    schedule: Tree | None

    @property
    def operation(self) -> str:
        return str((self._tags).get(OPERATION) or "")

    @property
    def expires(self) -> str:
        return str((self._tags).get(labels.EXPIRES) or "")

    @property
    def enabled(self) -> bool:
        properties = (self.schedule or {}).get("properties") or {}
        return str(properties.get("status", "")).lower() == "enabled"

    @property
    def _tags(self) -> Mapping[str, str]:
        return (self.schedule or {}).get("tags") or {}


class Expiries:
    """Sets, moves and removes the ends of VMs in Azure. Thread-safe. Raises CloudError."""

    def __init__(self, arm: ArmClient, services: ResourceProviders) -> None:
        self._arm = arm
        self._services = services

    def refuse(self, ahead: float, region: str) -> None:
        """Raise CloudConfigError if Azure cannot set an end `ahead` seconds from now in this
        region.
        """
        if ahead > LONGEST + SLACK:
            refuse_lifetime(ahead, far=self._services.reach_far(region))

    def arm(
        self, group: paths.Group, name: str, region: str, tags: requests.Tags, expires: float
    ) -> bool:
        """Have Azure end the VM at `expires`, by both services if both are available.

        Returns False if Microsoft.ComputeSchedule refused, perhaps because the VM is not ready.
        """
        ahead = expires - self._arm.timing.clock.now()
        known = _Armed(self._arm.find(group.schedule(name)))
        operation = self._deadline(group.vm(name), region, expires, known.operation)
        if not operation and ahead > LONGEST + SLACK:
            refuse_lifetime(ahead, far=False)
        own = {**tags, labels.EXPIRES: str(int(expires))}
        own = {**own, OPERATION: operation} if operation else own
        self._daily(group, name, region, own, expires, known.schedule)
        return operation != ""

    def move(self, machines: Sequence[Vm], expires: float | None) -> None:
        """Move the ends. The tags change first, so that `repair` can complete an
        interrupted move.
        """
        if expires is None:
            fan_out(machines, self._drop, name=lambda m: m.node.name)
            return
        ahead = expires - self._arm.timing.clock.now()
        for region in {machine.place.region for machine in machines}:
            self.refuse(ahead, region)
        expires = max(expires, self._arm.timing.clock.now() + SOONEST)
        fan_out(machines, lambda m: self.move_one(m, expires), name=lambda m: m.node.name)

    def move_one(self, machine: Vm, expires: float) -> None:
        group, name = where(machine)
        path = group.vm(name)
        tags = {**(self._arm.get(path).get("tags") or {}), labels.EXPIRES: str(int(expires))}
        self._arm.finish("PATCH", path, self._arm.call("PATCH", path, {"tags": tags}))
        self.arm(group, name, machine.place.region, tags, expires)

    def _drop(self, machine: Vm) -> None:
        """Remove a VM's end. The tag is removed last: `repair` would otherwise set the end in the
        tag again.
        """
        group, name = where(machine)
        path = group.vm(name)
        self.disarm(group, name)
        tags = labels.with_expiry(self._arm.get(path).get("tags") or {}, None)
        self._arm.finish("PATCH", path, self._arm.call("PATCH", path, {"tags": tags}))

    def repair(self, group: paths.Group, cluster: str) -> None:
        """Set the ends that an interrupted creation or move of the cluster did not set."""
        vms = self._arm.pages(f"{group.path}/providers/Microsoft.Compute/virtualMachines")
        armed = {str(one.get("name", "")).lower(): _Armed(one) for one in self._schedules(group)}
        now = self._arm.timing.clock.now()
        for vm in vms:
            name, tags = str(vm.get("name", "")), vm.get("tags") or {}
            region, known = listing.plain(str(vm.get("location", ""))), labels.read(tags)
            if known is None or known.cluster != cluster:
                continue
            if known.expires is None or known.expires <= now:
                continue
            found = armed.get(paths.last(group.schedule(name)).lower(), _Armed(None))
            lacks = self._services.reach_far(region) and not found.operation
            lacks |= known.expires - now <= LONGEST and not found.enabled
            if lacks or found.expires != str(int(known.expires)):
                self.arm(group, name, region, tags, max(known.expires, now + SOONEST))

    def disarm(self, group: paths.Group, name: str) -> None:
        """Remove a VM's end before the VM is deleted; otherwise it would end a later VM of the same
        name.
        """
        found = self._arm.find(group.schedule(name))
        if found is not None:
            self._cancel_all([found])
            self._arm.delete(group.schedule(name))

    def disarm_all(self, group: paths.Group) -> None:
        """Remove the ends of all VMs in a group before the group is deleted."""
        self._cancel_all(self._schedules(group))

    def _schedules(self, group: paths.Group) -> list[Tree]:
        path = f"{group.path}/providers/Microsoft.DevTestLab/schedules"
        return ask_or_none(lambda: self._arm.pages(path)) or []

    # ── Date and time ────────────────────────────────────────────────────────

    def _deadline(self, vm: str, region: str, expires: float, old: str) -> str | None:
        """Schedule the deallocation. Returns the operation's ID; "" if Azure refuses it, None if
        the service is not available.
        """
        if not self._services.reach_far(region):
            return None
        if old and self._stands(region, old, expires):
            return old
        made = self._submit(region, vm, expires)
        if old:
            self._cancel(region, [old])
        if old and not made:  # perhaps because a VM can have only one operation
            made = self._submit(region, vm, expires)
        if made and self._stands(region, made, expires) is False:
            raise TransientError(f"{paths.last(vm)}: Azure accepted its end but reports another")
        return made

    def _submit(self, region: str, vm: str, expires: float) -> str:
        """Submit the operation and return its ID; "" if Azure refuses it. A refusal does not fail
        the VM: the schedule remains as a fallback.
        """
        asked = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{vm} {int(expires)}"))
        answer = self._ask(requests.SUBMIT, region, requests.deadline([vm], expires, asked))
        for result in (answer or {}).get("results") or ():
            operation = result.get("operation") or {}
            if not result.get("errorCode") and operation.get("operationId"):
                return str(operation["operationId"])
        return ""

    def _stands(self, region: str, operation: str, expires: float) -> bool | None:
        """True if the operation is still scheduled for `expires`, False if it is not, None if Azure
        does not report it.
        """
        answer = self._ask(requests.STATUS, region, requests.operations([operation]))
        for result in (answer or {}).get("results") or ():
            known = result.get("operation") or {}
            moment = listing.unix_time(known.get("deadline") or known.get("deadLine"))
            state = str(known.get("state", "")).lower()
            if moment is not None and state:
                return state in PENDING and abs(moment - expires) < 60.0
        return None

    def _cancel(self, region: str, operations: Sequence[str]) -> None:
        self._ask(requests.CANCEL, region, requests.operations(operations))

    def _cancel_all(self, schedules: Iterable[Tree]) -> None:
        by_region: dict[str, list[str]] = {}
        for schedule in schedules:
            if operation := _Armed(schedule).operation:
                region = listing.plain(str(schedule.get("location", "")))
                by_region.setdefault(region, []).append(operation)
        for region, operations in by_region.items():
            self._cancel(region, operations)

    def _ask(self, what: str, region: str, body: Tree) -> Tree | None:
        path = f"{self._arm.path}/providers/{DEADLINES}/locations/{region}/{what}"
        try:
            answer = self._arm.call("POST", path, body).body
        except CredentialsError:
            raise
        except CloudError:
            return None
        return answer if isinstance(answer, dict) else None

    # ── Time of day ──────────────────────────────────────────────────────────

    def _daily(
        self,
        group: paths.Group,
        name: str,
        region: str,
        tags: requests.Tags,
        expires: float,
        found: Tree | None,
    ) -> None:
        """Create the daily schedule and read it back, to verify that it has the right time."""
        path, now = group.schedule(name), self._arm.timing.clock.now()
        enabled = expires - now <= LONGEST + SLACK
        body = requests.schedule(region, tags, vm=group.vm(name), expires=expires, enabled=enabled)
        if found is not None and requests.same_schedule(found, body):
            if dict(found.get("tags") or {}) != dict(tags):
                self._arm.call("PATCH", path, {"tags": dict(tags)})
            return
        if found is not None and requests.seconds_to(found, now) < CHANGED_LATE:
            self._arm.delete(path)
        self._arm.put(path, body)
        if not requests.same_schedule(self._arm.get(path), body):
            raise TransientError(f"{name}: Azure accepted its schedule but reports another")


def where(machine: Vm) -> tuple[paths.Group, str]:
    found = paths.vm_of(machine.id)
    assert found is not None, machine.id
    return found
