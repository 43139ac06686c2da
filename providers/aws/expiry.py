"""Has AWS itself end the nodes: a one-time schedule each, if the account has a role for it.

A node's own timer does not help if its kernel hangs. EventBridge Scheduler calls TerminateInstances
at a given minute, using a role that it may assume:
https://docs.aws.amazon.com/scheduler/latest/UserGuide/managing-targets-universal.html. Not tried on
a real account (2026-11). docs/aws.md says how to create the role."""

from __future__ import annotations

import base64
import gzip
import json
import threading
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from cloudtrain.core import errors
from cloudtrain.providers.aws import requests, xml
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.base import boot, labels
from cloudtrain.providers.base.driver import Vm

ROLE = "cloudtrain-terminate"
LATER = 180.0
"""Seconds between the node's own timer, which reports what has landed, and AWS's schedule, which
then ends the node only if it still exists. A schedule is precise to the minute."""
TARGET = "arn:{partition}:scheduler:::aws-sdk:ec2:terminateInstances"


class Schedules:
    """Schedules of one account. Thread-safe; looks up the role once."""

    def __init__(self, ec2: Ec2Client) -> None:
        self._ec2 = ec2
        self._lock = threading.Lock()
        self._asked = False
        self._role: str | None = None
        self._hidden = False
        """True if this user may not see whether the role exists."""

    def role(self, region: str) -> str | None:
        """The role's ARN; None if there is none, it may not be seen, or IAM does not answer."""
        with self._lock:
            if not self._asked:
                self._asked = True
                self._role = self._find(region)
            return self._role

    def _find(self, region: str) -> str | None:
        try:
            client = self._ec2.service("iam", region)
            if client is None:
                return None
            with self._ec2.mapped("GetRole"):
                return str(client.get_role(RoleName=ROLE)["Role"]["Arn"])
        except errors.NotFoundError:
            return None
        except (errors.TransientError, errors.RateError):
            self._asked = False  # asked again next time; some networks reach EC2 alone
            return None
        except errors.CloudError:
            self._hidden = True
            return None

    def arm(self, region: str, instance: str, expires: float) -> str | None:
        """Have AWS end this instance LATER after `expires`; its schedule's name, None without a
        role. Raises CloudError on failure, and if AWS reports another schedule than the one
        requested: in an account with the role, AWS must end every node."""
        role = self.role(region)
        if role is None:
            return None
        moment = datetime.fromtimestamp(expires + LATER, timezone.utc)
        schedule = {
            "Name": name_of(instance, expires),
            "ScheduleExpression": f"at({moment:%Y-%m-%dT%H:%M:%S})",
            "ScheduleExpressionTimezone": "UTC",
            "FlexibleTimeWindow": {"Mode": "OFF"},
            "ActionAfterCompletion": "DELETE",
            "State": "ENABLED",
            "Description": f"ends {instance}, a node of cloudtrain",
            "Target": {
                "Arn": TARGET.format(partition=role.split(":")[1]),
                "RoleArn": role,
                "Input": json.dumps({"InstanceIds": [instance]}),
            },
        }
        client = self._client(region)

        def ask() -> None:
            try:
                with self._ec2.mapped(f"CreateSchedule for {instance}"):
                    client.create_schedule(**schedule)
            except errors.CloudError as error:
                if error.code != "ConflictException":
                    raise
                with self._ec2.mapped(f"UpdateSchedule for {instance}"):
                    client.update_schedule(**schedule)

        self._ec2.timing.call(ask)
        self._confirm(client, schedule)
        return str(schedule["Name"])

    def refuse_hidden(self, region: str, instance: str) -> None:
        """Raise PermissionsError if AWS has a schedule for this instance while this user may not
        see the role: its end could not be moved, and would come at the old time."""
        if self.role(region) is not None or not self._hidden:
            return
        try:
            found = self._names(self._client(region), region, f"{PREFIX}{instance}-")
        except errors.PermissionsError:
            return
        if found:
            raise errors.PermissionsError(
                f"AWS ends {instance} by {', '.join(sorted(found))}, and you may not read the role "
                f"{ROLE} with which that is moved",
                hint="get iam:GetRole and iam:PassRole on it (docs/aws.md)",
            )

    def _confirm(self, client: Any, schedule: dict[str, Any]) -> None:
        """Read the schedule back. Where the user may not, AWS's answer to the request counts."""
        name = schedule["Name"]

        try:
            found = self._ec2.call(f"GetSchedule {name}", lambda: client.get_schedule(Name=name))
        except errors.PermissionsError:
            return
        same = all(
            found.get(key) == schedule[key]
            for key in ("ScheduleExpression", "ScheduleExpressionTimezone")
        )
        target = found.get("Target") or {}
        same = same and target.get("Input") == schedule["Target"]["Input"]
        if not same or found.get("State") != "ENABLED":
            raise errors.TransientError(
                "AWS accepted the schedule but reports a different one", what=name
            )

    def drop_others(self, region: str, node: str, instance: str, kept: str | None) -> None:
        """Delete this instance's schedules other than `kept`. Raises CloudError if one stays."""
        if self.role(region) is None:
            return
        client, prefix = self._client(region), f"{PREFIX}{instance}-"
        names = {name for name in self._names(client, region, prefix) if name != kept}
        if self._is_legacy(client, node, instance):
            names.add(f"{PREFIX}{node}")
        for name in sorted(names):
            self._delete(client, name)

    def drop(self, region: str, names: Iterable[str]) -> None:
        """Delete these schedules, as what they guard is gone. One that is left is harmless: IDs are
        never reused, and it deletes itself at its time."""
        if self.role(region) is None:
            return
        client = self._client(region)
        for name in names:
            with suppress(errors.CloudError):
                self._delete(client, name)

    def missing(self, region: str, machines: Iterable[tuple[str, str, float]]) -> dict[str, str]:
        """Reasons for which AWS does not end instances, by ID. `machines`: (node, instance, end).
        Empty without a role, and where the user may not ask: then the node's own timer counts."""
        if self.role(region) is None:
            return {}
        client = self._client(region)
        try:
            names = self._names(client, region, PREFIX, "ENABLED")
        except errors.PermissionsError:
            return {}
        found: dict[str, str] = {}
        for node, instance, expires in machines:
            if name_of(instance, expires) in names:
                continue
            if f"{PREFIX}{node}" in names and self._is_legacy(client, node, instance):
                continue
            found[instance] = f"role {ROLE} exists, and AWS has no schedule for {instance}"
        return found

    def _names(self, client: Any, region: str, prefix: str, state: str = "") -> set[str]:
        """The names of schedules: 100 a call."""

        wanted = {"NamePrefix": prefix, **({"State": state} if state else {})}

        def ask() -> set[str]:
            pages = client.get_paginator("list_schedules").paginate(**wanted)
            return {str(each["Name"]) for page in pages for each in page["Schedules"]}

        return self._ec2.call(f"ListSchedules in {region}", ask)

    def _is_legacy(self, client: Any, node: str, instance: str) -> bool:
        """True if an earlier version made this instance's schedule, which it named by the node."""
        name = f"{PREFIX}{node}"
        try:
            found = self._ec2.call(
                f"GetSchedule for {node}", lambda: client.get_schedule(Name=name)
            )
        except (errors.NotFoundError, errors.PermissionsError):
            return False
        return instance in str((found.get("Target") or {}).get("Input"))

    def _delete(self, client: Any, name: str) -> None:
        with suppress(errors.NotFoundError):
            self._ec2.call(f"DeleteSchedule {name}", lambda: client.delete_schedule(Name=name))

    def _client(self, region: str) -> Any:
        return self._ec2.service("scheduler", region)


