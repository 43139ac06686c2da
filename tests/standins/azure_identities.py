"""User-assigned managed identities: what a VM may name, and what is said of them.

https://learn.microsoft.com/rest/api/managedidentity/user-assigned-identities/get; the refusals are
as Azure/azure-policy#1311 and Azure/aad-pod-identity#585 quote them.
"""

from __future__ import annotations

import re
import uuid

from werkzeug.wrappers import Response

from tests.standins.azure_auth import TENANT
from tests.standins.azure_call import Call, route
from tests.standins.azure_errors import Body, real
from tests.standins.azure_world import SUBSCRIPTION, World

KIND = "Microsoft.ManagedIdentity/userAssignedIdentities"
ID = re.compile(
    rf"/subscriptions/{SUBSCRIPTION}/resourcegroups/([^/]+)/providers/{re.escape(KIND)}/([^/]+)",
    re.IGNORECASE,
)


@route(
    "GET",
    f"/subscriptions/{{subscription}}/resourceGroups/{{group}}/providers/{KIND}/{{name}}",
    f"{KIND}/read",
)
def _get(call: Call) -> Response:
    known = _known(call.world, call.given["group"], call.given["name"])
    if known is None:
        raise real("resource-absent", kind=KIND, name=call.given["name"], group=call.given["group"])
    body = {"id": call.request.path, "name": call.given["name"], "type": KIND}
    return call.answer({**body, "location": "eastus", "properties": described(known)})


def described(name: str) -> Body:
    principal = str(uuid.uuid5(uuid.NAMESPACE_URL, f"principal/{name}"))
    client = str(uuid.uuid5(uuid.NAMESPACE_URL, f"client/{name}"))
    return {"tenantId": TENANT, "principalId": principal, "clientId": client}


def named(identity: Body) -> list[str]:
    """IDs in the `identity` of a VM."""
    return list((identity or {}).get("userAssignedIdentities") or ())


def check(world: World, vm: str, identity: Body) -> None:
    """Raises Refusal for an identity that does not exist."""
    for id in named(identity):
        found = ID.fullmatch(id)
        if found and _known(world, found[1], found[2]):
            continue
        inner = f'{{"error":{{"code":"BadRequest","message":"Resource \'{id}\' was not found."}}}}'
        raise real("identity-operation-failed", vm=vm, inner=inner)


def view(identity: Body) -> Body:
    """As a GET of the VM shows it."""
    told = {id: described("/".join(ID.fullmatch(id).groups()).lower()) for id in named(identity)}  # type: ignore[union-attr]
    for one in told.values():
        one.pop("tenantId")
    return {**identity, "userAssignedIdentities": told}


def _known(world: World, group: str, name: str) -> str | None:
    wanted = f"{group}/{name}".lower()
    return wanted if wanted in [one.lower() for one in world.identities] else None
