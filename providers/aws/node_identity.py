"""Checks the instance profile of `identity`: it exists, and its role may use the buckets.

Whether this user may attach it is found by the dry run of RunInstances, for which EC2 evaluates
iam:PassRole. API: https://docs.aws.amazon.com/IAM/latest/APIReference (botocore's model), read
2026-11-22; not tried on a real account.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cloudtrain.core.bucket_uris import BucketUri, own_uris
from cloudtrain.core.errors import CloudError, NotFoundError, PermissionsError, if_told
from cloudtrain.core.model import Plan
from cloudtrain.core.protocols import Finding
from cloudtrain.providers.aws import quota
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.facts import FACTS
from cloudtrain.providers.base.words import NOT_REPORTED

ACTIONS = ("s3:GetObject", "s3:PutObject")
SERVICE = "ec2.amazonaws.com"
DOCS = "see `An identity for scripts` in docs/aws.md"


def check(ec2: Ec2Client, region: str, plan: Plan) -> Iterator[Finding]:
    """Yield the findings; none without `identity`. What cannot be asked fails nothing."""
    identity = plan.config.identity
    if identity is None:
        return
    try:
        client = quota.service(ec2, "iam", region)
        profile = _profile(ec2, client, identity) if client is not None else NOT_REPORTED
        if isinstance(profile, str):
            yield _unknown(f"{identity}: {profile}")
            return
        role = _role(profile, identity)
    except CloudError as error:
        yield Finding.of("identity", error)
        return
    text = f"instance profile {profile['InstanceProfileName']} with role {role['RoleName']}"
    yield Finding(what="identity", ok=True, text=text)
    for uri in own_uris(plan.config, FACTS.bucket_schemes):
        yield _bucket(ec2, client, str(role["Arn"]), uri)


def role_of(ec2: Ec2Client, client: Any, identity: str) -> Mapping[str, Any]:
    """The role of an instance profile. Raises PermissionsError if it has none, or cannot be
    read.
    """
    profile = _profile(ec2, client, identity)
    if isinstance(profile, str):
        raise PermissionsError(profile)
    return _role(profile, identity)


def _profile(ec2: Ec2Client, client: Any, identity: str) -> Mapping[str, Any] | str:
    """The profile, or the reason why it cannot be known. Raises PermissionsError if there is
    none.
    """
    try:
        with ec2.mapped("GetInstanceProfile"):
            name = identity.rpartition("/")[2]
            found: Mapping[str, Any] = client.get_instance_profile(InstanceProfileName=name)
    except NotFoundError as error:
        text = f"no instance profile {name} in this account"
        raise PermissionsError(text, hint=DOCS, code=error.code) from error
    except CloudError as error:
        return f"{NOT_REPORTED}: {error.message}"
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


def _bucket(ec2: Ec2Client, client: Any, role: str, uri: BucketUri) -> Finding:
    """Simulate the role's own policies on the URI's objects.

    The bucket's policy is not part of the simulation and may allow more, so that only an explicit
    denial proves something:
    https://docs.aws.amazon.com/IAM/latest/UserGuide/access_policies_testing-policies.html
    """
    partition, path = role.split(":")[1], uri.rest.rstrip("/")
    resource = f"arn:{partition}:s3:::{path}{'/x' if '/' not in path else ''}"
    return if_told(
        lambda: _decided(uri, simulated(ec2, client, role, ACTIONS, [resource])),
        lambda error: _unknown(f"{uri.uri}: {NOT_REPORTED}: {error.message}"),
    )


def _decided(uri: BucketUri, decisions: Mapping[str, str]) -> Finding:
    words = ", ".join(f"{action} {_WORDS.get(each, each)}" for action, each in decisions.items())
    text = f"{uri.uri}: {words}"
    if all(each == "explicitDeny" for each in decisions.values()):
        return Finding(what="identity", ok=False, text=text, hint=DOCS, error=PermissionsError)
    if any(each == "allowed" for each in decisions.values()):
        return Finding(what="identity", ok=True, text=text)
    return _unknown(f"{text}; whether the bucket's own policy allows it could not be checked")


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


def _unknown(text: str) -> Finding:
    return Finding(what="identity", ok=True, text=text, told=False)
