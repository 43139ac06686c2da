"""The end of a VM, held by Azure: a deallocation at a date and time, a daily schedule behind it.

The first is an operation of Microsoft.ComputeSchedule, which nobody can list: its id is a tag of
the second, a schedule of Microsoft.DevTestLab that knows a time of day and no date.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cloudtrain.errors import CloudConfigError, CloudError, CredentialsError, TransientError
from cloudtrain.fan_out import fan_out
from cloudtrain.providers._azure import bodies, listing, paths
from cloudtrain.providers._azure.client import Tree
from cloudtrain.providers._azure.connection import Arm, optional
from cloudtrain.providers._azure.services import DEADLINES, Services
from cloudtrain.providers._cloud import labels
from cloudtrain.providers._cloud.account import Machine
from cloudtrain.providers._cloud.words import lasting

SOONEST = 35 * 60.0
"""Seconds. A schedule runs on its first day only where it was made 31 minutes ahead, as Microsoft's
support says; 30 are told for one that is changed:
https://learn.microsoft.com/azure/devtest-labs/devtest-lab-auto-shutdown"""
CHANGED_LATE = 31 * 60.0
"""Seconds before its old time in which a schedule's new time takes effect on the next day only."""
LONGEST = 24 * 3600.0
"""Seconds that a schedule reaches ahead."""
SLACK = 60.0
"""Seconds since an end was counted."""
OPERATION = "cloudtrain-deadline"
"""The tag of a schedule with the id of the operation that ends its VM."""
PENDING = frozenset({"pendingscheduling", "scheduled", "pendingexecution", "executing", "unknown"})


def refuse_lifetime(seconds: float | None, *, far: bool) -> None:
    """Raises CloudConfigError for one that Azure cannot end in time. `far`: more than a day ahead
    can be armed, by Microsoft.ComputeSchedule."""
    if seconds is None:
        return
    words = f"limits.max_lifetime of {lasting(seconds)}: on Azure an end"
    if seconds < SOONEST:
        raise CloudConfigError(
            f"{words} that is less than {lasting(SOONEST)} ahead may come a day late",
            hint=f"limits.max_lifetime: {SOONEST / 60:.0f}m or more; `cloudtrain down` ends sooner",
        )
    if seconds > LONGEST and not far:
        raise CloudConfigError(
            f"{words} is held by a schedule that reaches 24 h ahead: Microsoft.ComputeSchedule, "
            "which reaches farther, is not to be had here",
            hint="limits.max_lifetime: 24h or less, or az provider register --namespace "
            "Microsoft.ComputeSchedule",
        )


@dataclass(frozen=True)
class _Armed:
    """What a VM's schedule tells."""

    schedule: Tree | None

    @property
    def operation(self) -> str:
        return str((self._tags).get(OPERATION) or "")

    @property
    def expires(self) -> str:
        return str((self._tags).get(labels.EXPIRES) or "")

    @property
    def enabled(self) -> bool:
        told = (self.schedule or {}).get("properties") or {}
        return str(told.get("status", "")).lower() == "enabled"

    @property
    def _tags(self) -> Mapping[str, str]:
        return (self.schedule or {}).get("tags") or {}


