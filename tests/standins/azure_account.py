"""Subscriptions, locations, registrations, permissions, role assignments, and what "
"became of operations."""

from __future__ import annotations

import re
import uuid

from werkzeug.wrappers import Response

from tests.standins import azure_identities
from tests.standins.azure_auth import OBJECT, TENANT
from tests.standins.azure_call import Call, route
from tests.standins.azure_errors import Body, real
from tests.standins.azure_offer import API_VERSIONS, REGIONS
from tests.standins.azure_resources import KINDS
from tests.standins.azure_rights import granted_in
from tests.standins.azure_world import SUBSCRIPTION, Thing, World

STORES = "stores"
"""Group of `world.storage_accounts`, which is not listed."""
ASSIGNMENTS = "Microsoft.Authorization/roleAssignments"
NAMESPACES = (
    "Microsoft.Authorization",
    "Microsoft.Compute",
    "Microsoft.ComputeSchedule",
    "Microsoft.DevTestLab",
    "Microsoft.Network",
    "Microsoft.Resources",
    "Microsoft.Storage",
    "Microsoft.ManagedIdentity",
    "Microsoft.Features",
)
MORE_TYPES = {
    "Microsoft.ComputeSchedule": (
        *("operations", "locations", "locations/virtualMachinesSubmitDeallocate"),
        *(
            "locations/virtualMachinesCancelOperations",
            "locations/virtualMachinesGetOperationStatus",
        ),
    )
}
"""Besides those of resources."""


@route("GET", "/subscriptions", "Microsoft.Resources/subscriptions/read")
def _subscriptions(call: Call) -> Response:
    return call.page([subscription(call.world)])


@route("GET", "/subscriptions/{subscription}", "Microsoft.Resources/subscriptions/read")
def _subscription(call: Call) -> Response:
    return call.answer(subscription(call.world))


def subscription(world: World) -> Body:
    return {
        "id": f"/subscriptions/{SUBSCRIPTION}",
        "authorizationSource": "RoleBased",
        "managedByTenants": [],
        "subscriptionId": SUBSCRIPTION,
        "tenantId": TENANT,
        "displayName": "A stand-in",
        "state": world.subscription_state,
        "subscriptionPolicies": {
            "locationPlacementId": "Public_2014-09-01",
            "quotaId": "PayAsYouGo_2014-09-01",
            "spendingLimit": "Off",
        },
    }


@route(
    "GET",
    "/subscriptions/{subscription}/locations",
    "Microsoft.Resources/subscriptions/locations/read",
)
def _locations(call: Call) -> Response:
    return call.answer({"value": [_location(name) for name in REGIONS]})


def _location(name: str) -> Body:
    shown, zones = REGIONS[name]
    body: Body = {
        "id": f"/subscriptions/{SUBSCRIPTION}/locations/{name}",
        "name": name,
        "type": "Region",
        "displayName": shown,
        "regionalDisplayName": shown,
        "metadata": {"regionType": "Physical", "regionCategory": "Recommended"},
    }
    if zones:
        body["availabilityZoneMappings"] = [
            {"logicalZone": zone, "physicalZone": f"{name}-az{zone}"} for zone in zones
        ]
    return body


# ── Registrations ────────────────────────────────────────────────────────────

_PROVIDERS = "/subscriptions/{subscription}/providers"
_READ = "Microsoft.Resources/subscriptions/providers/read"


@route("GET", _PROVIDERS, _READ)
def _providers(call: Call) -> Response:
    return call.page(
        [_provider(call.world, name) for name in NAMESPACES if name not in call.world.absent]
    )


@route("GET", _PROVIDERS + "/{namespace}", _READ)
def _get_provider(call: Call) -> Response:
    return call.answer(_provider(call.world, _namespace(call)))


@route("POST", _PROVIDERS + "/{namespace}/register", "{namespace}/register/action")
def _register(call: Call) -> Response:
    name, world = _namespace(call), call.world
    if registered(world, name):
        return call.answer(_provider(world, name))

    def done() -> None:
        world.unregistered[:] = [one for one in world.unregistered if one.lower() != name.lower()]

    body = {**_provider(world, name), "registrationState": "Registering"}
    world.at(world.now() + world.delay, done)
    return call.answer(body)


def _namespace(call: Call) -> str:
    wanted = call.given["namespace"]
    found = next((one for one in NAMESPACES if one.lower() == wanted.lower()), None)
    if found is None or found in call.world.absent:
        raise real("namespace-unknown", namespace=wanted)
    return found


