"""Checks of what belongs to the account: its plan, the key of its disks, and Session Manager.

On the Free plan, EC2 launches a few machine types only. Accounts made since 2025-07-15 begin on it
unless the paid plan was chosen:
https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/free-tier-plans.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from cloudtrain.core.errors import (
    CloudConfigError,
    CloudError,
    CloudtrainError,
    NotFoundError,
    PermissionsError,
    if_told,
)
from cloudtrain.core.model import Plan
from cloudtrain.core.protocols import Finding
from cloudtrain.providers.aws import node_identity, quota, requests, xml
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.facts import FACTS
from cloudtrain.providers.aws.ssh_service import NODE_ACTIONS
from cloudtrain.providers.base.findings import NotChecked, finding
from cloudtrain.providers.base.words import NOT_REPORTED

HOME = "us-east-1"
"""The only region of the service `freetier` (botocore's endpoints)."""
UPGRADE = (
    "choose nodes.….machine among them, or upgrade the account to the paid plan: "
    "https://console.aws.amazon.com/billing/home#/freetier/upgrade"
)


def free_plan(ec2: Ec2Client, region: str, plan: Plan) -> Iterator[Finding]:
    """Yield a finding for an account on the Free plan; none for any other, or if nobody may ask."""
    # EC2's own refusal says the same.
    eligible = if_told(lambda: sorted(_eligible(ec2, region)) if _is_free(ec2) else None, None)
    if eligible is not None:
        yield finding("account", lambda: _launchable(plan, eligible))


def _launchable(plan: Plan, eligible: Sequence[str]) -> str:
    machines = {node.machine for node in plan.nodes if node.machine}
    if plan.config.away.identity:  # `run --away` adds its desk
        machines.add(plan.config.away.machine or FACTS.desk_machine)
    refused = sorted(machines - set(eligible))
    text = "this account is on the Free plan"
    if not refused:
        return f"{text}, which may launch these machines"
    none = "; none of them has a GPU" if any(node.accelerator for node in plan.nodes) else ""
    raise PermissionsError(
        f"{text}, which cannot launch {', '.join(refused)}, only {', '.join(eligible)}{none}",
        hint=UPGRADE,
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
    asked = requests.filters(**wanted)
    for each in ec2.pages(region, "DescribeInstanceTypes", "instanceTypeSet", asked):
        yield xml.text(each, "instanceType")


def disk_keys(ec2: Ec2Client, regions: Sequence[str], plan: Plan) -> Iterator[Finding]:
    """Yield one finding per region. EC2 itself accepts an instance whose key it may not use, and
    ends it with Client.InternalError: only `up` shows what the key's policy grants.
    """
    for region in regions if plan.config.disk_key else ():
        key = str(plan.config.disk_key_in(region))
        yield finding("disk key", partial(_disk_key, ec2, region, key))


def _disk_key(ec2: Ec2Client, region: str, key: str) -> str:
    """Text on a key: disks need a symmetric one that is enabled.

    https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html
    """
    client = quota.service(ec2, "kms", region)
    if client is None:
        return f"{region}: {NOT_REPORTED}"
    try:
        with ec2.mapped(f"DescribeKey {key} in {region}"):
            facts = client.describe_key(KeyId=key)["KeyMetadata"]
    except NotFoundError as error:
        hint = f"`aws kms describe-key --region {region} --key-id {key}` must find it"
        raise CloudConfigError(error.message, hint=hint) from error
    except CloudError as error:  # a right that `up` does not need
        raise NotChecked(f"{region}: {key}: {error.message}") from error
    state, spec = str(facts.get("KeyState")), str(facts.get("KeySpec"))
    if state != "Enabled" or spec != "SYMMETRIC_DEFAULT":
        raise CloudConfigError(
            f"{region}: {key} is {state}, {spec}: disks need an enabled symmetric key"
        )
    return f"{region}: {key}, enabled"


SETTING = "/ssm/managed-instance/default-ec2-instance-management-role"
"""Default Host Management Configuration: the role of instances without one of their own."""
UNSET = ("", "$None")
HINT = (
    "attach AmazonSSMManagedInstanceCore to the role of `identity:`, or turn on Default Host "
    "Management Configuration in the region (docs/private-nodes.md)"
)


def session_manager(ec2: Ec2Client, region: str, plan: Plan) -> Iterator[Finding]:
    """Yield whether anything lets the nodes register at Session Manager; nothing without `ssm`.
    What cannot be asked fails nothing.

    API: GetServiceSetting and SimulatePrincipalPolicy of botocore's models; the setting:
    https://docs.aws.amazon.com/systems-manager/latest/userguide/
    fleet-manager-default-host-management-configuration.html, read 2026-11-24, not tried on a real
    account. The user's own right to ssm:StartSession shows only at the first session.
    """
    proxy = plan.config.network.ssh_proxy
    if proxy is not None and proxy.ssm:
        yield finding("ssm", lambda: _may_register(ec2, region, plan.config.identity))


def _may_register(ec2: Ec2Client, region: str, identity: str | None) -> str:
    answers = [_by_identity(ec2, region, identity), _by_default(ec2, region)]
    texts = "; ".join(text for _, text in answers if text)
    if any(allowed for allowed, _ in answers):
        return texts
    if any(allowed is None for allowed, _ in answers):
        raise NotChecked(texts)
    raise PermissionsError(texts, hint=HINT)


def _by_identity(ec2: Ec2Client, region: str, identity: str | None) -> tuple[bool | None, str]:
    """True if the identity's role may register a node (None: not known), and a text on that."""
    if identity is None:
        return False, "no `identity:`"
    client = quota.service(ec2, "iam", region)
    if client is None:
        return None, f"{identity}: {NOT_REPORTED}"

    def ask() -> tuple[bool | None, str]:
        role = str(node_identity.role_of(ec2, client, identity)["Arn"])
        decided = node_identity.simulated(ec2, client, role, NODE_ACTIONS)
        lacks = ", ".join(action for action, each in decided.items() if each != "allowed")
        return not lacks, f"{identity} lacks {lacks}" if lacks else f"{identity} has rights"

    def refused(error: CloudtrainError) -> tuple[None, str]:
        known = isinstance(error, NotChecked)
        return None, error.message if known else f"{identity}: {NOT_REPORTED}: {error.message}"

    return if_told(ask, refused)


def _by_default(ec2: Ec2Client, region: str) -> tuple[bool | None, str]:
    """The same for the region's default role."""
    client = quota.service(ec2, "ssm", region)
    what = f"default host management in {region}"
    if client is None:
        return None, f"{what}: {NOT_REPORTED}"

    def ask() -> tuple[bool | None, str]:
        with ec2.mapped("GetServiceSetting"):
            setting = client.get_service_setting(SettingId=SETTING)["ServiceSetting"]
        value = str(setting.get("SettingValue") or "")
        if value in UNSET:
            return False, f"{region} has no default host management"
        return True, f"{what} by {value}"

    return if_told(ask, lambda error: (None, f"{what}: {NOT_REPORTED}: {error.message}"))
