"""What EC2 and IAM make of instance profiles, which moto keeps.

https://docs.aws.amazon.com/IAM/latest/UserGuide/id_roles_use_switch-role-ec2_instance-profiles.html
"""

from __future__ import annotations

import fnmatch
from datetime import timezone
from typing import Any
from xml.sax.saxutils import escape

from moto.iam.access_control import IAMPolicy, PermissionResult
from moto.iam.models import iam_backends
from werkzeug.wrappers import Request, Response

from tests.standins.aws_query import real
from tests.standins.aws_world import World

DECISIONS = {
    PermissionResult.PERMITTED: "allowed",
    PermissionResult.DENIED: "explicitDeny",
    PermissionResult.NEUTRAL: "implicitDeny",
}


def check(world: World, given: dict[str, Any]) -> None:
    """Raises Refused, as RunInstances does, also of a dry run."""
    wanted = given.get("IamInstanceProfile")
    if not wanted:
        return
    key, value = next(iter(wanted.items()))
    profiles = iam_backends[world.account]["aws"].instance_profiles.values()
    found = next((one for one in profiles if value in (one.name, one.arn)), None)
    if found is None or world.now() < _created(found) + world.profile_lag:
        raise real(
            "profile-absent", value=value, key=key.lower(), kind="ARN" if key == "Arn" else "name"
        )
    if not found.roles:
        raise real("profile-without-role", arn=found.arn)
    _check_pass_role(world, found.roles[0].arn)


def _created(profile: Any) -> float:
    """moto's dates are in UTC, and do not say so."""
    return float(profile.create_date.replace(tzinfo=timezone.utc).timestamp())


def _check_pass_role(world: World, role: str) -> None:
    statements = None if world.granted is None else world.granted["Statement"]
    if statements is None or any(
        "iam:PassRole" in one["Action"] and fnmatch.fnmatchcase(role, one["Resource"])
        for one in statements
    ):
        return
    world.denied.append("PassRole")
    raise real("pass-role-not-allowed", account=world.account, role=role)


def simulate(world: World, request: Request) -> Response:
    """SimulatePrincipalPolicy by the role's inline policies, as moto itself evaluates them:
    https://docs.aws.amazon.com/IAM/latest/APIReference/API_SimulatePrincipalPolicy.html"""
    form = request.form
    role = form["PolicySourceArn"].rpartition("/")[2]
    policies = iam_backends[world.account]["aws"].get_role(role).policies.values()
    actions = [value for key, value in form.items() if key.startswith("ActionNames.member.")]
    resources = [value for key, value in form.items() if key.startswith("ResourceArns.member.")]
    members = "".join(
        f"<member><EvalActionName>{escape(action)}</EvalActionName><EvalResourceName>"
        f"{escape(resource)}</EvalResourceName><EvalDecision>"
        f"{_decision(list(policies), action, resource)}</EvalDecision></member>"
        for action in actions
        for resource in resources
    )
    name = "SimulatePrincipalPolicy"
    body = (
        f'<{name}Response xmlns="https://iam.amazonaws.com/doc/2010-05-08/"><{name}Result>'
        f"<IsTruncated>false</IsTruncated><EvaluationResults>{members}</EvaluationResults>"
        f"</{name}Result><ResponseMetadata><RequestId>5e7d2a3c-0000-4000-8000-000000000000"
        f"</RequestId></ResponseMetadata></{name}Response>"
    )
    return Response(body, content_type="text/xml")


def _decision(policies: list[Any], action: str, resource: str) -> str:
    found = {IAMPolicy(one).is_action_permitted(action, resource) for one in policies}
    order = (PermissionResult.DENIED, PermissionResult.PERMITTED, PermissionResult.NEUTRAL)
    return DECISIONS[next((one for one in order if one in found), PermissionResult.NEUTRAL)]