def _provider(world: World, name: str) -> Body:
    own = [one.type.partition("/")[2] for one in KINDS.values() if one.type.startswith(f"{name}/")]
    versions = API_VERSIONS.get(name.lower(), [])
    types = [
        {
            "resourceType": one,
            "locations": [
                shown
                for region, (shown, _) in REGIONS.items()
                if region not in world.lacking.get(f"{name}/{one}", ())
            ],
            "apiVersions": versions,
        }
        for one in [*own, *MORE_TYPES.get(name, ())]
    ]
    return {
        "id": f"/subscriptions/{SUBSCRIPTION}/providers/{name}",
        "namespace": name,
        "resourceTypes": types,
        "registrationState": "Registered" if registered(world, name) else "NotRegistered",
        "registrationPolicy": "RegistrationRequired",
    }


def registered(world: World, namespace: str) -> bool:
    return namespace.lower() not in [one.lower() for one in world.unregistered]


# ── Features, storage accounts ───────────────────────────────────────────────


@route(
    "GET",
    "/subscriptions/{subscription}/providers/Microsoft.Features/providers/{owner}/features/{name}",
    "Microsoft.Features/providers/features/read",
)
def _feature(call: Call) -> Response:
    """https://learn.microsoft.com/rest/api/resources/features/get"""
    name = f"{call.given['owner']}/{call.given['name']}"
    has = name.lower() in [one.lower() for one in call.world.features]
    properties = {"state": "Registered" if has else "NotRegistered"}
    body = {"id": call.request.path, "name": name, "type": "Microsoft.Features/providers/features"}
    return call.answer({**body, "properties": properties})


_ACCOUNTS = "Microsoft.Storage/storageAccounts"


@route("GET", f"/subscriptions/{{subscription}}/providers/{_ACCOUNTS}", f"{_ACCOUNTS}/read")
def _storage_accounts(call: Call) -> Response:
    base = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/stores/providers/{_ACCOUNTS}"
    things = [
        {"id": f"{base}/{name}", "name": name, "type": _ACCOUNTS, "location": "eastus"}
        for name in call.world.storage_accounts
    ]
    return call.page(things)


@route(
    "GET",
    "/subscriptions/{subscription}/resourceGroups/stores/providers/Microsoft.Storage"
    "/storageAccounts/{name}/blobServices/default",
    f"{_ACCOUNTS}/blobServices/read",
)
def _blob_services(call: Call) -> Response:
    """https://learn.microsoft.com/rest/api/storagerp/blob-services/get-service-properties"""
    properties = call.world.storage_accounts[call.given["name"]]
    return call.answer({"id": call.request.path, "name": "default", "properties": properties})


_AGREEMENTS = "Microsoft.MarketplaceOrdering/offerTypes/publishers/offers/plans/agreements"


@route(
    "GET",
    "/subscriptions/{subscription}/providers/Microsoft.MarketplaceOrdering/offerTypes"
    "/virtualmachine/publishers/{publisher}/offers/{offer}/plans/{plan}/agreements/current",
    f"{_AGREEMENTS}/read",
)
def _agreement(call: Call) -> Response:
    """https://learn.microsoft.com/rest/api/marketplaceordering/marketplace-agreements/get-agreement"""
    accepted = call.given["plan"] in call.world.terms_accepted
    given = {key: call.given[key] for key in ("publisher", "plan")}
    properties = {**given, "product": call.given["offer"], "accepted": accepted}
    body = {"id": call.request.path, "name": call.given["plan"], "properties": properties}
    return call.answer({**body, "type": "Microsoft.MarketplaceOrdering/offertypes"})


# ── Permissions ──────────────────────────────────────────────────────────────


@route(
    "GET",
    "/{*scope}/providers/Microsoft.Authorization/permissions",
    "Microsoft.Authorization/permissions/read",
)
def _permissions(call: Call) -> Response:
    granted = granted_in(call.world, f"/{call.given['scope']}")
    allowed = ["*"] if granted is None else granted
    inner = {"actions": allowed, "notActions": list(call.world.not_permitted)}
    return call.page([{**inner, "dataActions": [], "notDataActions": []}])


_ASSIGNMENT = "/{*scope}/providers/Microsoft.Authorization/roleAssignments/{name}"


@route("PUT", _ASSIGNMENT, f"{ASSIGNMENTS}/write")
def _assign(call: Call) -> Response:
    world, name = call.world, call.given["name"]
    try:
        uuid.UUID(name)
    except ValueError:
        raise real("role-assignment-id-no-guid", name=name) from None
    given = _asked_assignment(call)
    _check_scope(call)
    id = f"/{call.given['scope']}/providers/{ASSIGNMENTS}/{name}"
    for there in world.of_type(ASSIGNMENTS):
        if there.id.lower() == id.lower() and there.properties != given:
            raise real("role-assignment-fixed")
        if (
            there.id.lower() != id.lower()
            and there.properties == given
            and there.made["scope"].lower() == f"/{call.given['scope']}".lower()
        ):
            raise real("role-assignment-exists")
    scope = {"scope": f"/{call.given['scope']}"}
    body = {"location": "", "properties": given}
    world.add(Thing(id, ASSIGNMENTS, body, world.now(), scope, "Succeeded"))
    return call.answer(_assignment(world.things[id.lower()]), 201)


