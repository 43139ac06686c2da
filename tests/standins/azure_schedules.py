"""Microsoft.DevTestLab/schedules: a virtual machine is deallocated at a time of day."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from werkzeug.wrappers import Response

from tests.standins.azure_call import Call, route
from tests.standins.azure_errors import Body, Refusal, not_acted_out, real
from tests.standins.azure_machine_rules import VMS
from tests.standins.azure_power import begin
from tests.standins.azure_resources import (
    KINDS,
    Kind,
    check_policy,
    check_tags,
    check_unlocked,
    existing,
    kind,
    location,
    open_group,
)
from tests.standins.azure_world import Thing, World, resource_id, same

TYPE = "Microsoft.DevTestLab/schedules"
TASK = "ComputeVmShutdownTask"
PREFIX = "shutdown-computevm-"
KNOWN = {
    "status": ("Enabled", "Disabled"),
    "taskType": (TASK,),
    "dailyRecurrence": None,
    "timeZoneId": None,
    "targetResourceId": None,
    "notificationSettings": None,
}
"""https://learn.microsoft.com/azure/templates/microsoft.devtestlab/schedules; azure-mgmt has no
library for it here."""


@kind
class Schedules(Kind):
    type = TYPE
    word = "schedule"

    def properties(self, world: World, thing: Thing) -> Body:
        return {**thing.properties, "createdDate": world.stamp(thing.born), **thing.made}


_ITEM = (
    "/subscriptions/{subscription}/resourceGroups/{group}"
    "/providers/Microsoft.DevTestLab/schedules/{name}"
)


@route("PUT", _ITEM, f"{TYPE}/write")
def _put(call: Call) -> Response:
    world, name = call.world, call.given["name"]
    id = resource_id(open_group(call).name, TYPE, name)
    body = call.body()
    if set(body) - {"location", "properties", "tags", "id", "name", "type"}:
        raise real("content-invalid")
    if not body.get("location"):
        raise real("location-missing")
    given = {key: value for key, value in body.items() if key in ("location", "properties", "tags")}
    given["location"] = location(body["location"], TYPE, world.lacking.get(TYPE, ()))
    check_tags(given.get("tags") or {})
    check_policy(world, name, given["location"], given.get("tags") or {})
    _check(world, name, given)
    old = world.find(id)
    thing = old or world.add(Thing(id, TYPE, given, world.now(), {}, "Succeeded"))
    before = old.properties["dailyRecurrence"]["time"] if old is not None else None
    first = first_moment(world.now(), given["properties"]["dailyRecurrence"]["time"], before)
    thing.given = given
    thing.made = {"uniqueIdentifier": str(world.number())}
    _arm(world, thing, first)
    return call.answer(KINDS[TYPE.lower()].view(call, thing), 200 if old else 201)


@route("PATCH", _ITEM, f"{TYPE}/write")
def _patch(call: Call) -> Response:
    """ "Allows modifying tags of schedules. All other properties will be ignored."
    https://learn.microsoft.com/rest/api/dtl/global-schedules/update"""
    open_group(call)
    call.given.update(namespace="Microsoft.DevTestLab", kind="schedules")
    thing, tags = existing(call), call.body().get("tags") or {}
    check_tags(tags)
    thing.given = {**thing.given, "tags": tags}
    return call.answer(KINDS[TYPE.lower()].view(call, thing))


@route("DELETE", _ITEM, f"{TYPE}/delete")
def _delete(call: Call) -> Response:
    group = open_group(call)
    call.given.update(namespace="Microsoft.DevTestLab", kind="schedules")
    try:
        thing = existing(call)
        check_unlocked(call.world, group.name, thing.id)
        call.world.remove(thing)
    except Refusal as refusal:
        if refusal.code == "ScopeLocked":
            raise
        return call.nothing(204)
    return call.nothing(200)


def _check(world: World, name: str, given: Body) -> None:
    properties = given.get("properties") or {}
    for key, value in properties.items():
        if key not in KNOWN:
            raise real("schedule-member-unknown", key=key)
        values = KNOWN[key]
        if values and value not in values:
            raise real("schedule-value-invalid", value=value, key=key)
    for key in ("taskType", "dailyRecurrence", "timeZoneId", "targetResourceId"):
        if not properties.get(key):
            raise real("parameter-missing", name=key)
    if properties["timeZoneId"] != "UTC":
        raise not_acted_out("other time zones than UTC")
    text = properties["dailyRecurrence"].get("time", "")
    if len(text) != 4 or not text.isdecimal() or int(text[:2]) > 23 or int(text[2:]) > 59:
        raise real("schedule-time-invalid", text=text)
    target = world.find(properties["targetResourceId"])
    if target is None or not same(target.type, VMS):
        raise real("schedule-target-absent", target_resource_id=properties["targetResourceId"])
    if not same(name, PREFIX + target.name):
        raise real("schedule-name-invalid", prefix=PREFIX)
    if target.region != given["location"]:
        raise real("schedule-elsewhere")


def _arm(world: World, thing: Thing, first: float) -> None:
    """At its first moment, and every day after."""
    number = thing.made["uniqueIdentifier"]

    def happen() -> None:
        if world.find(thing.id) is not thing or thing.made["uniqueIdentifier"] != number:
            return
        target = world.find(thing.properties["targetResourceId"])
        if (
            target is not None
            and target.state != "Deleting"
            and thing.properties.get("status") != "Disabled"
        ):
            begin(world, target, "deallocate")
        time = thing.properties["dailyRecurrence"]["time"]
        world.at(next_moment(world.now(), time), happen)

    world.at(first, happen)


GAP = 31 * 60.0
"""A schedule runs on the same day only where it was made so many seconds ahead: what Microsoft's
support says of schedules with notifications; how many without is published nowhere."""
LATE = 30 * 60.0
"""\"If you update the schedule within 30 minutes of the previously scheduled time, the new time
takes effect the next day\": https://learn.microsoft.com/azure/devtest-labs/devtest-lab-auto-shutdown
"""


def first_moment(now: float, time: str, before: str | None) -> float:
    """`before`: the time that is changed."""
    found = next_moment(now, time)
    late = before not in (None, time) and next_moment(now, str(before)) - now < LATE
    return next_moment(found, time) if found - now < GAP or late else found


def next_moment(now: float, time: str) -> float:
    """`time` is HHmm, UTC."""
    today = datetime.fromtimestamp(now, timezone.utc)
    found = today.replace(hour=int(time[:2]), minute=int(time[2:]), second=0, microsecond=0)
    return (found if found > today else found + timedelta(days=1)).timestamp()
