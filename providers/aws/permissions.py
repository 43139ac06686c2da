"""IAM policy for all calls of the driver, as narrow as EC2 allows.

permissions.csv has the actions and their source; this exact policy has not been tried on a real
account."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from cloudtrain.core.errors import CloudError, NotFoundError, PermissionsError, if_told
from cloudtrain.core.model import ClusterConfig, Plan
from cloudtrain.core.protocols import Finding
from cloudtrain.core.store_kinds import BucketUri, own_uris
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.expiry import ROLE
from cloudtrain.providers.aws.facts import FACTS, FOLDER
from cloudtrain.providers.aws.ssh_service import DOCUMENT
from cloudtrain.providers.base import fact_tables, labels
from cloudtrain.providers.base.checks import NotChecked, finding, not_checked
from cloudtrain.providers.base.words import NOT_REPORTED

ASKED = fact_tables.actions(FOLDER, kind="read")
MADE = fact_tables.actions(FOLDER, kind="make")
OURS = fact_tables.actions(FOLDER, kind="ours")
OF_GROUPS = sorted(fact_tables.actions(FOLDER, only_for="own firewall"))
IN_STORE = fact_tables.actions(FOLDER, kind="objects")
IN_BUCKET = fact_tables.actions(FOLDER, kind="bucket")
MADE_BUCKET = fact_tables.actions(FOLDER, kind="new bucket")
PARTITIONS = (("cn-", "aws-cn"), ("us-gov-", "aws-us-gov"), ("eusc-", "aws-eusc"))
"""By the start of a region's name (botocore's partitions.json)."""


def policy() -> dict[str, Any]:
    """The policy for users of cloudtrain.

    Without the condition on CreateTags, a user could put our tag on any instance of the account and
    then terminate it."""
    making = [action.removeprefix("ec2:") for action in MADE]
    only_the_end = {"ForAllValues:StringEquals": {"aws:TagKeys": [labels.EXPIRES]}}
    tagged = {"StringLike": {f"aws:ResourceTag/{labels.CLUSTER}": "*"}}
    return _document(
        _allow(ASKED),
        _allow(MADE),
        _allow(["ec2:CreateTags"], {"StringEquals": {"ec2:CreateAction": making}}),
        _allow(OURS, tagged),
        _allow(["ec2:CreateTags", "ec2:DeleteTags"], {**tagged, **only_the_end}),
    )


def policy_for(config: ClusterConfig) -> dict[str, Any]:
    """The least policy for all that this file uses, in its partition."""
    parts = [policy(), policy_of_schedules()]
    given = (config.identity, config.away.identity)
    names = dict.fromkeys(name.rpartition("/")[2] for name in given if name)
    parts += map(policy_of_identity, names)
    proxy = config.network.ssh_proxy
    parts += [policy_of_sessions()] if proxy is not None and proxy.ssm else []
    parts += [policy_of_disk_key(config.disk_key)] if config.disk_key else []
    parts += _of_buckets(config)
    unused = {row["action"] for row in fact_tables.rows(FOLDER, "permissions") if row["only_for"]}
    groups = [group.provisioning for group in config.nodes.values()]
    uses = {  # by the column `only_for`
        "spot": any(each.market == "spot" for each in groups),
        "reservation": any(each.name for each in groups),
        "own firewall": not config.network.firewall,
    }
    for use, is_used in uses.items():
        if is_used:
            unused -= {*fact_tables.actions(FOLDER, only_for=use)}
    statements = []
    for statement in (each for part in parts for each in part["Statement"]):
        actions = [action for action in statement["Action"] if action not in unused]
        if actions:
            statements.append({**statement, "Action": actions})
    region = next(iter(config.placement), "")
    partition = next((name for start, name in PARTITIONS if region.startswith(start)), "aws")
    found = text(_document(*statements)).replace('"arn:aws:', f'"arn:{partition}:')
    document: dict[str, Any] = json.loads(found)
    return document


def _of_buckets(config: ClusterConfig) -> Iterator[dict[str, Any]]:
    """Yield the rights on the store and on each dataset of S3: those of docs/aws.md."""
    store = _bucket(config.artifacts.store)
    if store:
        bucket, objects = store
        made = (*MADE_BUCKET, "s3:TagResource") if config.tags else MADE_BUCKET
        extra = made if config.artifacts.create else ()
        yield _document(
            {**_allow([*IN_BUCKET, *extra]), "Resource": bucket},
            {**_allow(IN_STORE), "Resource": objects},
        )
        key = (config.artifacts.encryption or "").removeprefix("aws:kms:")
        if key.startswith(("arn:", "alias/")) or re.fullmatch(r"[\w-]{36}", key):
            yield _document(_on_key(key, ["kms:Decrypt", "kms:GenerateDataKey"]))
    for source in config.data.values():
        read = _bucket(source.source)
        if read:
            yield _document(
                {**_allow(["s3:ListBucket"]), "Resource": read[0]},
                {**_allow(["s3:GetObject"]), "Resource": read[1].removesuffix("/*") + "*"},
            )


def _bucket(uri: str | None) -> tuple[str, str] | None:
    """The ARNs of a bucket and of the objects below a prefix."""
    scheme, _, rest = (uri or "").partition("://")
    name, _, prefix = rest.rstrip("/").partition("/")
    inside = f"{prefix}/*" if prefix else "*"
    arn = f"arn:aws:s3:::{name}"
    return (arn, f"{arn}/{inside}") if scheme == "s3" else None


def policy_of_disk_key(key: str) -> dict[str, Any]:
    """The additional policy for `disk_key`.

    https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html"""
    actions = ("CreateGrant", "Decrypt", "DescribeKey", "GenerateDataKeyWithoutPlaintext")
    names = [f"kms:{action}" for action in (*actions, "ReEncryptFrom", "ReEncryptTo")]
    return _document(_on_key(key, names))


def _on_key(key: str, actions: Sequence[str]) -> dict[str, Any]:
    """Allow them on a key: an alias is no resource of a policy, but a condition
    (https://docs.aws.amazon.com/kms/latest/developerguide/alias-authorization.html)."""
    key = key.replace("{region}", "*")
    last = key.rpartition(":")[2]
    if last.startswith("alias/"):
        return _allow(actions, {"ForAnyValue:StringEquals": {"kms:ResourceAliases": last}})
    arn = key if key.startswith("arn:") else f"arn:aws:kms:*:*:key/{key}"
    return {**_allow(actions), "Resource": arn}


def policy_of_schedules() -> dict[str, Any]:
    """The additional policy for accounts with the role that ends nodes."""
    held = fact_tables.actions(FOLDER, kind="schedules")
    schedules = "arn:aws:scheduler:*:*:schedule/default/cloudtrain-*"
    return _document(
        {**_allow(held), "Resource": schedules},
        _allow(["scheduler:ListSchedules"]),
        {**_allow(["iam:GetRole", "iam:PassRole"]), "Resource": f"arn:aws:iam::*:role/{ROLE}"},
    )


def policy_of_identity(name: str = "NAME") -> dict[str, Any]:
    """The additional policy for `identity: NAME`, whose role has the same name."""
    only_ec2 = {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}
    role, profile = f"arn:aws:iam::*:role/{name}", f"arn:aws:iam::*:instance-profile/{name}"
    return _document(
        {**_allow(["iam:PassRole"], only_ec2), "Resource": role},
        {**_allow(["iam:SimulatePrincipalPolicy"]), "Resource": role},
        {**_allow(["iam:GetInstanceProfile"]), "Resource": profile},
    )


def policy_of_sessions() -> dict[str, Any]:
    """The additional policy for `network.ssh_proxy: ssm`.

    https://docs.aws.amazon.com/systems-manager/latest/userguide/
    getting-started-restrict-access-quickstart.html, read 2026-11-26: `aws:userid`, as users of
    SSO and of roles have no `aws:username`."""
    ours = {"StringLike": {f"ssm:resourceTag/{labels.CLUSTER}": "*"}}
    start, own = _allow(["ssm:StartSession"]), "arn:aws:ssm:*:*:session/${aws:userid}-*"
    return _document(
        {**start, "Resource": f"arn:aws:ssm:*:*:document/{DOCUMENT}"},
        {**start, "Resource": "arn:aws:ec2:*:*:instance/*", "Condition": ours},
        {**_allow(["ssmmessages:OpenDataChannel"]), "Resource": own},
        {**_allow(["ssm:ResumeSession", "ssm:TerminateSession"]), "Resource": own},
        _allow(["ssm:GetServiceSetting"]),
    )


def text(document: dict[str, Any]) -> str:
    """Format a policy with one paragraph per statement and one line per action."""
    return json.dumps(document, indent=1) + "\n"


def _document(*statements: dict[str, Any]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": list(statements)}


def _allow(actions: Any, condition: dict[str, Any] | None = None) -> dict[str, Any]:
    statement = {"Effect": "Allow", "Resource": "*", "Action": list(actions)}
    return {**statement, "Condition": condition} if condition else statement


# ── Check the instance profile of `identity`: it exists, and its role may use the buckets ─────
# Whether this user may attach it is found by the dry run of RunInstances, for which EC2 evaluates
# iam:PassRole. API: https://docs.aws.amazon.com/IAM/latest/APIReference (botocore's model), read
# 2026-11-22; not tried on a real account.


ACTIONS = ("s3:GetObject", "s3:PutObject")
SERVICE = "ec2.amazonaws.com"
DOCS = "see `An identity for scripts` in docs/aws.md"


def check_identity(ec2: Ec2Client, region: str, plan: Plan) -> Iterator[Finding]:
    """Yield the findings; none without `identity`. What cannot be asked fails nothing."""
    identity = plan.config.identity
    if identity is None:
        return
    client, roles = ec2.service("iam", region), []

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
            yield finding("identity", partial(_bucket_use, ec2, client, str(role["Arn"]), uri))


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


def _bucket_use(ec2: Ec2Client, client: Any, role: str, uri: BucketUri) -> str:
    """Simulate the role's own policies on the URI's objects.

    The bucket's policy is not part of the simulation and may allow more, so that only an explicit
    denial proves something:
    https://docs.aws.amazon.com/IAM/latest/UserGuide/access_policies_testing-policies.html"""
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