PREFIX = "cloudtrain-"


def name_of(instance: str, expires: float) -> str:
    """Name of the schedule that ends an instance at `expires`. Both are in it, so that two nodes of
    one name have two, and a moved end is made before the old one is deleted."""
    return f"{PREFIX}{instance}-{int(expires)}"


# ── Moves the end of a stopped instance, whose own timer cannot be told ───────────────────────


def move_stopped(ec2: Ec2Client, schedules: Schedules, machine: Vm, expires: float) -> None:
    """Move the end in AWS's schedule, the user data and the tag, each confirmed. On failure, what
    was changed is put back; the instance must not be started then.

    The timer reads its end from the user data, which EC2 lets change while the instance is stopped
    and cloud-init reads again at each boot:
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/user-data.html (documented)"""
    old = machine.node.expires
    if old is not None and abs(old - expires) <= 1.0:
        return
    region = machine.place.region
    schedules.refuse_hidden(region, machine.id)
    made = schedules.arm(region, machine.id, expires)
    before = ""
    try:
        before = _user_data(ec2, machine)
        now = int(ec2.timing.clock.now())
        _set_user_data(
            ec2, machine, _with_moved_end(machine, before, expires, f"{now}-{int(expires)}")
        )
        tag_end(ec2, machine, expires)
        schedules.drop_others(region, machine.node.name, machine.id, made)
    except errors.CloudError:
        with suppress(errors.CloudError):
            tag_end(ec2, machine, old)
            if before:
                _set_user_data(ec2, machine, before)
        with suppress(errors.CloudError):
            kept = None if old is None else name_of(machine.id, old)
            if made is not None and made != kept:
                schedules.drop(region, [made])
        raise


def tag_end(ec2: Ec2Client, machine: Vm, expires: float | None) -> None:
    """Write the end into the tag that commands read."""
    tag_end, verb = {"Key": labels.EXPIRES}, "DeleteTags"
    if expires is not None:
        verb, tag_end = "CreateTags", {**tag_end, "Value": str(int(expires))}
    ec2.ask(machine.place.region, verb, {"ResourceId": [machine.id], "Tag": [tag_end]})


def _with_moved_end(machine: Vm, user_data: str, expires: float, moved: str) -> str:
    try:
        return boot.with_end(user_data, expires, moved=moved)
    except ValueError as error:
        raise errors.CloudConfigError(
            f"{machine.node.name} ({machine.id}): its end cannot be moved while it is stopped: its "
            f"user data is not cloudtrain's ({error})",
            hint="start it in the console to save what it holds, or delete it with `cloudtrain "
            "down --discard`",
        ) from error


def _user_data(ec2: Ec2Client, machine: Vm) -> str:
    asked = {"InstanceId": machine.id, "Attribute": "userData"}
    answer = ec2.ask(machine.place.region, "DescribeInstanceAttribute", asked)
    data = base64.b64decode(xml.text(xml.part(answer, "userData"), "value"))
    return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8", "replace")


def _set_user_data(ec2: Ec2Client, machine: Vm, text: str) -> None:
    """Change the user data and read it back."""
    asked = {"InstanceId": machine.id, "UserData": {"Value": requests.user_data(text)}}
    ec2.ask(machine.place.region, "ModifyInstanceAttribute", asked)
    if _user_data(ec2, machine) != text:
        text = "EC2 accepted its user data but reports different ones"
        raise errors.TransientError(text, what=machine.node.name)
