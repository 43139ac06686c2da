"""Whether a policy allows a call: actions and the condition keys that ours uses, as IAM has them.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition_operators.html
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from typing import Any

from tests.standins.aws_query import real
from tests.standins.aws_world import World

NAMED = (
    *("InstanceIds", "InstanceId", "GroupId", "GroupName"),
    *("VolumeId", "NetworkInterfaceId", "Resources"),
)
"""Parameters that name what a call is about."""


CREATED = {
    "RunInstances": ("instance", "volume", "network-interface"),
    "CreateSecurityGroup": ("security-group",),
    "CreatePlacementGroup": ("placement-group",),
}
"""What a call creates, by the names that TagSpecifications have for it."""


def check_tags(world: World, action: str, given: dict[str, Any]) -> None:
    """`world.required_tags`: what a service control policy with `"Null": {"aws:RequestTag/team":
    "true"}` denies, for each thing that the call creates.

    https://docs.aws.amazon.com/organizations/latest/userguide/orgs_manage_policies_scps_examples_tagging.html
    """
    for kind in CREATED.get(action, ()) if world.required_tags else ():
        specified = [s for s in given.get("TagSpecifications", ()) if s["ResourceType"] == kind]
        names = {tag["Key"] for one in specified for tag in one["Tags"]}
        if not names.issuperset(world.required_tags):
            world.denied.append(action)
            raise real(
                "tag-denied-by-organization",
                account=world.account,
                action=action,
                kind=kind,
                encoded="Ab3-_" * 40,
            )


def check(world: World, region: str, action: str, given: dict[str, Any]) -> None:
    """Raises Refused, as EC2 does, where `world.granted` does not allow the call."""
    check_tags(world, action, given)
    if world.granted is None:
        return
    asks: list[tuple[str, dict[str, str | None]]] = [(action, {"ec2:CreateAction": None})]
    if given.get("TagSpecifications"):
        asks.append(("CreateTags", {"ec2:CreateAction": action}))
    for asked, context in asks:
        tags = list(_tags(world, region, given)) if asked == action else []
        keys = [tag.get("Key") for tag in given.get("Tags", [])]
        if not any(
            f"ec2:{asked}" in statement["Action"] and _holds(statement, context, tags, keys)
            for statement in world.granted["Statement"]
        ):
            world.denied.append(asked)
            raise real("action-not-allowed", account=world.account, asked=asked)


def _holds(
    statement: dict[str, Any], context: dict[str, Any], tags: list[dict[str, str]], keys: list[Any]
) -> bool:
    for operator, wanted in statement.get("Condition", {}).items():
        for key, values in wanted.items():
            values = [values] if isinstance(values, str) else values
            if key.startswith("aws:ResourceTag/"):
                name = key.partition("/")[2]
                told = [each.get(name) for each in tags] or [None]
            elif key == "aws:TagKeys":
                told = keys
            else:
                told = [context.get(key)]
            if not all(_matches(operator, one, values) for one in told):
                return False
    return True


def _matches(operator: str, told: str | None, values: list[str]) -> bool:
    if told is None:
        return False
    if operator.endswith("StringLike"):
        return any(fnmatch.fnmatchcase(told, value) for value in values)
    return told in values


def _tags(world: World, region: str, given: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Of each thing that the call is about."""
    for parameter in NAMED:
        named = given.get(parameter) or []
        for id in [named] if isinstance(named, str) else named:
            group = world.placement_groups.get((region, id))
            if group is not None:
                yield {tag["Key"]: tag["Value"] for tag in group["Tags"]}
                continue
            found = world.backend(region).describe_tags(filters={"resource-id": [id]})
            yield {tag["key"]: tag["value"] for tag in found}
