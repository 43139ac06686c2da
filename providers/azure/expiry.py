"""Has Azure itself end the VMs: at a date and time, with a daily schedule as a fallback.

The deallocation is an operation of Microsoft.ComputeSchedule. The fallback is a schedule of
Microsoft.DevTestLab, which has a time of day but no date. As operations cannot be listed, a tag of
the schedule holds the operation's ID.

An end is believed once Azure has reported it, and an old one is withdrawn only after the new one
was reported, or after its VM is gone."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial

from cloudtrain.core import errors
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.parallel import fan_out
from cloudtrain.providers.azure import listing, paths, requests
from cloudtrain.providers.azure.client import ArmClient, ask_or_none
from cloudtrain.providers.azure.resource_providers import DEADLINES, ResourceProviders
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.answers import typed, unix_time
from cloudtrain.providers.base.driver import Vm
from cloudtrain.providers.base.http import Tree
from cloudtrain.providers.base.words import lasting

SOONEST = 35 * 60.0
"""Minimum lead time in seconds. According to Microsoft's support, a schedule runs on its first day
only if it was created 31 minutes ahead; for a changed schedule the documentation says 30:
https://learn.microsoft.com/azure/devtest-labs/devtest-lab-auto-shutdown"""
CHANGED_LATE = 31 * 60.0
"""Minimum seconds before a schedule's old time for a change to take effect on the same day; a later
change takes effect the next day."""
LONGEST = 24 * 3600.0
"""Maximum lead time of an end that a schedule can hold, in seconds."""
FARTHEST = 14 * 86400.0
"""Maximum lead time in seconds of an operation of Microsoft.ComputeSchedule: "up to 14 days ahead",
https://learn.microsoft.com/dotnet/api/overview/azure/ResourceManager.ComputeSchedule-readme."""
SLACK = 60.0
"""Tolerance in seconds: this much time may have passed since the end was computed."""
OPERATION = "cloudtrain-deadline"
"""Tag of a schedule that holds the ID of the operation that ends its VM."""


def refuse_lifetime(seconds: float | None, *, far: bool) -> None:
    """Raise CloudConfigError for a lifetime that Azure cannot end in time. `far`: True if
    Microsoft.ComputeSchedule is available, which can end a VM more than a day ahead."""
    if seconds is None:
        return
    words = f"limits.max_lifetime of {lasting(seconds)}: on Azure, an end"
    if seconds < SOONEST:
        raise errors.CloudConfigError(
            f"{words} less than {lasting(SOONEST)} ahead may come a day late",
            hint=f"set limits.max_lifetime to {SOONEST / 60:.0f}m or more; to end sooner, run "
            "`cloudtrain down`",
        )
    if seconds > FARTHEST + SLACK:
        raise errors.CloudConfigError(
            f"{words} more than 14 days ahead cannot be held",
            hint="set limits.max_lifetime to 14d or less, or to off: then only `down` ends them",
        )
    if seconds > LONGEST and not far:
        raise errors.CloudConfigError(
            f"{words} more than 24 h ahead needs Microsoft.ComputeSchedule, which is not available "
            "here",
            hint="set limits.max_lifetime to 24h or less, or run az provider register --namespace "
            "Microsoft.ComputeSchedule",
        )


@dataclass(frozen=True)
class _Armed:
    """The end that a VM's schedule sets."""

    schedule: Tree | None

    def tag(self, name: str) -> str:
        return str(((self.schedule or {}).get("tags") or {}).get(name) or "")

    @property
    def operation(self) -> str:
        return self.tag(OPERATION)

    def daily(self, expires: float, now: float) -> bool:
        """True if the schedule alone ends the VM at `expires`."""
        properties = (self.schedule or {}).get("properties") or {}
        moment = datetime.fromtimestamp(expires, timezone.utc)
        return (
            expires - now <= LONGEST + SLACK
            and str(properties.get("status", "")).lower() == "enabled"
            and (properties.get("dailyRecurrence") or {}).get("time") == f"{moment:%H%M}"
        )

    def fault(self) -> str:
        """Reason for which this does not end the VM."""
        if self.schedule is None:
            return "Azure has no schedule for it"
        if not self.operation:
            return "its daily schedule is off or at another time, and no deallocation is scheduled"
        return "its scheduled deallocation was cancelled or is at another time"


_Guarded = tuple[str, float]
"""Region and end (Unix time) of a VM that is to end."""


