"""Lists our resources other than instances; deletes instances, then what they used."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

from cloudtrain.core import fence
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import BusyError, NotFoundError, raise_all
from cloudtrain.core.partial_list import NotAsked
from cloudtrain.providers.aws import listing, network, requests, xml
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.xml import Tree
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.driver import Resource, Vm
from cloudtrain.providers.base.teardown import gather


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
        found = ec2.pages(region, f"Describe{kind.noun}s", kind.set, wanted)
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


# ── Deletes instances, then what they used. A failure stops nothing else; all are reported ────


BATCH = 100
"""Instances per call."""
RELEASE = 10.0
"""Seconds to retry deleting a resource in use before its users are listed again."""


def delete_all(
    ec2: Ec2Client,
    gone: Sequence[Vm],
    resources: Sequence[Resource],
    *,
    launched: Callable[[str], bool],
) -> None:
    """Delete these machines and resources. `launched` returns True for the ID of an instance that
    this process has just launched and that EC2 may not know everywhere yet."""
    regions = sorted({machine.place.region for machine in gone})
    failures: dict[str, BaseException] = {}
    living = set(regions)

    def end(region: str) -> None:
        ids = [machine.id for machine in gone if machine.place.region == region]
        for start in range(0, len(ids), BATCH):
            _terminate(ec2, region, ids[start : start + BATCH], launched)
        _await_end(ec2, region, ids)
        living.discard(region)

    gather({region: partial(end, region) for region in regions}, failures)
    # A security group can be deleted once no network interface and no instance uses it.
    for kinds in (("volume", "network interface"), ("security group", "placement group")):
        batch = [r for r in resources if r.kind in kinds and r.region not in living]
        gather({str(resource): partial(_delete, ec2, resource) for resource in batch}, failures)
    raise_all(failures)


def delete_from_inside(ec2: Ec2Client, machines: Sequence[Vm]) -> None:
    """Terminate the instance that runs this program; its volume goes with it. Its security group,
    which has no price, cannot be deleted before it. AWS's own schedule of its end stays, in case
    that this fails; it deletes itself once it was due."""
    for machine in machines:
        _terminate(ec2, machine.place.region, [machine.id], lambda id: False)


def _terminate(
    ec2: Ec2Client, region: str, ids: Sequence[str], launched: Callable[[str], bool]
) -> None:
    """Terminate instances. An unknown ID fails the call: it is skipped, or retried if new."""
    waiting = set(ids)

    def ask() -> bool | None:
        if not waiting:
            return True
        fence.refuse_stale()
        try:
            ec2.ask(region, "TerminateInstances", {"InstanceId": sorted(waiting)})
        except NotFoundError as error:
            unknown = set(re.findall(r"i-[0-9a-f]+", error.message)) & waiting or set(waiting)
            if unknown == waiting and len(waiting) > 1:
                for id in sorted(waiting):
                    _terminate(ec2, region, [id], launched)
                return True
            late = {id for id in unknown if launched(id)}
            waiting.difference_update(unknown - late)
            if late and late != waiting:
                _terminate(ec2, region, sorted(waiting - late), launched)
                waiting.intersection_update(late)
            return None if waiting else True
        return True

    if ec2.timing.until(ask, within=ec2.timing.listing) is None and waiting:
        raise NotFoundError(
            f"TerminateInstances in {region}: created, but not yet listed by EC2: "
            f"{', '.join(sorted(waiting))}",
            hint="run it again",
        )


def _await_end(ec2: Ec2Client, region: str, ids: Sequence[str]) -> None:
    def left() -> list[str]:
        found: list[str] = []
        for start in range(0, len(ids), BATCH):
            found += [
                xml.text(each, "instanceId")
                for each in listing.find(ec2, region, instance_id=ids[start : start + BATCH])
                if xml.text(xml.part(each, "instanceState"), "name") != "terminated"
            ]
        return sorted(set(found) & set(ids))

    if ec2.timing.until(lambda: None if left() else True, within=ec2.timing.boot) is None:
        still = left()
        if still:
            raise BusyError(f"{', '.join(still)} in {region}: still shutting down", scope="region")


def _delete(ec2: Ec2Client, resource: Resource) -> None:
    kind = BY_WORD[resource.kind]
    busy: list[BusyError] = []

    def ask() -> bool | None:
        fence.refuse_stale()
        try:
            ec2.ask(resource.region, *kind.deletion(resource.id))
        except NotFoundError:
            pass
        except BusyError as error:
            busy.append(error)
            return None
        return True

    if ec2.timing.until(ask, within=RELEASE) is None:
        raise busy[-1]
