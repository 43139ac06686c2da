"""EventBridge Scheduler: moto keeps the schedules, here they are carried out."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

from moto.iam.models import iam_backends
from moto.scheduler.models import scheduler_backends
from werkzeug.wrappers import Request, Response

from tests.standins.aws_instances import Instances
from tests.standins.aws_query import Refused, real

ENDS = "aws-sdk:ec2:terminateInstances"
BY_SCHEDULE = ("Client.UserInitiatedShutdown", "User initiated shutdown")


class Schedules(Instances):
    def scheduler(self, region: str, request: Request) -> Response:
        """The role must be one that Scheduler may assume, as CreateSchedule demands:
        https://docs.aws.amazon.com/scheduler/latest/UserGuide/setting-up.html"""
        if request.method in ("POST", "PUT"):
            target = request.get_json(force=True).get("Target", {})
            if not self._may_be_assumed(str(target.get("RoleArn", ""))):
                return _refused(real("scheduler-role-not-assumable"))
        response = self.by_moto(request)
        if request.method in ("POST", "PUT") and response.status_code == 200:
            self._keep(region, request.path.rpartition("/")[2])
        return response

    def schedules(self) -> list[str]:
        """Their names, sorted."""
        return sorted(name for region in self.regions for name in self._group(region))

    def _may_be_assumed(self, arn: str) -> bool:
        roles = iam_backends[self.account]["aws"].roles.values()
        trusts = [role.assume_role_policy_document for role in roles if role.arn == arn]
        return any("scheduler.amazonaws.com" in trust for trust in trusts)

    def _group(self, region: str) -> dict[str, Any]:
        backend = scheduler_backends[self.account][region]
        found: dict[str, Any] = backend.schedule_groups["default"].schedules
        return found

    def _keep(self, region: str, name: str) -> None:
        schedule = self._group(region)[name]
        told = schedule.schedule_expression
        moment = datetime.strptime(told, "at(%Y-%m-%dT%H:%M:%S)").replace(tzinfo=timezone.utc)

        def fire() -> None:
            now = self._group(region).get(name)
            if now is not schedule or now.schedule_expression != told:
                return
            wanted = set(json.loads(now.target["Input"])["InstanceIds"])
            if now.target["Arn"].endswith(ENDS):
                for instance in self.alive(region):
                    if instance.id in wanted:
                        self._terminate(instance, *BY_SCHEDULE)
            del self._group(region)[name]

        self.after(moment.timestamp() - self.now(), fire)


def _refused(error: Refused) -> Response:
    body = json.dumps({"Message": error.message})
    headers = {"x-amzn-ErrorType": error.code}
    return Response(body, error.status, headers, content_type="application/json")
