"""What every type of resource has in common: PUT, PATCH, GET, list, DELETE."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from typing import Any

from werkzeug.wrappers import Response

from tests.standins import azure_models
from tests.standins.azure_call import Call, described, route
from tests.standins.azure_errors import (
    Body,
    Refusal,
    real,
)
from tests.standins.azure_offer import REGIONS, SINCE
from tests.standins.azure_world import (
    WORKING,
    Operation,
    Thing,
    World,
    group_id,
    resource_id,
    same,
)

NETWORK_NAME = r"[A-Za-z0-9](?:[\w.-]{0,78}\w)?\Z"


class Kind:
    """One type of resource; what differs is overridden."""

    type: str
    word: str
    """For people."""
    model: Any
    update: Any
    """The model of a PATCH."""
    name_rule = NETWORK_NAME
    new_state = "Updating"
    """While it is being made."""

    def keep(self, given: Body, old: Body) -> None:
        """What a second PUT may leave out stays as it was."""

    def check(self, world: World, id: str, given: Body, old: Thing | None) -> None:
        """Raises Refusal for what the model cannot tell."""

    def make(self, world: World, thing: Thing, old_given: Body | None) -> None:
        """Accepted: `thing.made` is filled."""

    def finish(self, world: World, thing: Thing) -> Refusal | None:
        """The time of making or changing it is over."""
        return None

    def properties(self, world: World, thing: Thing) -> Body:
        """What a GET shows, with what was given."""
        return {**copy.deepcopy(thing.properties), **thing.made}

    def check_delete(self, world: World, thing: Thing) -> None:
        """Raises Refusal while something else needs it."""

    def going(self, world: World, thing: Thing) -> None:
        """Its deletion has begun."""

    def gone(self, world: World, thing: Thing) -> None:
        """It is deleted: so is what goes with it."""

    def words(self, thing: Thing) -> str:
        return f"{self.word} {thing.name}"

    # ── The same for all ─────────────────────────────────────────────────────

    def view(self, call: Call, thing: Thing) -> Body:
        return described(call, thing, self.properties(call.world, thing))

    def put(self, call: Call, id: str, body: Body) -> tuple[Thing, bool]:
        """The thing, and whether it is new."""
        world, old = call.world, call.world.find(id)
        self.check_words(call, id.rpartition("/")[2], body)
        given = azure_models.checked(self.model, body)
        given["location"] = location(given["location"], self.type, world.lacking.get(self.type, ()))
        check_tags(given.get("tags") or {})
        check_policy(world, id.rpartition("/")[2], given["location"], given.get("tags") or {})
        if old is not None and not same(old.region, given["location"]):
            raise real(
                "resource-elsewhere",
                old=old.name,
                region=old.region,
                group=old.group,
                location=given["location"],
            )
        if old is not None and old.state == "Deleting":
            raise self.busy(old)
        if old is not None:
            self.keep(given, old.given)
        if old is not None and old.given == given and old.state != "Failed":
            return old, False
        if old is not None and old.state in WORKING:
            raise self.busy(old)
        self.check(world, id, given, old)
        before = old.given if old is not None else None
        thing = old or world.add(Thing(id, self.type, given, world.now()))
        thing.given = given
        self.make(world, thing, before)
        state = self.new_state if old is None else "Updating"
        world.operate(thing, state, lambda: self.finish(world, thing))
        return thing, old is None

    def check_words(self, call: Call, name: str, body: Body) -> None:
        """What can be refused without a look at what exists."""
        if not re.match(self.name_rule, name):
            raise real("resource-name-invalid", name=name)
        for path in azure_models.paths(body):
            since = SINCE.get(self.type.lower(), {}).get(path, "")
            if call.version < since:
                raise real(
                    "member-not-of-version",
                    member=path.rpartition(".")[2],
                    type=self.type,
                    path=path,
                )
        if not body.get("location"):
            raise real("location-missing")

    def delete(self, world: World, thing: Thing) -> Operation:
        """Begins it, without asking whether it may be."""
        if thing.operation is not None and thing.state == "Deleting":
            return thing.operation
        self.going(world, thing)

        def gone() -> Refusal | None:
            world.remove(thing)
            self.gone(world, thing)
            return None

        return world.operate(thing, "Deleting", gone)

    def busy(self, thing: Thing) -> Refusal:
        return real("another-operation-in-progress", thing=thing.id)


KINDS: dict[str, Kind] = {}
"""By type, in lower case."""


def kind(cls: type[Kind]) -> type[Kind]:
    KINDS[cls.type.lower()] = cls()
    return cls


def kind_of(thing: Thing) -> Kind:
    return KINDS.get(thing.type.lower()) or _PLAIN


_PLAIN = Kind()
"""Of a role assignment, which is no resource but goes with its group."""


# ── Calls ────────────────────────────────────────────────────────────────────

_ITEM = "/subscriptions/{subscription}/resourceGroups/{group}/providers/{namespace}/{kind}/{name}"


@route("PUT", _ITEM, "{namespace}/{kind}/write")
def _put(call: Call) -> Response:
    found = asked(call)
    id = resource_id(open_group(call).name, found.type, call.given["name"])
    thing, new = found.put(call, id, call.body())
    response = call.answer(found.view(call, thing), 201 if new else 200)
    return call.started(response, thing.operation)


@route("PATCH", _ITEM, "{namespace}/{kind}/write")
def _patch(call: Call) -> Response:
    found, thing = asked(call), existing(call)
    change = azure_models.checked(found.update, call.body())
    open_group(call)
    found.put(call, thing.id, merged(thing.given, change))
    return call.started(call.answer(found.view(call, thing)), thing.operation)


@route("GET", _ITEM, "{namespace}/{kind}/read")
def _get(call: Call) -> Response:
    return call.answer(asked(call).view(call, existing(call)))


@route("DELETE", _ITEM, "{namespace}/{kind}/delete")
def _delete(call: Call) -> Response:
    found, group = asked(call), group_of(call)
    thing = call.world.find(resource_id(group.name, found.type, call.given["name"]))
    if thing is None:
        return call.nothing(204)
    check_unlocked(call.world, group.name, thing.id)
    if thing.state != "Deleting":
        found.check_delete(call.world, thing)
    return call.started(call.nothing(202), found.delete(call.world, thing))


@route(
    "GET",
    "/subscriptions/{subscription}/resourceGroups/{group}/providers/{namespace}/{kind}",
    "{namespace}/{kind}/read",
)
def _list_of_group(call: Call) -> Response:
    found, group = asked(call), group_of(call)
    things = call.world.of_type(found.type, group.name.lower())
    return call.page([found.view(call, one) for one in things])


@route(
    "GET", "/subscriptions/{subscription}/providers/{namespace}/{kind}", "{namespace}/{kind}/read"
)
def _list(call: Call) -> Response:
    found = asked(call)
    return call.page([found.view(call, one) for one in call.world.of_type(found.type)])


# ── What they share ──────────────────────────────────────────────────────────


def asked(call: Call) -> Kind:
    namespace, name = call.given["namespace"], call.given["kind"]
    found = KINDS.get(f"{namespace}/{name}".lower())
    if found is None:
        raise real("type-not-of-version", name=name, namespace=namespace, version=call.version)
    return found


def group_of(call: Call) -> Thing:
    group = call.world.find(group_id(call.given["group"]))
    if group is None:
        raise real("group-absent", name=call.given["group"])
    return group


def check_unlocked(world: World, group: str, id: str) -> None:
    """https://learn.microsoft.com/azure/azure-resource-manager/management/lock-resources: a lock
    CanNotDelete forbids to delete, and to do nothing else: a VM is still deallocated."""
    if any(same(group, one) for one in world.locks):
        raise real("scope-locked", scope=id, locked=f"'{group_id(group)}'")


def open_group(call: Call) -> Thing:
    """One in which things can be made."""
    group = group_of(call)
    if group.state == "Deleting":
        raise real("group-being-deleted", group=group.name)
    return group


def existing(call: Call) -> Thing:
    found, group = asked(call), group_of(call)
    thing = call.world.find(resource_id(group.name, found.type, call.given["name"]))
    if thing is None:
        raise real("resource-absent", kind=found.type, name=call.given["name"], group=group.name)
    return thing


def merged(given: Body, change: Body) -> Body:
    """Tags are replaced; properties are merged."""
    made = copy.deepcopy(given)
    for name, value in change.items():
        if name != "tags" and isinstance(value, dict) and isinstance(made.get(name), dict):
            made[name] = merged(made[name], value)
        else:
            made[name] = value
    return made


def location(text: str, type: str, lacking: Sequence[str] = ()) -> str:
    """`East US` is `eastus`. `lacking`: regions without this type."""
    name = text.replace(" ", "").lower()
    if name not in REGIONS or name in lacking:
        what = "ResourceGroup" if type.endswith("/resourceGroups") else "ResourceType"
        served = ",".join(one for one in REGIONS if one not in lacking)
        raise real("location-not-available", what=what, location=text, type=type, served=served)
    return name


def check_policy(world: World, name: str, region: str, tags: dict[str, str]) -> None:
    """The built-in policies "Allowed locations", "Require a tag on resources" and "… on resource
    groups", and the regions of an account for students.

    https://learn.microsoft.com/azure/azure-resource-manager/management/tag-policies
    """
    for allowed, refusal in (
        (world.allowed_locations, "allowed-locations"),
        (world.best_regions, "best-available-regions"),
    ):
        if allowed and region.replace(" ", "").lower() not in allowed:
            raise real(refusal, resource=name)
    lacking = {each.lower() for each in world.required_tags} - {each.lower() for each in tags}
    if lacking:
        assigned = f"Require a tag: {', '.join(sorted(lacking))}"
        identifiers = json.dumps([{"policyAssignment": {"name": assigned}}])
        raise real("denied-by-policy", name=name, identifiers=identifiers)


def check_tags(tags: dict[str, str]) -> None:
    """https://learn.microsoft.com/azure/azure-resource-manager/management/tag-resources#limitations"""
    if len(tags) > 50:
        raise real("too-many-tags", tags=len(tags))
    for name, value in tags.items():
        if not name or len(name) > 512 or re.search(r"[<>%&\\?/]", name):
            raise real("tag-name-invalid", name=name)
        if name.lower().startswith(("microsoft", "azure", "windows")):
            raise real("tag-name-reserved", name=name)
        if not isinstance(value, str) or len(value) > 256:
            raise real("tag-value-too-long", name=name)
