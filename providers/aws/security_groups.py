"""Existing security groups of the user's, which are used as they are."""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.core.errors import CloudConfigError
from cloudtrain.providers.aws import requests, xml
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.xml import Tree


def existing(ec2: Ec2Client, region: str, vpc: str, wanted: Sequence[str]) -> list[Tree]:
    """The groups. Raises CloudConfigError if one is not in that VPC."""
    asked = requests.filters(group_id=wanted)
    there = ec2.pages(region, "DescribeSecurityGroups", "securityGroupInfo", asked)
    found = {xml.text(each, "groupId"): each for each in there}
    for id in wanted:
        its_vpc = xml.text(found[id], "vpcId") if id in found else ""
        if its_vpc != vpc:
            where = f"in {its_vpc}" if its_vpc else f"not in {region}"
            raise CloudConfigError(
                f"network.firewall {id} is {where}, but the subnet is in {vpc}",
                hint="name a security group of that VPC",
                scope="region",
            )
    return [found[id] for id in wanted]


def described(groups: Sequence[Tree], names: Sequence[str]) -> str:
    """Text on who may use SSH by these groups. Raises CloudConfigError if nodes could not reach
    each other, or nobody could reach them.

    Rules with prefix lists are passed over: what they contain takes further calls.
    """
    rules = [rule for group in groups for rule in xml.items(group, "ipPermissions")]
    listed = any(xml.items(rule, "prefixListIds") for rule in rules)
    words = ", ".join(names)
    members = {xml.text(each, "groupId") for rule in rules for each in xml.items(rule, "groups")}
    inside = members & set(names) or any(_sources(rule) for rule in rules if _is_all(rule))
    if not inside and not listed:
        raise CloudConfigError(
            f"no rule of {words} lets its members reach each other",
            hint=f"have a rule added that allows all traffic from {names[0]} itself",
        )
    open_to = sorted({s for rule in rules if _has_ssh(rule) for s in (*_sources(rule), *_of(rule))})
    if not open_to and not listed:
        raise CloudConfigError(
            f"no rule of {words} allows SSH (TCP port 22)",
            hint="have a rule added that allows port 22 from the addresses that you connect from",
        )
    return f"{words}, used as it is: SSH from {', '.join(open_to) or 'a prefix list'}"


def _is_all(rule: Tree) -> bool:
    return rule.get("ipProtocol") == requests.ALL


def _has_ssh(rule: Tree) -> bool:
    if _is_all(rule):
        return True
    low, high = xml.text(rule, "fromPort"), xml.text(rule, "toPort")
    ports = low.isdecimal() and high.isdecimal() and int(low) <= 22 <= int(high)
    return rule.get("ipProtocol") in ("tcp", "6") and ports


def _sources(rule: Tree) -> list[str]:
    ranges = [xml.text(each, "cidrIp") for each in xml.items(rule, "ipRanges")]
    return ranges + [xml.text(each, "cidrIpv6") for each in xml.items(rule, "ipv6Ranges")]


def _of(rule: Tree) -> list[str]:
    return [xml.text(each, "groupId") for each in xml.items(rule, "groups")]
