"""Lists our resources other than instances."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cloudtrain.providers._aws import answers, bodies, network
from cloudtrain.providers._aws.answers import Tree
from cloudtrain.providers._aws.connection import Ec2
from cloudtrain.providers._cloud import labels
from cloudtrain.providers._cloud.account import Resource


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How one kind of resource is listed and deleted."""

    word: str
    listed_by: str
    set: str
    name: str
    id: str
    deleted_by: str
    parameter: str
    passing: frozenset[str] = frozenset()
    """States in which it goes by itself: what an instance uses is deleted with it."""


KINDS = (
    Kind(
        word="security group",
        listed_by="DescribeSecurityGroups",
        set="securityGroupInfo",
        name="groupName",
        id="groupId",
        deleted_by="DeleteSecurityGroup",
        parameter="GroupId",
    ),
    Kind(
        word="placement group",
        listed_by="DescribePlacementGroups",
        set="placementGroupSet",
        name="groupName",
        id="groupName",
        deleted_by="DeletePlacementGroup",
        parameter="GroupName",
    ),
    Kind(
        word="volume",
        listed_by="DescribeVolumes",
        set="volumeSet",
        name="volumeId",
        id="volumeId",
        deleted_by="DeleteVolume",
        parameter="VolumeId",
        passing=frozenset({"in-use", "deleting", "deleted"}),
    ),
    Kind(
        word="network interface",
        listed_by="DescribeNetworkInterfaces",
        set="networkInterfaceSet",
        name="networkInterfaceId",
        id="networkInterfaceId",
        deleted_by="DeleteNetworkInterface",
        parameter="NetworkInterfaceId",
        passing=frozenset({"in-use", "attaching", "detaching"}),
    ),
)
BY_WORD = {kind.word: kind for kind in KINDS}


def of_kind(ec2: Ec2, region: str, *, kind: Kind) -> list[Resource]:
    """Resources of this kind in that region, of every cluster."""
    if kind is BY_WORD["placement group"]:
        found = network.placement_groups(ec2, region) or []
    else:
        wanted = bodies.filters(tag_key=labels.CLUSTER)
        found = ec2.pages(region, kind.listed_by, kind.set, wanted)
    read = [_resource(kind, each, region) for each in found]
    return [resource for resource in read if resource is not None]


def _resource(kind: Kind, found: Tree, region: str) -> Resource | None:
    """Our resource; None if it is not ours or is deleted together with its instance."""
    ours = labels.read(answers.tags(found)) or _by_name(answers.text(found, kind.name), region)
    if ours is None or answers.text(found, "status") in kind.passing:
        return None
    return Resource(
        cluster=ours.cluster,
        kind=kind.word,
        name=answers.text(found, kind.name),
        id=answers.text(found, kind.id),
        region=region,
        owner=ours.owner,
    )


def _by_name(name: str, region: str) -> labels.Labels | None:
    """Cluster of a placement group by its name, for endpoints that keep no tags on those."""
    found = re.match(rf"(.+)-{re.escape(region)}", name)
    cluster = labels.cluster_of(found[1]) if found else None
    return labels.read({labels.CLUSTER: cluster}) if cluster else None
