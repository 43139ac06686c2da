"""Send `up`'s requests to EC2 as dry runs, so that policies are evaluated on real parameters.

A dry run reports on permissions and parameters, not on capacity or quota:
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html (DryRun)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from cloudtrain.core.errors import (
    CloudConfigError,
    CloudError,
    NameTakenError,
    PermissionsError,
    if_told,
)
from cloudtrain.core.model import NodePlan, Plan
from cloudtrain.providers.aws import (
    faults,
    images,
    machine_types,
    network,
    requests,
    reservations,
    xml,
)
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.types import AwsImage, ClusterNetwork, Subnet
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.create import is_of_place
from cloudtrain.providers.base.driver import LaunchRequest, Location
from cloudtrain.providers.base.words import NOT_REPORTED

FIRST_BOOT = "#cloud-config\n"
"""Replaces the first-boot data, which contains keys and which no policy can inspect."""


def permissions(
    ec2: Ec2Client, places: Sequence[Location], plan: Plan, *, has_profile: bool = False
) -> str:
    """Text on all calls that a dry run covers. Raises CloudError for what is refused. What only the
    first place refuses is asked in the next, to which `up` goes on.

    `has_profile`: IAM knows the instance profile of `identity`; EC2 learns of a new one later, and
    `up` waits for that.

    Calls on existing resources are not covered: a policy may allow them only for resources with our
    tag.
    """
    place, *later = places
    asks = if_told(lambda: dict(_asks(ec2, place, plan)), None)
    if asks is None:
        return "not checked: see image and network"
    answers = {
        what: _dry_run(ec2, place.region, what.split()[0], parameters)
        for what, parameters in asks.items()
    }
    late = [e for e in answers.values() if has_profile and e.code == faults.NO_PROFILE]
    refused = [e for e in answers.values() if _is_refusal(e) and e not in late]
    if refused:
        if later and all(map(is_of_place, refused)):
            with suppress(CloudError):
                return permissions(ec2, later, plan, has_profile=has_profile)
        texts = dict.fromkeys(error.message for error in refused)
        raise refused[0].copy_with(what="", text="; ".join(texts))
    allowed = [what for what, error in answers.items() if _is_consent(error)]
    rest = [what for what, error in answers.items() if what not in allowed and error not in late]
    parts = [f"{', '.join(allowed)} allowed"] if allowed else []
    parts += ["EC2 does not know the new instance profile yet: `up` waits for it"] if late else []
    parts += [f"{', '.join(rest)} {NOT_REPORTED}"] if rest else []
    return "; ".join(parts)


def _is_refusal(error: CloudError) -> bool:
    """True if the error means that `up` would be refused; a dry run always raises one."""
    if isinstance(error, PermissionsError):
        return True
    own = ("DryRunOperation", IGNORED, *faults.UNKNOWN_ACTION)
    return isinstance(error, CloudConfigError) and error.code not in own


def _is_consent(error: CloudError) -> bool:
    return error.code == "DryRunOperation" or isinstance(error, NameTakenError)


def _asks(ec2: Ec2Client, place: Location, plan: Plan) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the calls that `up` would send in `place`, with their parameters."""
    subnet = network.subnet(ec2, place, plan.config.network, nodes=len(plan.nodes))
    chosen = {
        node.name: images.find(ec2, place.region, images.choices(plan.config.image, node))
        for node in plan.nodes
    }
    ground = _ground(ec2, place, plan, subnet, chosen)
    kinds = {
        (n.machine, n.provisioning, n.disk_gb, chosen[n.name].id): n for n in reversed(plan.nodes)
    }
    for node in reversed(kinds.values()):
        words = " ".join(filter(None, ["RunInstances", node.machine, node.provisioning.shown]))
        yield words, _run_instances(plan, node, place, ground, ec2.timing.clock.now())
    tags = labels.on_resources(plan)
    if plan.config.network.firewall is None:
        yield (
            "CreateSecurityGroup",
            {
                "GroupName": labels.group_name(plan.config.name),
                "GroupDescription": f"cloudtrain cluster {plan.config.name}",
                "VpcId": subnet.vpc,
                **requests.tagged(["security-group"], tags),
            },
        )
    if machine_types.uses_placement_group(ec2, place.region, plan):
        yield (
            "CreatePlacementGroup",
            {
                "GroupName": network.placement_group_name(plan.config.name, place.zone),
                "Strategy": "cluster",
                **requests.tagged(["placement-group"], tags),
            },
        )


def _ground(
    ec2: Ec2Client, place: Location, plan: Plan, subnet: Subnet, chosen: Mapping[str, AwsImage]
) -> ClusterNetwork:
    """The network that `create_network` would return, except that groups which do not exist yet are
    left out, as EC2 refuses unknown ones.
    """
    close = machine_types.stands_close(ec2, place.region, plan)
    # The findings on the network say why not.
    own = if_told(network.SecurityGroup(ec2, place.region, subnet.vpc, plan).find, None)
    listed = if_told(lambda: network.placement_groups(ec2, place.region) if close else [], [])
    name = network.placement_group_name(plan.config.name, place.zone)
    placement = name if name in {xml.text(it, "groupName") for it in listed or ()} else ""
    reserved = reservations.placement_group(ec2, place, plan)
    return ClusterNetwork(
        subnet=subnet,
        groups=plan.config.network.firewall or tuple(filter(None, [own])),
        placement_group="" if reserved or reservations.has_blocks(plan) else placement,
        reserved_group=reserved,
        images=chosen,
        efa_cards=machine_types.efa_cards(ec2, place.region, plan) if close else (),
    )


def _run_instances(
    plan: Plan, node: NodePlan, place: Location, ground: ClusterNetwork, now: float
) -> Mapping[str, Any]:
    """The parameters of RunInstances as `up` sends it, without the client token, which a dry run
    might bind, and the keys in the user data.
    """
    lifetime = plan.config.limits.max_lifetime
    expires = None if lifetime is None else now + lifetime
    order = LaunchRequest(
        plan=plan,
        node=node,
        place=place,
        network=ground,
        user_data=FIRST_BOOT,
        token="",
        expires=expires,
        labels=labels.on_node(plan, node, expires),
    )
    return requests.run_instances(order, order.token)


def _dry_run(
    ec2: Ec2Client, region: str, action: str, parameters: Mapping[str, object]
) -> CloudError:
    """Send a dry run, which EC2 always refuses: the code says whether it was allowed."""
    try:
        ec2.ask(region, action, {**parameters, "DryRun": True})
    except CloudError as error:
        return error
    if action == "CreatePlacementGroup":  # it was created: this endpoint ignores DryRun
        ec2.ask(region, "DeletePlacementGroup", {"GroupName": parameters["GroupName"]})
    return CloudError(f"{action} ignored DryRun", code=IGNORED)


IGNORED = "DryRunIgnored"
