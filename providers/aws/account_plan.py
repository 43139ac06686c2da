"""Check of an account's plan: on the Free plan, EC2 launches a few machine types only.

Accounts made since 2025-07-15 begin on it unless the paid plan was chosen:
https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/free-tier-plans.html
"""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.core.errors import PermissionsError, if_told
from cloudtrain.core.model import Plan
from cloudtrain.core.protocols import Finding
from cloudtrain.providers.aws import quota, requests, xml
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.facts import FACTS

HOME = "us-east-1"
"""The only region of the service `freetier` (botocore's endpoints)."""
UPGRADE = (
    "choose nodes.….machine among them, or upgrade the account to the paid plan: "
    "https://console.aws.amazon.com/billing/home#/freetier/upgrade"
)


def check(ec2: Ec2Client, region: str, plan: Plan) -> Iterator[Finding]:
    """Yield a finding for an account on the Free plan; none for any other, or if nobody may ask."""
    # EC2's own refusal says the same.
    eligible = if_told(lambda: sorted(_eligible(ec2, region)) if _is_free(ec2) else None, None)
    if eligible is None:
        return
    machines = {node.machine for node in plan.nodes if node.machine}
    if plan.config.away.identity:  # `run --away` adds its desk
        machines.add(plan.config.away.machine or FACTS.desk_machine)
    refused = sorted(machines - set(eligible))
    text = "this account is on the Free plan"
    if not refused:
        yield Finding(what="account", ok=True, text=f"{text}, which may launch these machines")
        return
    gpus = any(node.accelerator for node in plan.nodes)
    none = "; none of them has a GPU" if gpus else ""
    yield Finding(
        what="account",
        ok=False,
        text=f"{text}, which cannot launch {', '.join(refused)}, only {', '.join(eligible)}{none}",
        hint=UPGRADE,
        error=PermissionsError,
    )


def _is_free(ec2: Ec2Client) -> bool:
    client = quota.service(ec2, "freetier", HOME)
    if client is None:
        return False
    with ec2.mapped("GetAccountPlanState"):
        return bool(client.get_account_plan_state()["accountPlanType"] == "FREE")


def _eligible(ec2: Ec2Client, region: str) -> Iterator[str]:
    """Yield the types of x86-64 that a Free plan may launch."""
    wanted = {"free-tier-eligible": "true", "processor-info.supported-architecture": "x86_64"}
    for each in ec2.pages(
        region, "DescribeInstanceTypes", "instanceTypeSet", requests.filters(**wanted)
    ):
        yield xml.text(each, "instanceType")
