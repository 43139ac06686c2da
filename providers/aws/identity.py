"""Identity of our AWS credentials."""

from __future__ import annotations

import re

from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.protocols import Principal
from cloudtrain.providers.aws.client import Ec2Client

ANYWHERE = "us-east-1"


def principal(ec2: Ec2Client, config: ClusterConfig) -> Principal | None:
    """The caller's identity; None if this endpoint has no STS. Raises CloudError."""
    caller = arn(ec2, config)
    return None if caller is None else of_arn(caller)


def arn(ec2: Ec2Client, config: ClusterConfig) -> str | None:
    """The caller's ARN, asked once; None if this endpoint has no STS. Raises CloudError."""
    if ec2.caller:
        return ec2.caller
    placed = [re.match(r"[a-z]+(-[a-z]+)+-[0-9]+", place) for place in config.placement[:1]]
    named = next((found[0] for found in placed if found), None)
    region = named or ec2.session().region_name or ANYWHERE
    client = ec2.service("sts", region, config.endpoints.auth)
    if client is None:
        return None
    with ec2.mapped("GetCallerIdentity"):
        ec2.caller = str(client.get_caller_identity()["Arn"])
    return ec2.caller


def of_arn(arn: str) -> Principal:
    """The principal of an ARN: the role, not its session, whose name changes each time.

    With IAM Identity Center it is the person instead, who may have several roles.
    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html and
    https://docs.aws.amazon.com/singlesignon/latest/userguide/cloudtrail-integration.html"""
    head, _, resource = arn.rpartition(":")
    kind, _, rest = resource.partition("/")
    if kind != "assumed-role":
        return Principal(id=arn, name=(rest or kind).rpartition("/")[2])
    role, _, session = rest.partition("/")
    if role.startswith("AWSReservedSSO_") and session:
        return Principal(id=f"{head}:sso/{session}", name=session.partition("@")[0])
    return Principal(id=f"{head}:role/{role}", name=role)
