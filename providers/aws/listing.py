"""Maps EC2's instances to our types."""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.core.model import ON_DEMAND, SPOT, Node, NodeState, Provisioning
from cloudtrain.core.partial_list import NotAsked
from cloudtrain.providers.aws import faults, requests, xml
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.xml import Tree
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.answers import ip_address, unix_time
from cloudtrain.providers.base.driver import Location, Vm

STATES: dict[str, NodeState] = {
    "pending": "starting",
    "running": "running",
    "stopping": "stopped",
    "stopped": "stopped",
    "shutting-down": "gone",
    "terminated": "gone",
}
"""EC2's instance states → ours. An instance that is shutting down is not billed:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-lifecycle.html"""


def to_vm(instance: Tree, region: str, *, private: bool) -> Vm | None:
    """Convert an instance to a Vm; None if it is not ours."""
    found = listed_vm(instance, region, private=private)
    return found if isinstance(found, Vm) else None


def listed_vm(
    instance: Tree, region: str, *, private: bool, of: str | None = None
) -> Vm | NotAsked | None:
    """Convert an instance, `of` one cluster alone; NotAsked if its labels cannot be ours. Its name
    is that of its labels: anyone may have changed the tag `Name`."""
    ours = labels.read(xml.tags(instance), of=of)
    id = xml.text(instance, "instanceId")
    if isinstance(ours, labels.NotOurs):
        return None if _state(instance) == "gone" else ours.on(f"instance {id} in {region}")
    if ours is None:
        return None
    name = ours.node_name(ours.cluster)
    zone = xml.text(xml.part(instance, "placement"), "availabilityZone")
    internal = xml.text(instance, "privateIpAddress")
    state = _state(instance)
    reason = xml.part(instance, "stateReason") if state == "gone" else {}
    profile = xml.text(xml.part(instance, "iamInstanceProfile"), "arn")
    return Vm(
        cluster=ours.cluster,
        node=Node(
            name=name,
            state=state,
            address=ip_address(internal if private else xml.text(instance, "ipAddress")),
            internal=ip_address(internal),
            placement=zone or region,
            machine=xml.text(instance, "instanceType"),
            provisioning=_provisioning(instance),
            identities=(profile,) if profile else (),
            created=unix_time(xml.text(instance, "launchTime")),
            expires=ours.expires,
            **ours.node_fields,
        ),
        place=Location(region=region, zone=zone),
        id=id,
        error=faults.of_reason(name, xml.text(reason, "code"), xml.text(reason, "message")),
    )


def _state(instance: Tree) -> NodeState:
    return STATES.get(xml.text(xml.part(instance, "instanceState"), "name"), "starting")


def _provisioning(instance: Tree) -> Provisioning:
    """Provisioning by what it targets: on demand, it may be in an open reservation by itself."""
    lifecycle = xml.text(instance, "instanceLifecycle")
    if lifecycle == "spot":
        return SPOT
    wish = xml.part(instance, "capacityReservationSpecification")
    target = xml.part(wish, "capacityReservationTarget")
    name = xml.text(target, "capacityReservationId")
    name = name or xml.text(target, "capacityReservationResourceGroupArn")
    if lifecycle == "capacity-block":
        name = name or xml.text(instance, "capacityReservationId")
        return Provisioning(market="capacity-block", name=name)
    return Provisioning(market="reservation", name=name) if name else ON_DEMAND


def find(ec2: Ec2Client, region: str, **wanted: str | Sequence[str]) -> list[Tree]:
    """The instances that match these filters (`requests.filters`), from all pages."""
    asked = requests.filters(**wanted)
    return instances(ec2.pages(region, "DescribeInstances", "reservationSet", asked))


def instances(reservations: list[Tree]) -> list[Tree]:
    """The instances of DescribeInstances' `reservationSet`, or of RunInstances' one reservation."""
    return [each for one in reservations for each in xml.items(one, "instancesSet")]
