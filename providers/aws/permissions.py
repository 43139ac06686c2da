"""IAM policy with every call that the driver makes, as narrow as EC2 allows.

Actions, resources and condition keys:
https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html, read
2026-11-22; nobody has tried on a real account whether exactly this policy is enough.
"""

from __future__ import annotations

import json
from typing import Any

from cloudtrain.providers.aws.expiry import ROLE
from cloudtrain.providers.base import labels

ASKED = (
    "ec2:DescribeAvailabilityZones",
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
    "servicequotas:GetAWSDefaultServiceQuota",
    "servicequotas:GetServiceQuota",
    "sts:GetCallerIdentity",
)
"""They change nothing, and EC2 has no narrower resource for them."""

MADE = ("CreatePlacementGroup", "CreateSecurityGroup", "RunInstances")
"""What they make is tagged in the same call, which is an action of its own, `CreateTags`."""

OURS = (
    "ec2:AuthorizeSecurityGroupIngress",
    "ec2:DeleteNetworkInterface",
    "ec2:DeletePlacementGroup",
    "ec2:DeleteSecurityGroup",
    "ec2:DeleteVolume",
    "ec2:GetConsoleOutput",
    "ec2:RevokeSecurityGroupIngress",
    "ec2:StartInstances",
    "ec2:TerminateInstances",
)
"""Only on what bears our tag."""

HELD = ("scheduler:CreateSchedule", "scheduler:DeleteSchedule", "scheduler:UpdateSchedule")
"""Only where AWS is to hold the end of the nodes too."""


def policy() -> dict[str, Any]:
    """Policy for the user of cloudtrain.

    Without the condition on CreateTags, they could put our tag on any instance of the account and
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
    """Policy beside `policy` for accounts with the role that ends nodes."""
    schedules = "arn:aws:scheduler:*:*:schedule/default/cloudtrain-*"
    return _document(
        {**_allow(HELD), "Resource": schedules},
        {**_allow(["iam:GetRole", "iam:PassRole"]), "Resource": f"arn:aws:iam::*:role/{ROLE}"},
    )


def text(document: dict[str, Any]) -> str:
    """Format the policy with a paragraph per statement and a line per action."""
    return json.dumps(document, indent=1) + "\n"


def block() -> str:
    """The block to paste of docs/aws.md."""
    both = (policy(), policy_of_schedules())
    second = "With a role that lets AWS hold the end of nodes (below), also:\n\n"
    return f"\n{second}".join(f"```json\n{text(each)}```\n" for each in both)


def _document(*statements: dict[str, Any]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": list(statements)}


def _allow(actions: Any, condition: dict[str, Any] | None = None) -> dict[str, Any]:
    statement = {"Effect": "Allow", "Resource": "*", "Action": list(actions)}
    return {**statement, "Condition": condition} if condition else statement
