"""Resource groups, and the list of everything in the subscription."""

from __future__ import annotations

import re

from azure.mgmt.resource.resources import models
from werkzeug.wrappers import Response

from tests.standins import azure_models
from tests.standins.azure_call import Call, described, route
from tests.standins.azure_errors import Body, Refusal, real
from tests.standins.azure_resources import (
    KINDS,
    check_policy,
    check_tags,
    check_unlocked,
    group_of,
    kind_of,
    location,
    merged,
    open_group,
)
from tests.standins.azure_world import GROUPS, Thing, World, group_id, ids_in, same

_GROUPS = "/subscriptions/{subscription}/resourcegroups"
_GROUP = _GROUPS + "/{group}"
_READ, _WRITE, _DELETE = (
    f"Microsoft.Resources/subscriptions/resourceGroups/{verb}"
    for verb in ("read", "write", "delete")
)
FORCED = (
    "microsoft.compute/virtualmachines",
    "microsoft.compute/virtualmachinescalesets",
    "microsoft.databricks/workspaces",
)
"""https://learn.microsoft.com/rest/api/resources/resource-groups/delete"""
FIELDS = ("tagname", "tagvalue", "resourcetype", "name", "location", "resourcegroup")


@route("PUT", _GROUP, _WRITE)
def _put(call: Call) -> Response:
    world, name = call.world, call.given["group"]
    if not re.match(r"[-\w.()]{0,89}[-\w()]\Z", name):
        raise real("group-name-invalid", name=name)
    body = call.body()
    if not body.get("location"):
        raise real("location-missing")
    given = azure_models.checked(models.ResourceGroup, body)
    given["location"] = location(given["location"], GROUPS)
    check_tags(given.get("tags") or {})
    check_policy(world, name, given["location"], given.get("tags") or {})
    old = world.find(group_id(name))
    if old is not None and old.state == "Deleting":
        raise real("group-being-deleted", group=name)
    if old is not None and old.region != given["location"]:
        raise real("group-in-another-location", location=given["location"], region=old.region)
    thing = old or world.add(Thing(group_id(name), GROUPS, given, world.now(), {}, "Succeeded"))
    thing.given = given
    return call.answer(described(call, thing, {}), 200 if old else 201)


@route("PATCH", _GROUP, _WRITE)
def _patch(call: Call) -> Response:
    thing = open_group(call)
    change = azure_models.checked(models.ResourceGroupPatchable, call.body())
    check_tags(change.get("tags") or {})
    thing.given = merged(thing.given, change)
    return call.answer(described(call, thing, {}))


@route("GET", _GROUP, _READ)
def _get(call: Call) -> Response:
    return call.answer(described(call, group_of(call), {}))


@route("HEAD", _GROUP, _READ)
def _head(call: Call) -> Response:
    return call.nothing(204 if call.world.find(group_id(call.given["group"])) else 404)


@route("GET", _GROUPS, _READ)
def _list(call: Call) -> Response:
    wanted = conditions(call)
    if set(wanted) - {"tagname", "tagvalue"}:
        raise _bad_filter(call)
    found = [one for one in call.world.of_type(GROUPS) if _fits(one, wanted)]
    return call.page([described(call, one, {}) for one in found])


@route("DELETE", _GROUP, _DELETE)
def _delete(call: Call) -> Response:
    thing, world = group_of(call), call.world
    check_unlocked(world, thing.name, thing.id)
    forced = call.query.get("forceDeletionTypes", "")
    for kind in filter(None, forced.split(",")):
        world.forced.append(kind)
        if kind.lower() not in FORCED:
            raise real("no-forced-deletion", kind=kind)
    if thing.state != "Deleting":
        world.operate(thing, "Deleting", lambda: _emptied(world, thing))
        for one in _in_order(world.in_group(thing.name)):
            kind_of(one).going(world, one)
            if one.operation is not None:
                one.operation.ended, one.operation.status = world.now(), "Canceled"
            one.state = "Deleting"
    return call.started(call.nothing(202), thing.operation)


def _emptied(world: World, group: Thing) -> Refusal | None:
    inside = world.in_group(group.name)
    own = {one.id.lower() for one in inside}
    for other in world.things.values():
        if other.id.lower() not in own and other is not group:
            used = ids_in([other.properties, other.made])
            blocked = [id for id in used if id in own or id.rpartition("/subnets/")[0] in own]
            if blocked:
                for one in inside:
                    one.state = "Succeeded"
                return real(
                    "group-deletion-blocked", group=group.name, blocked=blocked[0], other=other.id
                )
    for one in _in_order(inside):
        if world.find(one.id) is one:
            world.remove(one)
            kind_of(one).gone(world, one)
    world.remove(group)
    return None


def _in_order(things: list[Thing]) -> list[Thing]:
    """Virtual machines first: they look at what they have."""
    return sorted(things, key=lambda one: not one.type.endswith("/virtualMachines"))


# ── Everything ───────────────────────────────────────────────────────────────


@route(
    "GET",
    "/subscriptions/{subscription}/resources",
    "Microsoft.Resources/subscriptions/resources/read",
)
def _resources(call: Call) -> Response:
    return _listed(call, list(call.world.things.values()))


@route(
    "GET",
    "/subscriptions/{subscription}/resourcegroups/{group}/resources",
    "Microsoft.Resources/subscriptions/resourceGroups/resources/read",
)
def _resources_of_group(call: Call) -> Response:
    return _listed(call, call.world.in_group(group_of(call).name))


def _listed(call: Call, things: list[Thing]) -> Response:
    """https://learn.microsoft.com/rest/api/resources/resources/list"""
    world, wanted = call.world, conditions(call)
    expand = [one for one in call.query.get("$expand", "").split(",") if one]
    if set(expand) - {"createdTime", "changedTime", "provisioningState"}:
        raise real("expand-unknown", expand=expand)
    if {"tagname", "tagvalue"} & set(wanted) and set(wanted) - {"tagname", "tagvalue"}:
        raise _bad_filter(call)
    since = world.now() - max(world.lag, world.wide_lag)
    found = []
    for one in things:
        if one.type.lower() in KINDS and one.born <= since and _fits(one, wanted):
            body = described(call, one, {})
            del body["properties"]
            if "provisioningState" in expand:
                body["provisioningState"] = one.state
            for name in {"createdTime", "changedTime"} & set(expand):
                body[name] = world.stamp(one.born)
            found.append(body)
    return call.page(found)


def conditions(call: Call) -> dict[str, str]:
    found = {}
    text = call.query.get("$filter", "")
    for part in re.split(r"\s+and\s+", text) if text else []:
        match = re.match(r"(\w+)\s+eq\s+'((?:[^']|'')*)'\Z", part.strip(), re.IGNORECASE)
        if not match or match[1].lower() not in FIELDS:
            raise _bad_filter(call)
        found[match[1].lower()] = match[2].replace("''", "'")
    return found


def _bad_filter(call: Call) -> Refusal:
    return real("filter-invalid", filter=call.query.get("$filter"))


def _fits(thing: Thing, wanted: dict[str, str]) -> bool:
    tags: Body = {key.lower(): value for key, value in thing.tags.items()}
    name = wanted.get("tagname")
    if name is not None and name.lower() not in tags:
        return False
    if name is not None and "tagvalue" in wanted and tags[name.lower()] != wanted["tagvalue"]:
        return False
    shown = {"resourcetype": thing.type, "name": thing.name, "location": thing.region}
    shown["resourcegroup"] = thing.group
    return all(same(shown[key], wanted[key]) for key in shown if key in wanted)