def _asked_assignment(call: Call) -> Body:
    """The properties of the body: a role and a principal that exist."""
    world = call.world
    given = call.body().get("properties") or {}
    if set(given) - {
        "roleDefinitionId",
        "principalId",
        "principalType",
        "description",
        "condition",
        "conditionVersion",
    }:
        raise real("content-invalid")
    for one in ("roleDefinitionId", "principalId"):
        if not given.get(one):
            raise real("parameter-missing", name=one)
    if not re.search(
        r"/providers/Microsoft\.Authorization/roleDefinitions/[0-9a-f-]{36}\Z",
        given["roleDefinitionId"],
        re.I,
    ):
        raise real("role-definition-absent", role_definition_id=given["roleDefinitionId"])
    known = {one.made.get("_principal") for one in world.things.values()} | {OBJECT}
    known |= {azure_identities.described(one.lower())["principalId"] for one in world.identities}
    if given["principalId"] not in known:
        raise real(
            "principal-absent", principal_id=given["principalId"].replace("-", ""), tenant=TENANT
        )
    return given


@route("GET", _ASSIGNMENT, f"{ASSIGNMENTS}/read")
def _get_assignment(call: Call) -> Response:
    return call.answer(_assignment(_found(call)))


@route("DELETE", _ASSIGNMENT, f"{ASSIGNMENTS}/delete")
def _unassign(call: Call) -> Response:
    found = call.world.find(call.request.path.rstrip("/"))
    if found is None:
        return call.nothing(204)
    call.world.remove(found)
    return call.answer(_assignment(found))


@route("GET", "/{*scope}/providers/Microsoft.Authorization/roleAssignments", f"{ASSIGNMENTS}/read")
def _assignments(call: Call) -> Response:
    """`$filter=principalId eq …` lists those at, above and below the scope:
    https://learn.microsoft.com/azure/role-based-access-control/role-assignments-list-rest"""
    scope = f"/{call.given['scope']}".lower()
    wanted = re.fullmatch(r"principalId eq '([^']*)'", call.query.get("$filter", ""))
    found = [
        one
        for one in call.world.of_type(ASSIGNMENTS)
        if one.made["scope"].lower().startswith(scope)
        or (wanted and scope.startswith(one.made["scope"].lower()))
    ]
    if wanted:
        found = [one for one in found if one.properties["principalId"] == wanted[1]]
    return call.page([_assignment(one) for one in found])


def _check_scope(call: Call) -> None:
    found = re.match(r"(subscriptions/[^/]+/resourcegroups/[^/]+)", call.given["scope"], re.I)
    if found and call.world.find(f"/{found[1]}") is None:
        name = found[1].rpartition("/")[2]
        if name.lower() == STORES and call.world.storage_accounts:
            return
        raise real("group-absent", name=name)


def _found(call: Call) -> Thing:
    found = call.world.find(call.request.path.rstrip("/"))
    if found is None:
        raise real("role-assignment-absent", name=call.given["name"])
    return found


def _assignment(thing: Thing) -> Body:
    properties = {**thing.properties, **thing.made}
    return {"id": thing.id, "name": thing.name, "type": ASSIGNMENTS, "properties": properties}


# ── Operations ───────────────────────────────────────────────────────────────

_ONE = "/subscriptions/{subscription}/providers/{namespace}/locations/{location}"


@route("GET", _ONE + "/operations/{operation}", "{namespace}/locations/operations/read")
def _operation(call: Call) -> Response:
    found = call.world.operations.get(call.given["operation"])
    if found is None:
        raise real("operation-absent")
    body: Body = {
        "name": found.id,
        "status": found.status,
        "startTime": call.world.stamp(found.begun),
    }
    if found.ended is not None:
        body["endTime"] = call.world.stamp(found.ended)
    if found.error is not None:
        body["error"] = found.error.error()
    response = call.answer(body)
    return response if found.ended is not None else call.pace(response)


@route("GET", _ONE + "/operationResults/{operation}", "{namespace}/locations/operations/read")
@route(
    "GET",
    "/subscriptions/{subscription}/operationresults/{operation}",
    "Microsoft.Resources/subscriptions/operationresults/read",
)
def _result(call: Call) -> Response:
    found = call.world.operations.get(call.given["operation"])
    if found is None:
        raise real("operation-absent")
    if found.ended is None:
        response = call.nothing(202)
        response.headers["Location"] = call.request.url
        return call.pace(response)
    if found.error is not None:
        raise found.error
    return call.nothing(200)
