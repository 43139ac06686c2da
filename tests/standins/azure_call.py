"""One call to the resource manager, and the table of calls."""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from werkzeug.wrappers import Request, Response

from tests.standins.azure_errors import Body, real
from tests.standins.azure_world import Operation, Thing, World


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call that is allowed, to a path that there is."""

    world: World
    request: Request
    given: dict[str, str]
    """What the path's pattern names, as it was written."""
    version: str

    @property
    def query(self) -> dict[str, str]:
        return dict(self.request.args)

    @property
    def url(self) -> str:
        return self.request.host_url.rstrip("/")

    def body(self) -> Body:
        if not self.request.content_type or "json" not in self.request.content_type:
            raise real("media-type-not-supported")
        try:
            found = json.loads(self.request.get_data() or b"")
        except ValueError as error:
            found = error
        if not isinstance(found, dict):
            raise real("content-not-json", found=found)
        return found

    # ── Answers ──────────────────────────────────────────────────────────────

    def answer(self, body: Any, status: int = 200) -> Response:
        return Response(json.dumps(body), status, content_type="application/json; charset=utf-8")

    def nothing(self, status: int) -> Response:
        return Response(b"", status)

    def page(self, items: Sequence[Any]) -> Response:
        """As many as a page has, and where the next ones are."""
        start = int(self.query.get("$skiptoken", "0"))
        size = self.world.page_size
        if "$top" in self.query:
            size = min(size, int(self.query["$top"]))
        body: Body = {"value": list(items[start : start + size])}
        if start + size < len(items):
            query = urllib.parse.urlencode({**self.query, "$skiptoken": str(start + size)})
            body["nextLink"] = f"{self.url}{self.request.path}?{query}"
        return self.answer(body)

    def started(self, response: Response, operation: Operation | None) -> Response:
        """Where the operation can be followed."""
        if operation is not None and operation.ended is None:
            for name, place in self._places(operation, response.status_code).items():
                response.headers[name] = place
            self.pace(response)
        return response

    def pace(self, response: Response) -> Response:
        if self.world.retry_after is not None:
            response.headers["Retry-After"] = str(self.world.retry_after)
        return response

    def _places(self, operation: Operation, status: int) -> dict[str, str]:
        base = f"{self.url}/subscriptions/{self.given['subscription']}"
        query = f"?api-version={self.version}"
        if operation.namespace == "Microsoft.Resources":
            return {"Location": f"{base}/operationresults/{operation.id}{query}"}
        region = operation.thing.region
        base += f"/providers/{operation.namespace}/locations/{region}"
        found = {"Azure-AsyncOperation": f"{base}/operations/{operation.id}{query}"}
        if status == 202:
            found["Location"] = f"{base}/operationResults/{operation.id}{query}"
        return found


Handler = Callable[[Call], Response]


@dataclass(frozen=True, kw_only=True)
class Route:
    verb: str
    path: re.Pattern[str]
    handler: Handler
    action: str
    """As permissions name it."""


ROUTES: list[Route] = []


def route(verb: str, path: str, action: str) -> Callable[[Handler], Handler]:
    """`{name}` in the path is one part of it, `{*name}` any number of parts."""
    pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path.replace(".", r"\."))
    pattern = re.sub(r"\{\*(\w+)\}", r"(?P<\1>.+)", pattern)

    def register(handler: Handler) -> Handler:
        compiled = re.compile(f"{pattern}/?\\Z", re.IGNORECASE)
        ROUTES.append(Route(verb=verb, path=compiled, handler=handler, action=action))
        return handler

    return register


def find(verb: str, path: str) -> tuple[Route, dict[str, str]]:
    """Raises Refusal where there is no such thing, or where it takes no such verb."""
    found = [(one, match) for one in ROUTES if (match := one.path.match(path))]
    found.sort(key=lambda pair: len(pair[1].groupdict()))  # The one that says most first.
    for one, match in found:
        if one.verb == verb:
            return one, match.groupdict()
    if found:
        raise real("method-not-supported", verb=verb)
    raise real("path-without-resource-type", path=path)


def name_of(verb: str, path: str) -> str:
    """What faults name the call by: `PUT virtualMachines mnist-chief0`, `LIST virtualMachines`,
    `POST virtualMachines/start mnist-chief0`, `GET operations`."""
    _, provider, after = path.rpartition("/providers/")
    parts = (after.partition("/")[2] if provider else path.strip("/")).strip("/").split("/")
    parts = [_WORDS.get(part.lower(), part) for part in parts]
    if len(parts) % 2 == 0:
        name = "" if parts[-2].startswith("operation") else parts[-1]
        return f"{verb} {parts[-2]} {name}".strip()
    if verb == "POST":
        return f"POST {'/'.join(parts[-3::2])} {parts[-2] if len(parts) > 1 else ''}".strip()
    return f"{'LIST' if verb == 'GET' else verb} {parts[-1]}"


_WORDS = {
    word.lower(): word
    for word in (
        "resourceGroups",
        "virtualMachines",
        "instanceView",
        "networkInterfaces",
        "publicIPAddresses",
        "networkSecurityGroups",
        "virtualNetworks",
        "securityRules",
        "proximityPlacementGroups",
        "roleAssignments",
        "operationResults",
    )
}
"""Libraries write some of them otherwise; faults should not need to know."""


def described(call: Call, thing: Thing, properties: Body) -> Body:
    """What all resources show of themselves."""
    body: Body = {"id": thing.id, "name": thing.name, "type": thing.type, **thing.given}
    body["properties"] = {**properties, "provisioningState": thing.state}
    return body
