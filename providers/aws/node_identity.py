"""Check the instance profile of `identity`: it exists, and its role may use the buckets.

Whether this user may attach it is found by the dry run of RunInstances, for which EC2 evaluates
iam:PassRole. API: https://docs.aws.amazon.com/IAM/latest/APIReference (botocore's model), read
2026-11-22; not tried on a real account.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from cloudtrain.core.errors import CloudError, NotFoundError, PermissionsError, if_told
from cloudtrain.core.model import Plan
from cloudtrain.core.protocols import Finding
from cloudtrain.core.store_kinds import BucketUri, own_uris
from cloudtrain.providers.aws import quota
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.facts import FACTS
from cloudtrain.providers.base.findings import NotChecked, finding, not_checked
from cloudtrain.providers.base.words import NOT_REPORTED

ACTIONS = ("s3:GetObject", "s3:PutObject")
SERVICE = "ec2.amazonaws.com"
DOCS = "see `An identity for scripts` in docs/aws.md"


def check(ec2: Ec2Client, region: str, plan: Plan) -> Iterator[Finding]:
    """Yield the findings; none without `identity`. What cannot be asked fails nothing."""
    identity = plan.config.identity
    if identity is None:
        return
    client, roles = quota.service(ec2, "iam", region), []

    def attached() -> str:
        if client is None:
            raise NotChecked(f"{identity}: {NOT_REPORTED}")
        profile = _profile(ec2, client, identity)
        roles.append(_role(profile, identity))
        name, role = profile["InstanceProfileName"], roles[0]["RoleName"]
        return f"instance profile {name} with role {role}"

    yield finding("identity", attached)
    for role in roles:
        for uri in own_uris(plan.config, FACTS.bucket_schemes):
            yield finding("identity", partial(_bucket, ec2, client, str(role["Arn"]), uri))


def role_of(ec2: Ec2Client, client: Any, identity: str) -> Mapping[str, Any]:
    """The role of an instance profile. Raises PermissionsError without one, NotChecked."""
    return _role(_profile(ec2, client, identity), identity)


def _profile(ec2: Ec2Client, client: Any, identity: str) -> Mapping[str, Any]:
    """The profile. Raises PermissionsError if there is none, NotChecked if it cannot be read."""
    try:
        with ec2.mapped("GetInstanceProfile"):
            name = identity.rpartition("/")[2]
            found: Mapping[str, Any] = client.get_instance_profile(InstanceProfileName=name)
    except NotFoundError as error:
        text = f"no instance profile {name} in this account"
        raise PermissionsError(text, hint=DOCS, code=error.code) from error
    except CloudError as error:
        raise NotChecked(f"{identity}: {NOT_REPORTED}: {error.message}") from error
    profile: Mapping[str, Any] = found["InstanceProfile"]
    if identity.startswith("arn:") and profile["Arn"] != identity:
        raise PermissionsError(
            f"no instance profile {identity}: this account has {profile['Arn']}",
            hint="an instance profile of another account cannot be attached",
        )
    return profile


def _role(profile: Mapping[str, Any], identity: str) -> Mapping[str, Any]:
    roles = profile["Roles"]
    if not roles:
        raise PermissionsError(
            f"the instance profile {identity} has no role",
            hint="run `aws iam add-role-to-instance-profile --instance-profile-name "
            f"{profile['InstanceProfileName']} --role-name ROLE`",
        )
    role: Mapping[str, Any] = roles[0]  # a profile has one at most
    trusted = json.dumps(role.get("AssumeRolePolicyDocument") or {})
    if SERVICE not in trusted:
        raise PermissionsError(
            f"the role {role['RoleName']} of {identity} does not trust {SERVICE}: nodes would get "
            "no credentials",
            hint=DOCS,
        )
    return role


def _bucket(ec2: Ec2Client, client: Any, role: str, uri: BucketUri) -> str:
    """Simulate the role's own policies on the URI's objects.

    The bucket's policy is not part of the simulation and may allow more, so that only an explicit
    denial proves something:
    https://docs.aws.amazon.com/IAM/latest/UserGuide/access_policies_testing-policies.html
    """
    partition, path = role.split(":")[1], uri.rest.rstrip("/")
    resource = f"arn:{partition}:s3:::{path}{'/x' if '/' not in path else ''}"
    decided = if_told(
        lambda: simulated(ec2, client, role, ACTIONS, [resource]),
        not_checked(f"{uri.uri}: {NOT_REPORTED}"),
    )
    words = ", ".join(f"{action} {_WORDS.get(each, each)}" for action, each in decided.items())
    text = f"{uri.uri}: {words}"
    if all(each == "explicitDeny" for each in decided.values()):
        raise PermissionsError(text, hint=DOCS)
    if any(each == "allowed" for each in decided.values()):
        return text
    raise NotChecked(f"{text}; whether the bucket's own policy allows it could not be checked")


def simulated(
    ec2: Ec2Client, client: Any, role: str, actions: Sequence[str], resources: Sequence[str] = ()
) -> dict[str, str]:
    """Decision of IAM on each action by the role's own policies."""
    of = {"ResourceArns": list(resources)} if resources else {}
    with ec2.mapped("SimulatePrincipalPolicy"):
        answer = client.simulate_principal_policy(
            PolicySourceArn=role, ActionNames=list(actions), **of
        )
    return {each["EvalActionName"]: each["EvalDecision"] for each in answer["EvaluationResults"]}


_WORDS = {"allowed": "allowed", "explicitDeny": "denied", "implicitDeny": "not allowed"}
