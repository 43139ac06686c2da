"""`check` of `disk_key`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cloudtrain.core.errors import CloudConfigError, CloudError, NotFoundError
from cloudtrain.core.model import Plan
from cloudtrain.core.protocols import Finding
from cloudtrain.providers.aws import quota
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.base.words import NOT_REPORTED


def check(ec2: Ec2Client, regions: Sequence[str], plan: Plan) -> Iterator[Finding]:
    """Yield one finding per region. EC2 itself accepts an instance whose key it may not use, and
    ends it with Client.InternalError: only `up` shows what the key's policy grants.
    """
    for region in regions if plan.config.disk_key else ():
        key = str(plan.config.disk_key_in(region))
        try:
            facts = _described(ec2, region, key)
        except NotFoundError as error:
            hint = f"`aws kms describe-key --region {region} --key-id {key}` must find it"
            yield Finding(
                what="disk key", ok=False, text=error.message, hint=hint, error=CloudConfigError
            )
            continue
        except CloudError as error:  # a right that `up` does not need
            yield Finding(
                what="disk key", ok=True, text=f"{region}: {key}: {error.message}", told=False
            )
            continue
        yield _finding(region, key, facts)


def _described(ec2: Ec2Client, region: str, key: str) -> Mapping[str, Any] | None:
    client = quota.service(ec2, "kms", region)
    if client is None:
        return None
    with ec2.mapped(f"DescribeKey {key} in {region}"):
        found: Mapping[str, Any] = client.describe_key(KeyId=key)["KeyMetadata"]
        return found


def _finding(region: str, key: str, facts: Mapping[str, Any] | None) -> Finding:
    """https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html: symmetric
    keys that are enabled.
    """
    if facts is None:
        return Finding(what="disk key", ok=True, text=f"{region}: {NOT_REPORTED}", told=False)
    state, spec = str(facts.get("KeyState")), str(facts.get("KeySpec"))
    if state != "Enabled" or spec != "SYMMETRIC_DEFAULT":
        text = f"{region}: {key} is {state}, {spec}: disks need an enabled symmetric key"
        return Finding(what="disk key", ok=False, text=text, error=CloudConfigError)
    return Finding(what="disk key", ok=True, text=f"{region}: {key}, enabled")
