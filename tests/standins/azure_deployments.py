"""Deployments that are validated and never made: their resources are held against the same rules.

https://learn.microsoft.com/rest/api/resources/deployments/validate-at-subscription-scope
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator

from werkzeug.wrappers import Response

from tests.standins import azure_machine_rules as rules
from tests.standins import azure_models
from tests.standins.azure_call import Call, route
from tests.standins.azure_errors import Body, Refusal, real
from tests.standins.azure_offer import SINCE
from tests.standins.azure_resources import KINDS, check_policy, location, open_group
from tests.standins.azure_room import check_sold, limit, needed, over_quota, usage
from tests.standins.azure_world import World

KNOWN = frozenset(
    {
        *("type", "apiVersion", "name", "location", "tags", "properties", "sku", "zones"),
        *("identity", "plan", "dependsOn"),
    }
)


@route(
    "POST",
    "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Resources"
    "/deployments/{name}/validate",
    "Microsoft.Resources/deployments/validate/action",
)
@route(
    "POST",
    "/subscriptions/{subscription}/providers/Microsoft.Resources/deployments/{name}/validate",
    "Microsoft.Resources/deployments/validate/action",
)
def _validate(call: Call) -> Response:
    body = call.body()
    properties = body.get("properties") or {}
    if "group" in call.given:
        open_group(call)
    elif not body.get("location"):
        raise real("deployment-without-location")
    if properties.get("mode") != "Incremental" or "template" not in properties:
        raise real("deployment-mode")
    refusals = []
    resources = list(_resources(properties["template"]))
    names = {one["name"] for one in resources}
    for one in resources:
        try:
            _check(call.world, one, names)
        except Refusal as refusal:
            refusals.append(refusal)
    refusals += _quotas(call.world, resources)
    if refusals:
        refused = real("deployment-not-valid", deployment=call.given["name"])
        refused.details = tuple(one.error() for one in refusals)
        raise refused
    told = {"provisioningState": "Succeeded", "mode": "Incremental"}
    return call.answer({"name": call.given["name"], "properties": told})


def _resources(template: Body) -> Iterator[Body]:
    if not template.get("$schema") or not template.get("contentVersion"):
        raise real("template-incomplete")
    for one in template["resources"]:
        if one["type"] == "Microsoft.Resources/deployments":
            yield from _resources(one["properties"]["template"])
        elif one["type"] != "Microsoft.Resources/resourceGroups":
            yield one


def _check(world: World, one: Body, names: set[str]) -> None:
    kind = KINDS.get(str(one["type"]).lower())
    if kind is None or set(one) - KNOWN or not one.get("apiVersion"):
        raise real("template-resource-invalid", name=one.get("name"))
    if one["type"].lower() in [type.lower() for type in world.policies]:
        raise real("type-denied-by-policy", name=one["name"])
    check_policy(world, str(one["name"]), str(one["location"]), one.get("tags") or {})
    for id in one.get("dependsOn") or ():
        if id.rpartition("/")[2] not in names:
            raise real("template-dependency-absent", id=id)
    body = {k: v for k, v in one.items() if k not in ("type", "apiVersion", "name", "dependsOn")}
    for path in azure_models.paths(body):
        if one["apiVersion"] < SINCE.get(kind.type.lower(), {}).get(path, ""):
            raise real("template-member-unknown", path=path)
    world.version = one["apiVersion"]
    given = azure_models.checked(kind.model, copy.deepcopy(body))
    given["location"] = location(given["location"], kind.type)
    if kind.type == rules.VMS:
        rules.check_alone(world, given)
        check_sold(world, given)


def _quotas(world: World, resources: list[Body]) -> Iterator[Refusal]:
    need: dict[str, Counter[str]] = {}
    for one in resources:
        if one["type"] == rules.VMS:
            region = location(one["location"], rules.VMS)
            need.setdefault(region, Counter()).update(needed(one))
    for region, wanted in need.items():
        used = usage(world, region)
        for name, number in wanted.items():
            most = limit(world, region, name)
            if used[name] + number > most:
                yield over_quota(name, region, most, used[name], number)
