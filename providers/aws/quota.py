"""vCPU quotas by instance family: limits and usage.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-on-demand-instances.html#ec2-on-demand-instances-limits
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CloudError
from cloudtrain.core.model import MachineType, Plan
from cloudtrain.core.protocols import Allowance
from cloudtrain.providers.aws import listing, xml
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.machine_types import Ec2MachineType, machine_types
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.quota import allowance


@dataclass(frozen=True, kw_only=True, order=True)
class Quota:
    code: str
    name: str


@dataclass(frozen=True, kw_only=True)
class QuotaNeed:
    """vCPUs needed of one quota in one region. `allowed` is None if it is not reported."""

    quota: Quota
    wanted: int
    running: int
    allowed: int | None


_FAMILIES = (
    (re.compile(r"(g|gr|vt)\d"), "G and VT", "L-DB2E81BA", "L-3819A6DF"),
    (re.compile(r"p5"), "P", "L-417A185B", "L-C4BD4855"),
    (re.compile(r"p[234]"), "P", "L-417A185B", "L-7212CCBC"),
    (re.compile(r"p\d"), "P", "L-417A185B", None),
    (re.compile(r"(a|c|d|h|i|im|is|m|r|t|z)\d"), "standard", "L-1216C47A", "L-34B43A08"),
)


def quota_of(machine: str, *, spot: bool) -> Quota | None:
    """The quota of a machine type; None if unknown."""
    for family, name, on_demand, on_spot in _FAMILIES:
        if family.match(machine):
            code, market = (on_spot, "spot") if spot else (on_demand, "on-demand")
            return Quota(code=code, name=f"{name} {market}") if code else None
    return None


def needs(
    ec2: Ec2Client, region: str, plan: Plan, types: Mapping[str, Ec2MachineType]
) -> tuple[list[QuotaNeed], list[str]]:
    """The vCPUs that all roles together need of each quota, and the machine types without a known
    quota.

    A Capacity Reservation counts against the quota when it is made, also while it is unused, and
    instances in a Capacity Block count against none: neither needs more.
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html and
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/cr-concepts.html"""
    wanted: Counter[Quota] = Counter()
    unknown = set()
    for node in plan.nodes:
        if node.provisioning.name:
            continue
        machine = node.machine or ""
        quota = quota_of(machine, spot=node.spot)
        if quota is None or machine not in types:
            unknown.add(machine or node.name)
        else:
            wanted[quota] += types[machine].vcpus
    running = _running(ec2, region, plan.config.name) if wanted else {}
    client = ec2.service("service-quotas", region)
    found = [
        QuotaNeed(
            quota=quota,
            wanted=count,
            running=running.get(quota, 0),
            allowed=_allowed(ec2, client, quota, region),
        )
        for quota, count in sorted(wanted.items())
    ]
    return found, sorted(unknown)


def _running(ec2: Ec2Client, region: str, cluster: str) -> Mapping[Quota, int]:
    """The vCPUs in use, without this cluster's, which are part of the need."""
    found = listing.find(ec2, region, instance_state_name=["pending", "running"])
    others = [
        (xml.text(each, "instanceType"), xml.text(each, "instanceLifecycle") == "spot")
        for each in found
        if xml.tags(each).get(labels.CLUSTER) != cluster
        and xml.text(each, "instanceLifecycle") != "capacity-block"
    ]
    types = machine_types(ec2, region, {name for name, _ in others}) if others else {}
    counted: Counter[Quota] = Counter()
    for name, spot in others:
        quota = quota_of(name, spot=spot)
        if quota is not None and name in types:
            counted[quota] += types[name].vcpus
    return counted


def _allowed(ec2: Ec2Client, client: Any, quota: Quota, region: str) -> int | None:
    if client is None:
        return None
    wanted = {"ServiceCode": "ec2", "QuotaCode": quota.code}
    try:
        with ec2.mapped(f"GetServiceQuota {quota.code} in {region}"):
            return int(client.get_service_quota(**wanted)["Quota"]["Value"])
    except CloudError as error:
        if error.code != "NoSuchResourceException":
            return None  # the check says "not reported"; EC2 itself refuses what exceeds the quota
    try:  # no value was ever applied to this account: AWS's default counts (aws/aws-cli#6629)
        with ec2.mapped(f"GetAWSDefaultServiceQuota {quota.code} in {region}"):
            return int(client.get_aws_default_service_quota(**wanted)["Quota"]["Value"])
    except CloudError:
        return None


def allowances(ec2: Ec2Client, region: str, machines: Sequence[MachineType]) -> list[Allowance]:
    """Room that the vCPU quotas of a region leave for each machine, besides all that runs."""
    running = _running(ec2, region, "")
    client = ec2.service("service-quotas", region)
    wanted = [(machine, spot) for machine in machines for spot in (False, True)]
    quotas = {quota_of(machine.name, spot=spot) for machine, spot in wanted}
    reported: dict[str, tuple[float, float]] = {}
    for quota in quotas:
        allowed = None if quota is None else _allowed(ec2, client, quota, region)
        if quota is not None and allowed is not None:
            reported[_named(quota)] = (allowed, running.get(quota, 0))
    found = []
    for machine, spot in wanted:
        quota = quota_of(machine.name, spot=spot)
        needs = {} if quota is None else {_named(quota): machine.vcpus}
        found.append(allowance(machine, region, needs, reported, spot=spot))
    return found


def _named(quota: Quota) -> str:
    return f"{quota.code} (vCPUs of {quota.name})"
