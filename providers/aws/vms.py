"""Launches one VM exactly once, even if the request is repeated or its answer is lost."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from cloudtrain.core import errors
from cloudtrain.core.model import Plan
from cloudtrain.providers.aws import (
    faults,
    images,
    listing,
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
from cloudtrain.providers.base.driver import LaunchRequest, Location, Vm
from cloudtrain.providers.base.words import NOT_REPORTED, last_lines

TOKENS = 32
"""Tokens to try: that of an ended instance creates nothing until EC2 forgets it, in an hour."""

THROTTLED = 2
"""Factor by which the number of tries of a throttled call is multiplied. After the first 5, EC2
lets an account create 2 instances a second, so 128 at once are throttled for a minute:
https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html"""


def launch(ec2: Ec2Client, order: LaunchRequest[ClusterNetwork]) -> Vm:
    """Launch one instance. Safe to repeat.

    EC2 creates one instance per client token, and none for a token whose instance has ended.
    Further tokens are derived from the first, so that two callers get the same instance. A token is
    bound to its parameters, even if the request was refused for lack of capacity
    (https://github.com/ubicloud/ubicloud/issues/5898). A later `up`, whose nodes end at another
    time, therefore uses its own token once no instance of the earlier token can still appear."""
    if order.node.machine is None:  # EC2 would choose a type
        raise errors.CloudConfigError(
            f"{order.node.name} has no machine type", hint=f"set nodes.{order.node.role}.machine"
        )
    ended: set[str] = set()
    first = order.token
    for _ in range(TOKENS):
        token = next(token for token in _tokens(first) if token not in ended)
        try:
            machine = _of_token(ec2, order, token)
        except errors.CloudError as error:
            if error.code != "IdempotentParameterMismatch":
                raise
            machine = _earlier(ec2, order)
            if machine is None:
                first = _with_parameters(order, first)
        if machine is not None:
            return machine
        ended |= {used for used, each in _listed(ec2, order) if each.node.state == "gone"}
    raise errors.BusyError(
        f"EC2 accepted none of {TOKENS} client tokens for a new instance",
        what=order.node.name,
        hint="wait an hour, until EC2 forgets ended instances, or choose another `name`",
    )


def _tokens(first: str) -> Iterator[str]:
    yield first
    for number in itertools.count(1):
        yield hashlib.sha256(f"{first}/{number}".encode()).hexdigest()[:32]


def _with_parameters(order: LaunchRequest[ClusterNetwork], token: str) -> str:
    """Derive a token that no request with other parameters can have used."""
    parameters = json.dumps(requests.run_instances(order, token), sort_keys=True)
    return hashlib.sha256(parameters.encode()).hexdigest()[:32]


def _of_token(ec2: Ec2Client, order: LaunchRequest[ClusterNetwork], token: str) -> Vm | None:
    """The instance created with this token, now or earlier; None if it has ended."""

    unknown: errors.CloudError | None = None

    def ask() -> Vm | None:
        nonlocal unknown
        try:
            return _run(ec2, order, token)
        except errors.NotFoundError as error:
            if error.code == "IdempotentInstanceTerminated":
                raise
            unknown = None
        except errors.PermissionsError as error:
            if error.code != faults.NO_PROFILE:
                raise
            unknown = error
        return None  # the security or placement group, or the profile, is new: not known everywhere

    try:
        machine = ec2.timing.until(ask, within=ec2.timing.listing)
    except errors.CloudError as error:
        if error.code == "IdempotentInstanceTerminated":
            return None
        raise
    if machine is None and unknown is not None:
        raise unknown
    if machine is None:
        raise errors.NotFoundError(
            f"its security group {', '.join(order.network.groups)} is not known to EC2",
            what=order.node.name,
            hint="run it again",
            scope="region",
        )
    return machine if machine.node.state != "gone" else None


def _run(ec2: Ec2Client, order: LaunchRequest[ClusterNetwork], token: str) -> Vm | None:
    doubt = 0

    def ask() -> Vm | None:
        nonlocal doubt
        # An emulator may not know client tokens: after a call without an answer, existing
        # instances are listed first.
        found = _alive(ec2, order) if doubt else None
        if found is not None:
            return found
        region = order.place.region
        try:
            answer = ec2.once(region, "RunInstances", requests.run_instances(order, token))
        except errors.TransientError:
            doubt += 1
            raise
        made = listing.instances([answer])
        private = order.plan.config.network.private
        return listing.to_vm(made[0], region, private=private) if made else None

    usual = ec2.timing.calls
    timing = replace(ec2.timing, calls=replace(usual, tries=THROTTLED * usual.tries))
    return timing.call(ask, unless=lambda error: doubt >= usual.tries)


def _alive(ec2: Ec2Client, order: LaunchRequest[ClusterNetwork]) -> Vm | None:
    return next((m for _, m in _listed(ec2, order) if m.node.state != "gone"), None)


def _earlier(ec2: Ec2Client, order: LaunchRequest[ClusterNetwork]) -> Vm | None:
    """The instance that an earlier `up` requested, if any. If that request's answer may have been
    lost, waits as long as EC2 may take to list it."""
    late = 0.0
    if order.asked is not None:
        late = max(0.0, order.asked + ec2.timing.listing - ec2.timing.clock.now())
    return ec2.timing.until(lambda: _alive(ec2, order), within=late)


def _listed(ec2: Ec2Client, order: LaunchRequest[ClusterNetwork]) -> list[tuple[str, Vm]]:
    """List the VMs of that name with their client tokens, including ended VMs."""
    cluster, name = order.plan.config.name, order.node.name
    task = {labels.ROLE: order.node.role, labels.INDEX: str(order.node.index)}
    tags = {labels.CLUSTER: cluster, **task}
    wanted = {f"tag:{key}": value for key, value in tags.items()}
    region, private = order.place.region, order.plan.config.network.private
    read = [
        (xml.text(each, "clientToken"), listing.to_vm(each, region, private=private))
        for each in listing.find(ec2, region, **wanted)
    ]
    return [
        (token, machine)
        for token, machine in read
        if machine is not None
        and (machine.cluster, machine.node.name) == (cluster, name)
        and machine.place == order.place
    ]


def serial_log(ec2: Ec2Client, machine: Vm) -> str:
    """The latest serial output; instances other than Nitro's only have that of their boot:
    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_GetConsoleOutput.html"""
    asked = {"InstanceId": machine.id}
    try:
        answer = ec2.ask(machine.place.region, "GetConsoleOutput", {**asked, "Latest": True})
    except errors.CloudConfigError:
        answer = ec2.ask(machine.place.region, "GetConsoleOutput", asked)
    text = base64.b64decode(xml.text(answer, "output"))
    return last_lines(text.decode("utf-8", "replace"))


# Sends `up`'s requests to EC2 as dry runs, so that policies are evaluated on real parameters
# A dry run reports on permissions and parameters, not on capacity or quota:
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html (DryRun)


FIRST_BOOT = "#cloud-config\n"
"""Replaces the first-boot data, which contains keys and which no policy can inspect."""


def dry_run(
    ec2: Ec2Client, places: Sequence[Location], plan: Plan, *, has_profile: bool = False
) -> str:
    """Text on all calls that a dry run covers. Raises CloudError for what is refused. What only the
    first place refuses is asked in the next, to which `up` goes on.

    `has_profile`: IAM knows the instance profile of `identity`; EC2 learns of a new one later, and
    `up` waits for that.

    Calls on existing resources are not covered: a policy may allow them only for resources with our
    tag."""
    place, *later = places
    asks = errors.if_told(lambda: dict(_asks(ec2, place, plan)), None)
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
            with suppress(errors.CloudError):
                return dry_run(ec2, later, plan, has_profile=has_profile)
        texts = dict.fromkeys(error.message for error in refused)
        raise refused[0].copy_with(what="", text="; ".join(texts))
    allowed = [what for what, error in answers.items() if _is_consent(error)]
    rest = [what for what, error in answers.items() if what not in allowed and error not in late]
    parts = [f"{', '.join(allowed)} allowed"] if allowed else []
    parts += ["EC2 does not know the new instance profile yet: `up` waits for it"] if late else []
    parts += [f"{', '.join(rest)} {NOT_REPORTED}"] if rest else []
    return "; ".join(parts)


def _is_refusal(error: errors.CloudError) -> bool:
    """True if the error means that `up` would be refused; a dry run always raises one."""
    if isinstance(error, errors.PermissionsError):
        return True
    own = ("DryRunOperation", IGNORED, *faults.UNKNOWN_ACTION)
    return isinstance(error, errors.CloudConfigError) and error.code not in own


def _is_consent(error: errors.CloudError) -> bool:
    return error.code == "DryRunOperation" or isinstance(error, errors.NameTakenError)


def _asks(ec2: Ec2Client, place: Location, plan: Plan) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the calls that `up` would send in `place`, with their parameters. RunInstances has no
    client token, which a dry run might bind, and no keys in the user data."""
    subnet = network.subnet(ec2, place, plan.config.network, nodes=len(plan.nodes))
    chosen = {
        node.name: images.find(ec2, place.region, images.choices(plan.config.image, node))
        for node in plan.nodes
    }
    ground = _ground(ec2, place, plan, subnet, chosen)
    kinds = {
        (n.machine, n.provisioning, n.disk_gb, chosen[n.name].id): n for n in reversed(plan.nodes)
    }
    lifetime = plan.config.limits.max_lifetime
    expires = None if lifetime is None else ec2.timing.clock.now() + lifetime
    for node in reversed(kinds.values()):
        words = " ".join(filter(None, ["RunInstances", node.machine, node.provisioning.shown]))
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
        yield words, requests.run_instances(order, order.token)
    if plan.config.network.firewall is None:
        yield "CreateSecurityGroup", requests.security_group(plan, subnet.vpc)
    if machine_types.uses_placement_group(ec2, place.region, plan):
        name = network.placement_group_name(plan.config.name, place.zone)
        yield "CreatePlacementGroup", requests.placement_group(name, plan)


def _ground(
    ec2: Ec2Client, place: Location, plan: Plan, subnet: Subnet, chosen: Mapping[str, AwsImage]
) -> ClusterNetwork:
    """The network that `create_network` would return, except that groups which do not exist yet are
    left out, as EC2 refuses unknown ones."""
    close = machine_types.stands_close(ec2, place.region, plan)
    # The findings on the network say why not.
    own = errors.if_told(network.SecurityGroup(ec2, place.region, subnet.vpc, plan).find, None)
    listed = errors.if_told(
        lambda: network.placement_groups(ec2, place.region) if close else [], []
    )
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


def _dry_run(
    ec2: Ec2Client, region: str, action: str, parameters: Mapping[str, object]
) -> errors.CloudError:
    """Send a dry run, which EC2 always refuses: the code says whether it was allowed."""
    try:
        ec2.ask(region, action, {**parameters, "DryRun": True})
    except errors.CloudError as error:
        return error
    if action == "CreatePlacementGroup":  # it was created: this endpoint ignores DryRun
        ec2.ask(region, "DeletePlacementGroup", {"GroupName": parameters["GroupName"]})
    return errors.CloudError(f"{action} ignored DryRun", code=IGNORED)


IGNORED = "DryRunIgnored"