class Ends:
    """Safe to use from many threads. Raises CloudError."""

    def __init__(self, arm: Arm, services: Services) -> None:
        self._arm = arm
        self._services = services

    def refuse(self, ahead: float, region: str) -> None:
        """Raises CloudConfigError for an end so many seconds ahead that cannot be held there."""
        if ahead > LONGEST + SLACK:
            refuse_lifetime(ahead, far=self._services.reach_far(region))

    def arm(
        self, group: paths.Group, name: str, region: str, tags: bodies.Tags, expires: float
    ) -> bool:
        """The VM ends at `expires`, by both where both can be had. False: the first one refused,
        perhaps as the VM is not finished."""
        ahead = expires - self._arm.pace.now()
        known = _Armed(self._arm.find(group.schedule(name)))
        operation = self._deadline(group.vm(name), region, expires, known.operation)
        if not operation and ahead > LONGEST + SLACK:
            refuse_lifetime(ahead, far=False)
        own = {**tags, labels.EXPIRES: str(int(expires))}
        own = {**own, OPERATION: operation} if operation else own
        self._daily(group, name, region, own, expires, known.schedule)
        return operation != ""

    def move(self, machines: Sequence[Machine], expires: float | None) -> None:
        """Their tags say it first: `mend` goes on where this is cut off."""
        if expires is None:
            fan_out(machines, self._drop, name=lambda m: m.node.name)
            return
        ahead = expires - self._arm.pace.now()
        for region in {machine.place.region for machine in machines}:
            self.refuse(ahead, region)
        expires = max(expires, self._arm.pace.now() + SOONEST)
        fan_out(machines, lambda m: self.move_one(m, expires), name=lambda m: m.node.name)

    def move_one(self, machine: Machine, expires: float) -> None:
        group, name = where(machine)
        path = group.vm(name)
        tags = {**(self._arm.get(path).get("tags") or {}), labels.EXPIRES: str(int(expires))}
        self._arm.finish("PATCH", path, self._arm.call("PATCH", path, {"tags": tags}))
        self.arm(group, name, machine.place.region, tags, expires)

    def _drop(self, machine: Machine) -> None:
        """No end any more; its tag goes last, as `mend` arms what the tag says."""
        group, name = where(machine)
        path = group.vm(name)
        self.disarm(group, name)
        tags = labels.with_end(self._arm.get(path).get("tags") or {}, None)
        self._arm.finish("PATCH", path, self._arm.call("PATCH", path, {"tags": tags}))

    def mend(self, group: paths.Group) -> None:
        """What a creation or a move that was cut off did not arm."""
        vms = self._arm.pages(f"{group.path}/providers/Microsoft.Compute/virtualMachines")
        armed = {str(one.get("name", "")).lower(): _Armed(one) for one in self._schedules(group)}
        now = self._arm.pace.now()
        for vm in vms:
            name, tags = str(vm.get("name", "")), vm.get("tags") or {}
            region, known = listing.plain(str(vm.get("location", ""))), labels.read(tags)
            if known is None or known.expires is None or known.expires <= now:
                continue
            found = armed.get(paths.last(group.schedule(name)).lower(), _Armed(None))
            lacks = self._services.reach_far(region) and not found.operation
            lacks |= known.expires - now <= LONGEST and not found.enabled
            if lacks or found.expires != str(int(known.expires)):
                self.arm(group, name, region, tags, max(known.expires, now + SOONEST))

    def disarm(self, group: paths.Group, name: str) -> None:
        """Before a VM is deleted: another one of its name would be ended in its place."""
        found = self._arm.find(group.schedule(name))
        if found is not None:
            self._cancel_all([found])
            self._arm.delete(group.schedule(name))

    def disarm_all(self, group: paths.Group) -> None:
        """Before the group is deleted, schedules and all."""
        self._cancel_all(self._schedules(group))

    def _schedules(self, group: paths.Group) -> list[Tree]:
        path = f"{group.path}/providers/Microsoft.DevTestLab/schedules"
        return optional(lambda: self._arm.pages(path)) or []

    # ── A date and time ──────────────────────────────────────────────────────

    def _deadline(self, vm: str, region: str, expires: float, old: str) -> str | None:
        """The operation; "" where it is refused, None where there is no such service."""
        if not self._services.reach_far(region):
            return None
        if old and self._stands(region, old, expires):
            return old
        made = self._submit(region, vm, expires)
        if old:
            self._cancel(region, [old])
        if old and not made:  # Perhaps as one VM takes one operation.
            made = self._submit(region, vm, expires)
        if made and self._stands(region, made, expires) is False:
            raise TransientError(f"{paths.last(vm)}: Azure took its end and tells another one")
        return made

    def _submit(self, region: str, vm: str, expires: float) -> str:
        """The schedule stays behind it, so its refusals are none of the VM's."""
        asked = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{vm} {int(expires)}"))
        told = self._ask(bodies.SUBMIT, region, bodies.deadline([vm], expires, asked))
        for result in (told or {}).get("results") or ():
            operation = result.get("operation") or {}
            if not result.get("errorCode") and operation.get("operationId"):
                return str(operation["operationId"])
        return ""

    def _stands(self, region: str, operation: str, expires: float) -> bool | None:
        """None where it is not told."""
        told = self._ask(bodies.STATUS, region, bodies.operations([operation]))
        for result in (told or {}).get("results") or ():
            known = result.get("operation") or {}
            moment = listing.unix_time(known.get("deadline") or known.get("deadLine"))
            state = str(known.get("state", "")).lower()
            if moment is not None and state:
                return state in PENDING and abs(moment - expires) < 60.0
        return None

    def _cancel(self, region: str, operations: Sequence[str]) -> None:
        self._ask(bodies.CANCEL, region, bodies.operations(operations))

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

    # ── A time of day ────────────────────────────────────────────────────────

    def _daily(
        self,
        group: paths.Group,
        name: str,
        region: str,
        tags: bodies.Tags,
        expires: float,
        found: Tree | None,
    ) -> None:
        """Made, and read again: a schedule of another time would end nothing in time."""
        path, now = group.schedule(name), self._arm.pace.now()
        enabled = expires - now <= LONGEST + SLACK
        body = bodies.schedule(region, tags, vm=group.vm(name), expires=expires, enabled=enabled)
        if found is not None and bodies.same_schedule(found, body):
            if dict(found.get("tags") or {}) != dict(tags):
                self._arm.call("PATCH", path, {"tags": dict(tags)})
            return
        if found is not None and bodies.seconds_to(found, now) < CHANGED_LATE:
            self._arm.delete(path)
        self._arm.put(path, body)
        if not bodies.same_schedule(self._arm.get(path), body):
            raise TransientError(f"{name}: Azure took its shutdown schedule and tells another one")


def where(machine: Machine) -> tuple[paths.Group, str]:
    found = paths.vm_of(machine.id)
    assert found is not None, machine.id
    return found
