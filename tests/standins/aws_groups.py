"""Security groups and placement groups: what is in use does not go."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from werkzeug.wrappers import Request

from tests.standins.aws_query import Refused, real
from tests.standins.aws_world import World, tags_for


class Groups(World):
    def _create_security_group(self, region: str, given: dict[str, Any], request: Request) -> Any:
        groups = self.backend(region).groups.values()
        before = {id for there in groups for id in there}
        answer = self.by_moto(request)
        for id in {id for there in groups for id in there} - before:
            self.born[id] = self.now()
        return answer

    def _delete_security_group(self, region: str, given: dict[str, Any], request: Request) -> Any:
        backend = self.backend(region)
        name = given.get("GroupId") or given.get("GroupName")
        group = backend.get_security_group_by_name_or_id(name) if name else None
        if group is None:
            return self.by_moto(request)
        if group.name == "default":
            raise real("default-group-stays", group=group.id)
        in_use = (
            any(group in one.security_groups for one in self.alive(region))
            or any(group in nic.group_set for nic in backend.enis.values())
            or any(
                rule.source_group.get("GroupId") == group.id
                for other in backend.describe_security_groups()
                if other.id != group.id
                for rule in (*other.ingress_rules, *other.egress_rules)
            )
        )
        if in_use:
            raise real("has-dependent-object", group=group.id)
        return self.by_moto(request)

    # ── Placement groups ─────────────────────────────────────────────────────

    def _create_placement_group(self, region: str, given: dict[str, Any], request: Request) -> Any:
        name = given.get("GroupName")
        if not name:
            raise real("group-name-missing")
        if (region, name) in self.placement_groups:
            raise real("placement-group-exists", name=name)
        if given.get("DryRun"):
            raise real("dry-run-succeeds")
        number = hashlib.sha256(f"{self.account} {region} {name} {time.time()}".encode())
        made = {
            "GroupName": name,
            "State": "available",
            "Strategy": given.get("Strategy", "cluster"),
            "GroupId": f"pg-{number.hexdigest()[:17]}",
            "Tags": [{"Key": k, "Value": v} for k, v in tags_for(given, "placement-group").items()],
        }
        made["GroupArn"] = f"arn:aws:ec2:{region}:{self.account}:placement-group/{name}"
        self.placement_groups[region, name] = made
        return {"PlacementGroup": made}

    def _describe_placement_groups(
        self, region: str, given: dict[str, Any], request: Request
    ) -> Any:
        groups = {name: made for (at, name), made in self.placement_groups.items() if at == region}
        for name in given.get("GroupNames", []):
            if name not in groups:
                raise _unknown_group(name)
        names, ids = given.get("GroupNames"), given.get("GroupIds")
        found = [
            made
            for name, made in groups.items()
            if (not names or name in names) and (not ids or made["GroupId"] in ids)
        ]
        for each in given.get("Filters", []):
            found = [made for made in found if _matches(made, each["Name"], each["Values"])]
        return {"PlacementGroups": found}

    def _delete_placement_group(self, region: str, given: dict[str, Any], request: Request) -> Any:
        name = given.get("GroupName", "")
        if (region, name) not in self.placement_groups:
            raise _unknown_group(name)
        if any(one.placement.group_name == name for one in self.alive(region)):
            raise real("placement-group-in-use", name=name)
        del self.placement_groups[region, name]
        return {}


def _unknown_group(name: str) -> Refused:
    return real("placement-group-absent", group=name)


def _matches(made: dict[str, Any], name: str, values: list[str]) -> bool:
    tags = {tag["Key"]: tag["Value"] for tag in made["Tags"]}
    if name == "tag-key":
        return any(value in tags for value in values)
    if name.startswith("tag:"):
        return tags.get(name.removeprefix("tag:")) in values
    field = {"group-name": "GroupName", "state": "State", "strategy": "Strategy"}.get(name)
    if field is None:
        raise real("filter-invalid", name=name)
    return made[field] in values
