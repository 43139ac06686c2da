"""Checks for `network.ssh_proxy: ssm`: whether anything lets the nodes register at Session Manager.

API: GetServiceSetting and SimulatePrincipalPolicy of botocore's models; the setting:
https://docs.aws.amazon.com/systems-manager/latest/userguide/
fleet-manager-default-host-management-configuration.html, read 2026-11-24, not tried on a real
account. The user's own right to ssm:StartSession shows only at the first session.
"""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.core.errors import PermissionsError, if_told
from cloudtrain.core.model import Plan
from cloudtrain.core.protocols import Finding
from cloudtrain.providers.aws import node_identity, quota
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.ssh_service import NODE_ACTIONS
from cloudtrain.providers.base.words import NOT_REPORTED

SETTING = "/ssm/managed-instance/default-ec2-instance-management-role"
"""Default Host Management Configuration: the role of instances without one of their own."""
UNSET = ("", "$None")
HINT = (
    "attach AmazonSSMManagedInstanceCore to the role of `identity:`, or turn on Default Host "
    "Management Configuration in the region (docs/private-nodes.md)"
)


def check(ec2: Ec2Client, region: str, plan: Plan) -> Iterator[Finding]:
    """Yield the finding; none without `ssm`. What cannot be asked fails nothing."""
    proxy = plan.config.network.ssh_proxy
    if proxy is None or not proxy.ssm:
        return
    answers = [_by_identity(ec2, region, plan.config.identity), _by_default(ec2, region)]
    texts = "; ".join(text for _, text in answers if text)
    if any(allowed for allowed, _ in answers):
        yield Finding(what="ssm", ok=True, text=texts)
    elif any(allowed is None for allowed, _ in answers):
        yield Finding(what="ssm", ok=True, text=texts, told=False)
    else:
        yield Finding(what="ssm", ok=False, text=texts, hint=HINT, error=PermissionsError)


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

    return if_told(ask, lambda error: (None, f"{identity}: {NOT_REPORTED}: {error.message}"))


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