class Expiries:
    """Sets, moves and removes the ends of VMs in Azure. Thread-safe. Raises CloudError."""

    def __init__(self, arm: ArmClient, services: ResourceProviders) -> None:
        self._arm = arm
        self._services = services
        self._deadlines = Deadlines(arm, services)

    def refuse(self, ahead: float, region: str) -> None:
        """Raise CloudConfigError if Azure cannot set an end `ahead` seconds from now there."""
        if ahead > LONGEST + SLACK:
            refuse_lifetime(ahead, far=self._services.reach_far(region))

    def arm(
        self, group: paths.Group, name: str, region: str, tags: requests.Tags, expires: float
    ) -> bool:
        """Have Azure end the VM at `expires`, by both services if both are available. An earlier
        end is withdrawn once Azure reports this one; if that fails, the earlier end stays. Returns
        False if Microsoft.ComputeSchedule refused, perhaps because the VM is not ready."""
        ahead = expires - self._arm.timing.clock.now()
        known = _Armed(self._arm.find(group.schedule(name)))
        made = self._deadlines.submit(group.vm(name), region, expires, known.operation)
        if not made.operation and ahead > LONGEST + SLACK:
            if made.refusal is not None:
                raise made.refusal
            refuse_lifetime(ahead, far=False)
        own = {**tags, labels.EXPIRES: str(int(expires))}
        own |= {OPERATION: made.operation} if made.operation else {}
        try:
            self._daily(group, name, region, own, expires, known.schedule)
            if known.operation not in ("", made.operation):
                self._deadlines.withdraw(region, known.operation)
        except errors.CloudError:
            # Restore the end that this began to replace, as far as Azure allows.
            with suppress(errors.CloudError):
                if known.schedule is None:
                    self._arm.delete(group.schedule(name))
                else:
                    self._arm.put(group.schedule(name), requests.settings_of(known.schedule))
            with suppress(errors.CloudError):
                if made.operation not in ("", known.operation):
                    self._deadlines.cancel(region, [made.operation])
            raise
        return bool(made.operation) or made.refusal is None

    def move(self, machines: Sequence[Vm], expires: float | None) -> None:
        """Move the ends. The tags change first: `repair` can then complete an interrupted move."""
        if expires is None:
            fan_out(machines, self._drop, name=lambda m: m.node.name)
            return
        ahead = expires - self._arm.timing.clock.now()
        for region in {machine.place.region for machine in machines}:
            self.refuse(ahead, region)
        expires = max(expires, self._arm.timing.clock.now() + SOONEST)
        fan_out(machines, lambda m: self.move_one(m, expires), name=lambda m: m.node.name)

    def move_one(self, machine: Vm, expires: float) -> None:
        """Move the end of one VM. If that fails, its tag is put back: the old end stands."""
        group, name = where(machine)
        path = group.vm(name)
        before = self._arm.get(path).get("tags") or {}
        tags = {**before, labels.EXPIRES: str(int(expires))}
        try:
            self._tag(path, tags)
            self.arm(group, name, machine.place.region, tags, expires)
        except errors.CloudError as error:
            with suppress(errors.CloudError):
                self._tag(path, before)
            hint = f"{error.hint}; " if error.hint else ""
            hint += "its end is where it was; `cloudtrain up` tries again"
            raise error.copy_with(hint=hint) from error.__cause__

    def _tag(self, path: str, tags: requests.Tags) -> None:
        self._arm.finish("PATCH", path, self._arm.call("PATCH", path, {"tags": dict(tags)}))

    def _drop(self, machine: Vm) -> None:
        """Remove a VM's end, as the user wants none. The tag is removed last: `repair` would
        otherwise set the end in the tag again."""
        group, name = where(machine)
        path, found = group.vm(name), self._arm.find(group.schedule(name))
        if found is not None:
            if operation := _Armed(found).operation:
                self._deadlines.withdraw(machine.place.region, operation)
            self._arm.delete(group.schedule(name))
        self._tag(path, labels.with_expiry(self._arm.get(path).get("tags") or {}, None))

    def repair(self, group: paths.Group, cluster: str) -> None:
        """Set the ends that Azure lacks, by an interrupted creation or move, or somebody's hand."""
        vms = self._arm.pages(f"{group.path}/providers/Microsoft.Compute/virtualMachines")
        now = self._arm.timing.clock.now()
        guarded = {
            str(vm.get("name", "")): (listing.plain(str(vm.get("location", ""))), known.expires)
            for vm in vms
            if (known := labels.ours(typed(vm, "tags", dict, null=True), of=cluster)) is not None
            and known.expires is not None
            and known.expires > now
        }
        lacking = self._lacking(group, guarded, both=True)
        for vm in vms:
            name = str(vm.get("name", ""))
            if name in lacking:
                region, expires = guarded[name]
                expires = max(expires, now + SOONEST)
                self.arm(group, name, region, vm.get("tags") or {}, expires)

    def missing(self, machines: Sequence[Vm]) -> dict[str, str]:
        """Reasons for which Azure does not end VMs at their end, by ID, where Azure says so."""
        found: dict[str, str] = {}
        by_group: dict[paths.Group, dict[str, _Guarded]] = {}
        for machine in machines:
            (group, name), expires = where(machine), machine.node.expires
            if expires is not None:
                by_group.setdefault(group, {})[name] = (machine.place.region, expires)
        for group, guarded in by_group.items():
            lacking = self._lacking(group, guarded, both=False)
            found |= {group.vm(name): why for name, why in lacking.items()}
        return found

    def _lacking(
        self, group: paths.Group, guarded: Mapping[str, _Guarded], *, both: bool
    ) -> dict[str, str]:
        """Messages on what VMs of one group lack, by name. `both`: also those that one of the two
        services ends, and the other could. One call for the schedules; another for the operations,
        if schedules do not reach that far."""
        if not guarded:
            return {}
        schedules = self._schedules(group)
        if schedules is None and not both:
            return {}
        armed = {str(one.get("name", "")).lower(): _Armed(one) for one in schedules or ()}
        now = self._arm.timing.clock.now()
        found: dict[str, str] = {}
        asked: dict[str, list[str]] = {}
        ends: dict[str, _Armed] = {}
        for name, (region, expires) in guarded.items():
            ends[name] = armed.get(paths.last(group.schedule(name)).lower(), _Armed(None))
            if ends[name].operation and (both or not ends[name].daily(expires, now)):
                asked.setdefault(region, []).append(ends[name].operation)
        reported: dict[str, OperationReport] = {}
        for region, operations in asked.items():
            reported |= self._deadlines.reported(region, operations)
        for name, (region, expires) in guarded.items():
            end = ends[name]
            dated = is_at(reported.get(end.operation), expires)
            daily = end.daily(expires, now)
            if both:
                lacks = self._services.reach_far(region) and not (
                    end.operation and dated is not False
                )
                lacks |= expires - now <= LONGEST and not daily
                if lacks or end.tag(labels.EXPIRES) != str(int(expires)):
                    found[name] = "incomplete"
            elif not daily and (not end.operation or dated is False):
                found[name] = end.fault()
        return found

    def disarm(self, group: paths.Group, name: str) -> None:
        """Remove the end of a VM that is deleted: it would end a later VM of the same name."""
        found = self._arm.find(group.schedule(name))
        if found is not None:
            self.cancel([found])
            self._arm.delete(group.schedule(name))

    def disarm_orphan(self, schedule: str) -> None:
        """Remove the end with the ID of its schedule, unless its VM still exists."""
        found = self._arm.find(schedule)
        target = str(((found or {}).get("properties") or {}).get("targetResourceId") or "")
        if found is None or (target and self._arm.find(target) is not None):
            return
        self.cancel([found])
        self._arm.delete(schedule)

    def of_group(self, group: paths.Group) -> list[Tree]:
        """The schedules of a group that is about to be deleted, for `cancel`."""
        return self._schedules(group) or []

    def _schedules(self, group: paths.Group) -> list[Tree] | None:
        """The schedules of a group; None if this user may not list them."""
        path = f"{group.path}/providers/Microsoft.DevTestLab/schedules"
        try:
            return ask_or_none(lambda: self._arm.pages(path))
        except errors.NotFoundError:
            return []

    def cancel(self, schedules: Iterable[Tree]) -> bool:
        """Cancel operations of VMs that are gone; False after a refusal, as they find none."""
        by_region: dict[str, list[str]] = {}
        for schedule in schedules:
            if operation := _Armed(schedule).operation:
                region = listing.plain(str(schedule.get("location", "")))
                by_region.setdefault(region, []).append(operation)
        accepted = True
        for region, operations in by_region.items():
            try:
                self._deadlines.cancel(region, operations)
            except errors.CloudError:
                accepted = False
        return accepted

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
            raise errors.TransientError(
                "Azure accepted its schedule but reports a different one", what=name
            )


