"""Service accounts as Google's IAM and Compute Engine treat them, and the policies of buckets.

Routes and fields are those of the discovery documents iam.v1.json and storage.v1.json of
google-api-python-client, by which tests/integration/test_node_identity.py checks the answers.
"""

from __future__ import annotations

import re
from typing import Any

from werkzeug.wrappers import Request

from tests.standins.gcp_errors import Failure, real, real_failure
from tests.standins.gcp_world import Body, World

_ACCOUNT = re.compile(r"/v1/projects/([^/]+)/serviceAccounts/([^/:]+)(:testIamPermissions)?")
_POLICY = re.compile(r"/storage/v1/b/([^/]+)/iam")


def serves(path: str) -> bool:
    return bool(_ACCOUNT.fullmatch(path) or _POLICY.fullmatch(path))


def action(verb: str, path: str) -> str:
    if _POLICY.fullmatch(path):
        return "buckets.getIamPolicy"
    return "serviceAccounts.testIamPermissions" if verb == "POST" else "serviceAccounts.get"


def told(world: Any, request: Request) -> Body:
    """Raises ApiError."""
    policy = _POLICY.fullmatch(request.path)
    if policy:
        bindings = world.bucket_policies.get(policy[1])
        if bindings is None:
            raise real("bucket-absent")
        resource = f"projects/_/buckets/{policy[1]}"
        return {
            "kind": "storage#policy",
            "resourceId": resource,
            "version": 1,
            "bindings": bindings,
        }
    found = _ACCOUNT.fullmatch(request.path)
    assert found
    email, tests = found[2], found[3]
    known = world.service_accounts.get(email)
    if tests:
        asked = request.get_json()["permissions"]
        may = known is not None and known.get("act_as", True)
        return {"permissions": [each for each in asked if may]}
    if known is None:
        raise real("service-account-unknown", email=email)
    project = known.get("project", world.project)
    body = {"name": f"projects/{project}/serviceAccounts/{email}", "projectId": project}
    return {**body, "email": email, "uniqueId": "1", "disabled": known.get("disabled", False)}


def refusal(world: World, body: Body, user: str) -> Failure | None:
    """How the operation of an insert fails whose service account cannot be attached."""
    for account in body.get("serviceAccounts", ()):
        email = account.get("email", "default")
        known = world.service_accounts.get(email)
        if known is None:
            return real_failure("service-account-absent", account=email, status=404)
        if not known.get("act_as", True):
            return real_failure("service-account-denied", account=email, user=user, status=400)
    return None
