"""Lists our resources other than instances."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cloudtrain.core.partial_list import NotAsked
from cloudtrain.providers.aws import network, requests, xml
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.xml import Tree
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.driver import Resource


@dataclass(frozen=True)
class ResourceKind:
    """Describes how one kind of resource is listed and deleted."""

    word: str
    noun: str
    """In the names of EC2's actions."""
    set: str
    id: str
    """Field of the answer, and in capitals the parameter of the deletion."""
    named: str = ""
    """Field of the answer that has the name, if it is not the ID."""
    passing: tuple[str, ...] = ()
    """States of a resource that is in use, and is deleted together with its instance."""

    @property
    def listed_by(self) -> str:
        return f"Describe{self.noun}s"

    @property
    def name(self) -> str:
        return self.named or self.id

    def deletion(self, id: str) -> tuple[str, dict[str, str]]:
        """The action and its parameters."""
        return f"Delete{self.noun}", {f"{self.id[0].upper()}{self.id[1:]}": id}


USED = ("in-use", "deleting", "deleted")
KINDS = (
    ResourceKind("security group", "SecurityGroup", "securityGroupInfo", "groupId", "groupName"),
    ResourceKind("placement group", "PlacementGroup", "placementGroupSet", "groupName"),
    ResourceKind("volume", "Volume", "volumeSet", "volumeId", passing=USED),
    ResourceKind(
        "network interface",
        "NetworkInterface",
        "networkInterfaceSet",
        "networkInterfaceId",
        passing=("in-use", "attaching", "detaching"),
    ),
)
BY_WORD = {kind.word: kind for kind in KINDS}


def of_kind(
    ec2: Ec2Client, region: str, *, kind: ResourceKind, cluster: str | None = None
) -> list[Resource | NotAsked]:
    """List the resources of this kind in that region, of all clusters, and what cannot be ours; of
    the latter, with `cluster`, only what has its label."""
    if kind is BY_WORD["placement group"]:
        found = network.placement_groups(ec2, region) or []
    else:
        wanted = requests.filters(tag_key=labels.CLUSTER)
        found = ec2.pages(region, kind.listed_by, kind.set, wanted)
    read = [_resource(kind, each, region, cluster) for each in found]
    return [resource for resource in read if resource is not None]


def _resource(
    kind: ResourceKind, found: Tree, region: str, cluster: str | None
) -> Resource | NotAsked | None:
    """Convert a resource; None if it is not ours or is deleted together with its instance."""
    tags = xml.tags(found)
    ours = labels.read(tags) or _by_name(xml.text(found, kind.name), region)
    if ours is None or xml.text(found, "status") in kind.passing:
        return None
    if isinstance(ours, labels.NotOurs):
        is_wanted = cluster in (None, tags.get(labels.CLUSTER))
        return ours.on(f"{kind.word} {xml.text(found, kind.id)} in {region}") if is_wanted else None
    return Resource(
        cluster=ours.cluster,
        kind=kind.word,
        name=xml.text(found, kind.name),
        id=xml.text(found, kind.id),
        region=region,
        **ours.resource_fields,
    )


def _by_name(name: str, region: str) -> labels.Labels | None:
    """Derive a placement group's labels from its name, for endpoints that do not tag those."""
    found = re.match(rf"(.+)-{re.escape(region)}", name)
    cluster = labels.cluster_of(found[1]) if found else None
    return labels.ours({labels.CLUSTER: cluster}) if cluster else None