def where(machine: Vm) -> tuple[paths.Group, str]:
    found = paths.vm_of(machine.id)
    assert found is not None, machine.id
    return found


# ── Ends at a date and time: scheduled deallocations of Microsoft.ComputeSchedule ─────────────


MOST = 100
"""Operations in one request (learn.microsoft.com/rest/api/computeschedule, read 2026-11)."""
UNKNOWN = "not known to Azure"
"""State of an operation that Azure does not report."""
PENDING = frozenset({"pendingscheduling", "scheduled", "pendingexecution", "executing", "unknown"})


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """Answer of Microsoft.ComputeSchedule to the request for an end; empty without that service."""

    operation: str = ""
    refusal: errors.CloudError | None = None


@dataclass(frozen=True, kw_only=True)
class OperationReport:
    """An operation as Azure reports it."""

    state: str
    at: float
    """Unix time."""


def is_at(report: OperationReport | None, expires: float) -> bool | None:
    """True if the operation is still due at `expires`, None if Azure does not report it."""
    if report is None:
        return None
    return report.state in PENDING and abs(report.at - expires) < 60.0


class Deadlines:
    """Submits, reads and cancels such operations. Thread-safe. Raises CloudError."""

    def __init__(self, arm: ArmClient, services: ResourceProviders) -> None:
        self._arm = arm
        self._services = services

    def submit(self, vm: str, region: str, expires: float, old: str) -> Deadline:
        """Schedule the deallocation, and have Azure report it. `old` is kept beside it."""
        if not self._services.reach_far(region):
            return Deadline()
        if old and is_at(self.reported(region, [old]).get(old), expires):
            return Deadline(operation=old)
        made = self._send(region, vm, expires)
        if not made.operation:
            return made

        def ask() -> tuple[OperationReport | None] | None:
            told = self.reported(region, [made.operation]).get(made.operation)
            return (told,) if told is None or told.state != UNKNOWN else None

        try:
            told = self._arm.timing.until(ask, within=self._arm.timing.listing)
            if told is None or is_at(told[0], expires) is False:
                text = "Azure accepted its end but reports a different one"
                raise errors.TransientError(text, what=paths.last(vm))
        except errors.CloudError:
            with suppress(errors.CloudError):
                self.cancel(region, [made.operation])
            raise
        return made

    def _send(self, region: str, vm: str, expires: float) -> Deadline:
        """Submit the operation. A refusal does not fail the VM: the daily schedule remains."""
        asked = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{vm} {int(expires)}"))
        node, what = paths.last(vm), "the end at Microsoft.ComputeSchedule"
        try:
            answer = self._ask(requests.SUBMIT, region, requests.deadline([vm], expires, asked))
        except errors.CredentialsError:
            raise
        except errors.CloudError as refusal:
            return Deadline(refusal=refusal.copy_with(what=node, text=f"{what}: {refusal.message}"))
        words = "it named no operation"
        for result in answer.get("results") or ():
            operation = result.get("operation") or {}
            if not result.get("errorCode") and operation.get("operationId"):
                return Deadline(operation=str(operation["operationId"]))
            told = (result.get("errorCode"), result.get("errorDetails"))
            words = ": ".join(str(each) for each in told if each) or words
        return Deadline(refusal=errors.CloudConfigError(f"{what} was refused: {words}", what=node))

    def reported(self, region: str, operations: Sequence[str]) -> dict[str, OperationReport]:
        """Reports of Azure on these operations, by ID; none where this user may not ask."""
        found: dict[str, OperationReport] = {}
        for first in range(0, len(operations), MOST):
            some = operations[first : first + MOST]
            answer = ask_or_none(
                partial(self._ask, requests.STATUS, region, requests.operations(some))
            )
            if answer is None:
                continue
            found |= dict.fromkeys(some, OperationReport(state=UNKNOWN, at=0.0))
            for result in answer.get("results") or ():
                known = result.get("operation") or {}
                moment = unix_time(known.get("deadline") or known.get("deadLine"))
                state = str(known.get("state", "")).lower()
                if moment is not None and state:
                    found[str(known.get("operationId"))] = OperationReport(state=state, at=moment)
        return found

    def withdraw(self, region: str, operation: str) -> None:
        """Cancel an operation that another replaces. Raises TransientError if it still stands: it
        would end the VM at the old time."""
        self.cancel(region, [operation])
        found = self.reported(region, [operation]).get(operation)
        if found is not None and found.state in PENDING:
            raise errors.TransientError(f"Azure did not withdraw the old end: it is {found.state}")

    def cancel(self, region: str, operations: Sequence[str]) -> None:
        for first in range(0, len(operations), MOST):
            self._ask(
                requests.CANCEL, region, requests.operations(operations[first : first + MOST])
            )

    def _ask(self, what: str, region: str, body: Tree) -> Tree:
        path = f"{self._arm.path}/providers/{DEADLINES}/locations/{region}/{what}"
        answer = self._arm.call("POST", path, body).body
        return answer if isinstance(answer, dict) else {}
