"""Maps instances of EC2's answers to our machines."""

from __future__ import annotations

from cloudtrain.model import Node, NodeState
from cloudtrain.providers._aws import answers, faults
from cloudtrain.providers._aws.answers import Tree
from cloudtrain.providers._cloud import labels
from cloudtrain.providers._cloud.account import Machine, Place

STATES: dict[str, NodeState] = {
    "pending": "starting",
    "running": "running",
    "stopping": "stopped",
    "stopped": "stopped",
    "shutting-down": "gone",
    "terminated": "gone",
}
"""Nothing of an instance that is shutting down is billed:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-lifecycle.html"""


def machine(instance: Tree, region: str, *, private: bool) -> Machine | None:
    """Machine of an instance; None if it is not ours."""
    tags = answers.tags(instance)
    ours = labels.read(tags)
    if ours is None:
        return None
    name = tags.get("Name") or ours.node_name(ours.cluster)
    zone = answers.text(answers.part(instance, "placement"), "availabilityZone")
    internal = answers.text(instance, "privateIpAddress")
    named = answers.text(answers.part(instance, "instanceState"), "name")
    state = STATES.get(named, "starting")
    reason = answers.part(instance, "stateReason") if state == "gone" else {}
    return Machine(
        cluster=ours.cluster,
        node=Node(
            name=name,
            role=ours.role,
            index=ours.index,
            state=state,
            address=internal if private else answers.text(instance, "ipAddress"),
            internal=internal,
            placement=zone or region,
            machine=answers.text(instance, "instanceType"),
            spot=answers.text(instance, "instanceLifecycle") == "spot",
            created=answers.unix(answers.text(instance, "launchTime")),
            expires=ours.expires,
            owner=ours.owner,
        ),
        place=Place(region=region, zone=zone),
        id=answers.text(instance, "instanceId"),
        error=faults.of_reason(name, answers.text(reason, "code"), answers.text(reason, "message")),
    )


def instances(reservations: list[Tree]) -> list[Tree]:
    """Instances of DescribeInstances' `reservationSet`, or of RunInstances' one reservation."""
    return [each for one in reservations for each in answers.items(one, "instancesSet")]
