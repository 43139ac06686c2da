"""Has AWS itself end the nodes: one one-time schedule per node, if the account has a role for it.

A node's own timer does not help if its kernel hangs. EventBridge Scheduler calls TerminateInstances
at a given minute, using a role that it may assume:
https://docs.aws.amazon.com/scheduler/latest/UserGuide/managing-targets-universal.html. Not tried on
a real account (2026-11). docs/aws.md says how to create the role.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

from cloudtrain.errors import CloudError
from cloudtrain.providers.aws import quota
from cloudtrain.providers.aws.client import Ec2Client, mapped

ROLE = "cloudtrain-terminate"
LATER = 180.0
"""Seconds between the node's own timer, which reports what has landed, and AWS's schedule, which
then ends the node only if it still exists. A schedule is precise to the minute.
"""
TARGET = "arn:{partition}:scheduler:::aws-sdk:ec2:terminateInstances"


class Schedules:
    """Schedules of one account. Thread-safe; looks up the role once."""

    def __init__(self, ec2: Ec2Client) -> None:
        self._ec2 = ec2
        self._lock = threading.Lock()
        self._asked = False
        self._role: str | None = None

    def role(self, region: str) -> str | None:
        """Return the role's ARN; None if it does not exist or this user may not see it."""
        with self._lock:
            if not self._asked:
                self._role = self._find(region)
                self._asked = True
            return self._role

    def _find(self, region: str) -> str | None:
        try:
            client = quota.service(self._ec2, "iam", region)
            if client is None:
                return None
            with mapped("GetRole"):
                return str(client.get_role(RoleName=ROLE)["Role"]["Arn"])
        except CloudError:
            return None

    def arm(self, region: str, node: str, instance: str, expires: float | None) -> None:
        """Have AWS end this instance LATER seconds after `expires`, replacing any earlier schedule
        of the node.

        Does nothing without a role or an end. Raises CloudError on failure: in an account with the
        role, AWS must end every node.
        """
        role = self.role(region) if expires is not None else None
        if role is None or expires is None:
            return
        moment = datetime.fromtimestamp(expires + LATER, timezone.utc)
        schedule = {
            "Name": _name(node),
            "ScheduleExpression": f"at({moment:%Y-%m-%dT%H:%M:%S})",
            "ScheduleExpressionTimezone": "UTC",
            "FlexibleTimeWindow": {"Mode": "OFF"},
            "ActionAfterCompletion": "DELETE",
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
                with mapped(f"CreateSchedule for {node}"):
                    client.create_schedule(**schedule)
            except CloudError as error:
                if error.code != "ConflictException":
                    raise
                with mapped(f"UpdateSchedule for {node}"):
                    client.update_schedule(**schedule)

        self._ec2.timing.call(ask)

    def disarm(self, region: str, nodes: Iterable[str]) -> None:
        """Delete the schedules of nodes that are gone.

        A leftover schedule is harmless: instance IDs are never reused, and the schedule deletes
        itself at its time.
        """
        if self.role(region) is None:
            return
        client = self._client(region)
        for node in nodes:
            try:
                with mapped(f"DeleteSchedule for {node}"):
                    client.delete_schedule(Name=_name(node))
            except CloudError:
                continue

    def _client(self, region: str) -> Any:
        return quota.service(self._ec2, "scheduler", region)


def _name(node: str) -> str:
    return f"cloudtrain-{node}"
