"""Microsoft.ComputeSchedule: virtual machines are deallocated at a date and time.

Bodies as https://learn.microsoft.com/rest/api/computeschedule/scheduled-actions has them; where it
is installed, azure-mgmt-computeschedule drives it in
tests/integration/test_standin_azure.py. What is refused for one resource stands in its own
result, with the call answered 200.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from werkzeug.wrappers import Response

from tests.standins.azure_call import Call, route
from tests.standins.azure_errors import Body, Refusal, not_acted_out, real
from tests.standins.azure_machine_rules import VMS
from tests.standins.azure_power import begin
from tests.standins.azure_resources import location
from tests.standins.azure_world import World, same

NAMESPACE = "Microsoft.ComputeSchedule"
MOST = 100
"""Resources, or operations, of one request."""
FARTHEST = 14 * 86400.0
"""https://learn.microsoft.com/dotnet/api/overview/azure/ResourceManager.ComputeSchedule-readme"""


@dataclass(eq=False)
class Deadline:
    id: str
    vm: str
    at: float
    state: str = "Scheduled"
    error: tuple[str, str] | None = None


_AT = f"/subscriptions/{{subscription}}/providers/{NAMESPACE}/locations/{{location}}"


@route(
    "POST",
    f"{_AT}/virtualMachinesSubmitDeallocate",
    f"{NAMESPACE}/locations/virtualMachinesSubmitDeallocate/action",
)
def _submit(call: Call) -> Response:
    body, region = call.body(), _region(call)
    _check_names(body, {"schedule", "executionParameters", "resources", "correlationid"})
    at = _moment(call.world, body["schedule"])
    retry = body["executionParameters"].get("retryPolicy") or {}
    _check_names(body["executionParameters"], {"optimizationPreference", "retryPolicy"}, need=False)
    _check_names(retry, {"retryCount", "retryWindowInMinutes"}, need=False)
    ids = body["resources"].get("ids") or []
    if not 0 < len(ids) <= MOST:
        raise real("deadline-of-too-many", count=len(ids), what="resources", most=MOST)
    results = [_submitted(call.world, region, str(id), at) for id in ids]
    words = "Deallocate Resource request"
    answer = {"description": words, "type": "VirtualMachines", "location": region}
    return call.answer({**answer, "results": results})


@route(
    "POST",
    f"{_AT}/virtualMachinesGetOperationStatus",
    f"{NAMESPACE}/locations/virtualMachinesGetOperationStatus/action",
)
def _status(call: Call) -> Response:
    return call.answer({"results": [_told(call.world, id) for id in _asked(call)]})


@route(
    "POST",
    f"{_AT}/virtualMachinesCancelOperations",
    f"{NAMESPACE}/locations/virtualMachinesCancelOperations/action",
)
def _cancel(call: Call) -> Response:
    ids = _asked(call)
    for id in ids:
        found = call.world.deadlines.get(id)
        if found is not None and found.state == "Scheduled":
            found.state = "Cancelled"
    return call.answer({"results": [_told(call.world, id) for id in ids]})


def _region(call: Call) -> str:
    type = "locations"
    lacking = call.world.lacking.get(f"{NAMESPACE}/{type}", ())
    return location(call.given["location"], f"{NAMESPACE}/{type}", lacking)


def _asked(call: Call) -> list[str]:
    body = call.body()
    _region(call)
    _check_names(body, {"operationIds", "correlationid"})
    ids = [str(id) for id in body["operationIds"]]
    if not 0 < len(ids) <= MOST:
        raise real("deadline-of-too-many", count=len(ids), what="operations", most=MOST)
    return ids


def _check_names(body: Any, known: set[str], *, need: bool = True) -> None:
    if not isinstance(body, dict) or set(body) - known:
        raise real("deadline-member-unknown", known=", ".join(sorted(known)))
    for name in known if need else ():
        if body.get(name) is None:
            raise real("parameter-missing", name=name)


def _moment(world: World, schedule: Body) -> float:
    _check_names(
        schedule, {"deadline", "deadLine", "timezone", "timeZone", "deadlineType"}, need=False
    )
    if schedule.get("deadlineType") != "InitiateAt":
        raise not_acted_out("other deadlines than InitiateAt")
    if (schedule.get("timezone") or schedule.get("timeZone")) != "UTC":
        raise not_acted_out("other time zones than UTC")
    text = str(schedule.get("deadline") or schedule.get("deadLine") or "")
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)", text):
        raise real("deadline-malformed", deadline=text)
    at = datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    if not world.now() < at <= world.now() + FARTHEST:
        raise real("deadline-out-of-reach", deadline=text)
    return at


def _submitted(world: World, region: str, id: str, at: float) -> Body:
    vm = world.find(id)
    if vm is None or not same(vm.type, VMS):
        return _refused(id, real("deadline-target-absent", id=id))
    if vm.region != region:
        return _refused(id, real("deadline-target-elsewhere", id=id, region=vm.region))
    if world.deadlines_need_finished and vm.state == "Creating":
        return _refused(id, real("deadline-target-not-ready", id=id))
    deadline = Deadline(str(uuid.uuid4()), vm.id, at)
    world.deadlines[deadline.id] = deadline
    world.at(at, lambda: _due(world, deadline))
    return _told(world, deadline.id)


def _due(world: World, deadline: Deadline) -> None:
    if deadline.state != "Scheduled":
        return
    vm = world.find(deadline.vm)
    if vm is None or vm.state == "Deleting":
        deadline.state, deadline.error = "Failed", ("ResourceNotFound", "The VM was not found.")
        return
    begin(world, vm, "deallocate")
    deadline.state = "Succeeded"


def _told(world: World, id: str) -> Body:
    found = world.deadlines.get(id)
    if found is None:
        return _refused("", real("deadline-absent", id=id))
    at = datetime.fromtimestamp(found.at, timezone.utc).isoformat()
    operation: Body = {
        "operationId": id,
        "resourceId": found.vm,
        "opType": "Deallocate",
        "subscriptionId": found.vm.split("/")[2],
        "deadline": at,
        "deadlineType": "InitiateAt",
        "state": found.state,
        "timezone": "UTC",
        "retryPolicy": {"retryCount": 4, "retryWindowInMinutes": 30},
    }
    if found.error:
        code, text = found.error
        operation["resourceOperationError"] = {"errorCode": code, "errorDetails": text}
    return {"resourceId": found.vm, "errorCode": None, "errorDetails": None, "operation": operation}


def _refused(id: str, refusal: Refusal) -> Body:
    return {"resourceId": id, "errorCode": refusal.code, "errorDetails": refusal.message}
