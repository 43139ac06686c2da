"""Subnets of a network and rules of a security group, each by its own calls."""

from __future__ import annotations

import copy

from azure.mgmt.network import models
from werkzeug.wrappers import Response

from tests.standins import azure_models
from tests.standins.azure_call import Call, route
from tests.standins.azure_errors import Body, real
from tests.standins.azure_references import check_subnet_free, child
from tests.standins.azure_resources import KINDS, existing, open_group
from tests.standins.azure_world import Thing, same

MODELS = {"subnets": models.Subnet, "securityrules": models.SecurityRule}
WORDS = {"subnets": "subnets", "securityrules": "securityRules"}
_PARENTS = (
    "/subscriptions/{subscription}/resourceGroups/{group}/providers/{namespace}"
    "/{kind}/{name}/{part}"
)
_PART = _PARENTS + "/{own}"


@route("GET", _PARENTS, "{namespace}/{kind}/{part}/read")
def _list(call: Call) -> Response:
    thing, name = existing(call), _part(call)
    return call.page([child(thing, name, one) for one in _parts(thing, name)])


@route("GET", _PART, "{namespace}/{kind}/{part}/read")
def _get(call: Call) -> Response:
    thing, name = existing(call), _part(call)
    found = _find(call, thing, name)
    if found is None:
        raise real("subresource-absent", thing=thing.id, name=name, own=call.given["own"])
    return call.answer(child(thing, name, found))


@route("PUT", _PART, "{namespace}/{kind}/{part}/write")
def _put(call: Call) -> Response:
    open_group(call)
    thing, name = existing(call), _part(call)
    body = azure_models.checked(MODELS[name.lower()], call.body())
    part = {"name": call.given["own"], "properties": body.get("properties") or {}}
    old = _find(call, thing, name)
    others = [one for one in _parts(thing, name) if one is not old]
    _change(call, thing, name, [*others, part])
    response = call.answer(child(thing, name, part), 200 if old else 201)
    return call.started(response, thing.operation)


@route("DELETE", _PART, "{namespace}/{kind}/{part}/delete")
def _delete(call: Call) -> Response:
    thing, name = existing(call), _part(call)
    old = _find(call, thing, name)
    if old is None:
        return call.nothing(204)
    if name == "subnets":
        check_subnet_free(call.world, f"{thing.id}/subnets/{old['name']}")
    _change(call, thing, name, [one for one in _parts(thing, name) if one is not old])
    return call.started(call.nothing(202), thing.operation)


def _part(call: Call) -> str:
    name = WORDS.get(call.given["part"].lower())
    if name is None:
        raise real("subresource-type-unknown", kind=call.given["kind"], part=call.given["part"])
    return name


def _parts(thing: Thing, name: str) -> list[Body]:
    return list(thing.properties.get(name) or [])


def _find(call: Call, thing: Thing, name: str) -> Body | None:
    wanted = call.given["own"]
    return next((one for one in _parts(thing, name) if same(one["name"], wanted)), None)


def _change(call: Call, thing: Thing, name: str, parts: list[Body]) -> None:
    given = copy.deepcopy(thing.given)
    given["properties"][name] = copy.deepcopy(parts)
    KINDS[thing.type.lower()].put(call, thing.id, given)
