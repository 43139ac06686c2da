"""The metadata server as google-auth asks it: who a VM is, and a token of its service account.

https://cloud.google.com/compute/docs/metadata/predefined-metadata-keys and
https://cloud.google.com/compute/docs/access/authenticate-workloads. All nodes have this machine's
address, so that it answers for the one VM that has a service account, if there is exactly one.
"""

from __future__ import annotations

import re
from typing import Any

from werkzeug.wrappers import Request, Response

from tests.standins.gcp_errors import answer
from tests.standins.gcp_world import Body, World

ROOT = "/computeMetadata/v1/"
_ACCOUNT = re.compile(rf"{ROOT}instance/service-accounts/([^/]+)/(token|scopes|email|)")
FLAVOR = {"Metadata-Flavor": "Google"}


def serves(path: str) -> bool:
    return path == "/" or path.startswith(ROOT)


def told(world: Any, request: Request) -> Response:
    response = _told(world, request)
    response.headers.update(FLAVOR)
    return response


def _told(world: Any, request: Request) -> Response:
    if request.headers.get("Metadata-Flavor") != "Google":
        return Response("missing header", status=403)
    if request.path == "/":
        return Response("computeMetadata/\n")
    if request.path == f"{ROOT}project/project-id":
        return Response(world.project)
    found, account = _ACCOUNT.fullmatch(request.path), attached(world)
    if found is None or account is None or found[1] not in ("default", account["email"]):
        return Response(status=404)
    email, scopes = account["email"], account["scopes"]
    if found[2] == "token":
        return answer(world.authority.issue(email))
    if found[2] == "scopes":
        return Response("\n".join([*scopes, ""]))
    if found[2] == "email":
        return Response(email)
    return answer({"aliases": ["default"], "email": email, "scopes": scopes})


def attached(world: World) -> Body | None:
    """The service account of the only running VM that has one."""
    with world.changed:
        world.tick()
        bodies = [thing.body for thing in world.things.values() if thing.collection == "instances"]
    found = [body["serviceAccounts"] for body in bodies if body.get("serviceAccounts")]
    return found[0][0] if len(found) == 1 else None
