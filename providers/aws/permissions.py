"""IAM policy for all calls of the driver, as narrow as EC2 allows.

Actions, resources and condition keys:
https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html, read
2026-11-22; this exact policy has not been tried on a real account.
"""

from __future__ import annotations

import json
from typing import Any

from cloudtrain.providers.aws.expiry import ROLE
from cloudtrain.providers.aws.ssh_service import DOCUMENT
from cloudtrain.providers.base import labels

ASKED = (
    "ec2:DescribeAvailabilityZones",
    "ec2:DescribeCapacityReservations",
    "ec2:DescribeImages",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeInstances",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribePlacementGroups",
    "ec2:DescribeRegions",
    "ec2:DescribeRouteTables",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeSubnets",
    "ec2:DescribeVolumes",
    "ec2:DescribeVpcs",
    "ec2:GetSpotPlacementScores",
    "servicequotas:GetAWSDefaultServiceQuota",
    "servicequotas:GetServiceQuota",
    "sts:GetCallerIdentity",
)
"""Read-only calls; EC2 does not let a policy restrict them to a resource."""

MADE = ("CreatePlacementGroup", "CreateSecurityGroup", "RunInstances")
"""Calls that create resources and tag them at once, which also needs the action `CreateTags`."""

OURS = (
    "ec2:AuthorizeSecurityGroupEgress",
    "ec2:AuthorizeSecurityGroupIngress",
    "ec2:DeleteNetworkInterface",
    "ec2:DeletePlacementGroup",
    "ec2:DeleteSecurityGroup",
    "ec2:DeleteVolume",
    "ec2:DescribeInstanceAttribute",
    "ec2:GetConsoleOutput",
    "ec2:ModifyInstanceAttribute",
    "ec2:RevokeSecurityGroupIngress",
    "ec2:StartInstances",
    "ec2:TerminateInstances",
)
"""Calls that the policy allows only on resources with our tag."""

OF_GROUPS = (
    *("ec2:AuthorizeSecurityGroupEgress", "ec2:AuthorizeSecurityGroupIngress"),
    *("ec2:CreateSecurityGroup", "ec2:DeleteSecurityGroup", "ec2:RevokeSecurityGroupIngress"),
)
"""Calls that `network.firewall` makes superfluous."""

HELD = (
    *("scheduler:CreateSchedule", "scheduler:DeleteSchedule", "scheduler:GetSchedule"),
    "scheduler:UpdateSchedule",
)
"""Calls needed only if AWS is to end the nodes as well."""


def policy() -> dict[str, Any]:
    """Return the policy for users of cloudtrain.

    Without the condition on CreateTags, a user could put our tag on any instance of the account and
    then terminate it.
    """
    only_the_end = {"ForAllValues:StringEquals": {"aws:TagKeys": [labels.EXPIRES]}}
    tagged = {"StringLike": {f"aws:ResourceTag/{labels.CLUSTER}": "*"}}
    return _document(
        _allow(ASKED),
        _allow([f"ec2:{action}" for action in MADE]),
        _allow(["ec2:CreateTags"], {"StringEquals": {"ec2:CreateAction": list(MADE)}}),
        _allow(OURS, tagged),
        _allow(["ec2:CreateTags", "ec2:DeleteTags"], {**tagged, **only_the_end}),
    )


def policy_of_schedules() -> dict[str, Any]:
    """Return the additional policy for accounts with the role that ends nodes."""
    schedules = "arn:aws:scheduler:*:*:schedule/default/cloudtrain-*"
    return _document(
        {**_allow(HELD), "Resource": schedules},
        _allow(["scheduler:ListSchedules"]),
        {**_allow(["iam:GetRole", "iam:PassRole"]), "Resource": f"arn:aws:iam::*:role/{ROLE}"},
    )


def policy_of_identity() -> dict[str, Any]:
    """Return the additional policy for `identity: NAME`, whose role has the same name."""
    only_ec2 = {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}
    role, profile = "arn:aws:iam::*:role/NAME", "arn:aws:iam::*:instance-profile/NAME"
    return _document(
        {**_allow(["iam:PassRole"], only_ec2), "Resource": role},
        {**_allow(["iam:SimulatePrincipalPolicy"]), "Resource": role},
        {**_allow(["iam:GetInstanceProfile"]), "Resource": profile},
    )


def policy_of_sessions() -> dict[str, Any]:
    """Return the additional policy for `network.ssh_proxy: ssm`.

    https://docs.aws.amazon.com/systems-manager/latest/userguide/
    getting-started-restrict-access-quickstart.html, read 2026-11-24
    """
    ours = {"StringLike": {f"ssm:resourceTag/{labels.CLUSTER}": "*"}}
    start, own = _allow(["ssm:StartSession"]), "arn:aws:ssm:*:*:session/${aws:username}-*"
    return _document(
        {**start, "Resource": f"arn:aws:ssm:*:*:document/{DOCUMENT}"},
        {**start, "Resource": "arn:aws:ec2:*:*:instance/*", "Condition": ours},
        {**_allow(["ssm:ResumeSession", "ssm:TerminateSession"]), "Resource": own},
        _allow(["ssm:GetServiceSetting"]),
    )


def text(document: dict[str, Any]) -> str:
    """Format a policy with one paragraph per statement and one line per action."""
    return json.dumps(document, indent=1) + "\n"


def block() -> str:
    """Return the block in docs/aws.md for users to paste."""
    parts = (
        ("", policy()),
        ("\nWith a role by which AWS ends the nodes (below), also:\n\n", policy_of_schedules()),
        (
            "\nWith [`identity:`](#an-identity-for-scripts), also the following; the second and "
            "third statement are only for `check`:\n\n",
            policy_of_identity(),
        ),
        (
            "\nWith `network.ssh_proxy: ssm` ([private-nodes.md](private-nodes.md)), also the "
            "following; the last statement is only for `check`:\n\n",
            policy_of_sessions(),
        ),
    )
    found = "".join(f"{words}```json\n{text(each)}```\n" for words, each in parts)
    return (
        f"{found}\nWith [`network.firewall:`](companies.md#networks), the first policy is enough "
        f"without `{'`, `'.join(OF_GROUPS)}`.\n"
    )


def _document(*statements: dict[str, Any]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": list(statements)}


def _allow(actions: Any, condition: dict[str, Any] | None = None) -> dict[str, Any]:
    statement = {"Effect": "Allow", "Resource": "*", "Action": list(actions)}
    return {**statement, "Condition": condition} if condition else statement
