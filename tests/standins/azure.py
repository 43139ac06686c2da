"""Azure on this machine: the resource manager, and the authority that its tokens come from.

Bodies are checked by the models of azure-mgmt's libraries; azure-mgmt and azure-identity drive it
in tests/integration/test_standin_azure.py. It never met the real one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from werkzeug.wrappers import Request, Response

from tests.standins import azure_auth as auth
from tests.standins import (
    azure_deadlines,
    azure_deployments,
    azure_groups,
    azure_machines,
    azure_power,
    azure_reservations,
    azure_schedules,
    azure_skus,
    azure_subresources,
)
from tests.standins.azure_account import ASSIGNMENTS, registered, subscription
from tests.standins.azure_call import Call, find, name_of
from tests.standins.azure_errors import Refusal, of_status, real
from tests.standins.azure_offer import API_VERSIONS, REGIONS
from tests.standins.azure_resources import kind_of
from tests.standins.azure_rights import linked_actions, may
from tests.standins.azure_world import GROUPS, SUBSCRIPTION, Thing, World

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

__all__ = [
    "AzureStandIn",
    "azure_deadlines",
    "azure_deployments",
    "azure_groups",
    "azure_reservations",
    "azure_schedules",
    "azure_skus",
    "azure_subresources",
]
DEFAULTS = ("2026-04-01", "2026-03-03", "2026-03-02", "2026-03-01", "2025-04-01", "2021-07-01")
"""API versions that azure-mgmt's libraries ask for by themselves."""


class AzureStandIn(World):
    """A WSGI application; World has what a test turns, here is what it does."""

    # ── What tests do ────────────────────────────────────────────────────────

    def holdings(self) -> list[str]:
        self.await_nodes()
        with self.lock:
            self.tick()
            return sorted(_words(one) for one in self.things.values())

    def interrupt(self, name: str) -> None:
        """Azure takes a spot VM back: deleted or deallocated, as its eviction policy says."""
        with self.lock:
            self.tick()
            azure_power.evict(self, name)

    def stop(self, name: str) -> None:
        """Somebody deallocates it in the portal: its disk and its network interface are kept."""
        with self.lock:
            self.tick()
            azure_power.deallocate(self, name)

    def shut_down(self, name: str) -> None:
        """A VM is shut down from inside."""
        with self.lock:
            self.tick()
            azure_power.shut_down(self, name)

    def forget_tokens(self) -> None:
        """All tokens so far are refused from now on, as if their time were over."""
        with self.lock:
            self.tokens = {token: (0.0, audience) for token, (_, audience) in self.tokens.items()}

    # ── What a server and its faults need ────────────────────────────────────

    def action(self, environ: WSGIEnvironment) -> str:
        path = environ["PATH_INFO"]
        return auth.action(path) or name_of(environ["REQUEST_METHOD"], path)

    def error(self, status: int, code: str, message: str) -> Response:
        return of_status(status, code, message).response()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return self._answer(Request(environ))(environ, start_response)

    def _answer(self, request: Request) -> Response:
        with self.lock:
            self.tick()
            if request.path.startswith(azure_machines.SERIAL):
                if "Authorization" in request.headers:
                    return Response("", 400)
                signature = request.args.get("sig", "")
                return azure_machines.serial_log(self, request.path, signature)
            if auth.action(request.path):
                return auth.answer(self, request)
            try:
                return self._manage(request)
            except Refusal as refusal:
                return refusal.response()

    def _manage(self, request: Request) -> Response:
        auth.check(self, request)
        for pattern, name in self.refuses.items():
            if fnmatchcase(f"{request.method} {request.path}".lower(), pattern.lower()):
                raise real(name)
        version = request.args.get("api-version", "")
        if not version:
            raise real("api-version-missing")
        self._check_subscription(request)
        route, given = find(request.method, request.path)
        action = route.action.format(
            **{name: given.get(name, "") for name in ("namespace", "kind", "part")}
        )
        self._check_permitted(request, action)
        self._check_version(version, action, given.get("kind", ""))
        self.version = version
        response = route.handler(Call(world=self, request=request, given=given, version=version))
        response.headers["x-ms-request-id"] = str(self.number())
        response.headers["Cache-Control"] = "no-cache"
        return response

    # ── Refusals that hold for all ───────────────────────────────────────────

    def _check_subscription(self, request: Request) -> None:
        found = re.match(r"/subscriptions/([^/]+)", request.path, re.IGNORECASE)
        if not found:
            return
        if not re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", found[1], re.IGNORECASE):
            raise real("subscription-id-malformed", subscription=found[1])
        if found[1].lower() != SUBSCRIPTION:
            raise real("subscription-absent", subscription=found[1])
        writes = request.method in ("PUT", "PATCH", "POST")
        if writes and subscription(self)["state"] != "Enabled":
            raise real("read-only-subscription", subscription=SUBSCRIPTION)

    def _check_permitted(self, request: Request, action: str) -> None:
        if action == azure_reservations.GRAPH:
            return
        self.used.add(action)
        if not may(self, action, request.path):
            raise real(
                "authorization-failed",
                client=auth.CLIENT,
                object=auth.OBJECT,
                action=action,
                path=request.path,
            )
        body = request.get_json(silent=True)
        for linked, scope in linked_actions(action, request.path, body):
            self.used.add(linked)
            if not may(self, linked, scope):
                raise real(
                    "linked-authorization-failed", action=action, path=request.path, linked=linked
                )

    def rights_used(self) -> list[str]:
        """What a role needs for all calls so far."""
        return sorted(self.used)

    def _check_version(self, version: str, action: str, kind: str) -> None:
        if not re.fullmatch(r"\d{4}-\d\d-\d\d(-\w+)?", version):
            raise real("api-version-no-date", version=version)
        namespace, _, rest = action.lower().partition("/")
        type = f"{namespace}/{rest.partition('/')[0]}"
        own = self.api_versions.get(type, self.api_versions.get(namespace))
        known = own or API_VERSIONS.get(type, API_VERSIONS.get(namespace, []))
        served = known if own else (*known, *DEFAULTS)
        if namespace == "microsoft.resources":
            if version not in served:
                raise real("api-version-unknown", version=version, known=",".join(reversed(known)))
            return
        if known and version not in served:
            raise real(
                "api-version-not-registered",
                version=version,
                type=kind or rest.partition("/")[0],
                known=", ".join(known),
                regions=", ".join(REGIONS),
            )
        if namespace in [one.lower() for one in self.absent]:
            raise real("namespace-unknown", namespace=namespace)
        if not registered(self, namespace) and not action.endswith("/register/action"):
            shown = next(one for one in self.unregistered if one.lower() == namespace)
            raise real("not-registered", namespace=shown)


def _words(thing: Thing) -> str:
    if thing.type == GROUPS:
        return f"resource group {thing.name} {thing.region}"
    if thing.type == ASSIGNMENTS:
        return f"role assignment {thing.name}"
    return kind_of(thing).words(thing)
