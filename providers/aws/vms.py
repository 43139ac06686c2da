"""Launches one VM exactly once, however often it is requested and whatever happens to the
answer.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace

from cloudtrain.errors import BusyError, CloudConfigError, CloudError, NotFoundError, TransientError
from cloudtrain.providers.aws import listing, requests, xml
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.types import ClusterNetwork
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.driver import LaunchRequest, Vm
from cloudtrain.providers.base.serial_log import last_lines

TOKENS = 32
"""How many are tried whose instance has ended and is told of no more: EC2 does so for an hour."""

THROTTLED = 2
"""Times the usual tries, of a throttled call alone. EC2 lets one account make 2 instances a second
after the first 5, so 128 at once are throttled for a minute:
https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html"""


def launch(ec2: Ec2Client, order: LaunchRequest[ClusterNetwork]) -> Vm:
    """Launch one instance. Safe to repeat.

    EC2 creates one instance per client token, and none for a token whose instance has ended: the
    next token is derived from the first, so that two callers get the same instance. A token is
    bound to its parameters, even if the request was refused for want of capacity
    (https://github.com/ubicloud/ubicloud/issues/5898): a later `up`, whose nodes end at another
    time, uses a token of its own once no instance of the earlier one can appear.
    """
    if order.node.machine is None:  # EC2 would take a type of its own choice
        raise CloudConfigError(
            f"{order.node.name} has no machine type", hint=f"see nodes.{order.node.role}.machine"
        )
    ended: set[str] = set()
    first = order.token
    for _ in range(TOKENS):
        token = next(token for token in _tokens(first) if token not in ended)
        try:
            machine = _of_token(ec2, order, token)
        except CloudError as error:
            if error.code != "IdempotentParameterMismatch":
                raise
            machine = _earlier(ec2, order)
            if machine is None:
                first = _with_parameters(order, first)
        if machine is not None:
            return machine
        ended |= {used for used, each in _listed(ec2, order) if each.node.state == "gone"}
    raise BusyError(
        f"{order.node.name}: EC2 took none of {TOKENS} client tokens for a new instance",
        hint="wait an hour, after which EC2 forgets ended instances, or take another `name`",
    )


def _tokens(first: str) -> Iterator[str]:
    yield first
    for number in itertools.count(1):
        yield hashlib.sha256(f"{first}/{number}".encode()).hexdigest()[:32]


def _with_parameters(order: LaunchRequest[ClusterNetwork], token: str) -> str:
    """Derive a token that no request with other parameters can have bound."""
    parameters = json.dumps(requests.run_instances(order, token), sort_keys=True)
    return hashlib.sha256(parameters.encode()).hexdigest()[:32]


def _of_token(ec2: Ec2Client, order: LaunchRequest[ClusterNetwork], token: str) -> Vm | None:
    """The instance that this token has created, now or earlier; None if it has ended."""

    def ask() -> Vm | None:
        try:
            return _run(ec2, order, token)
        except NotFoundError as error:
            if error.code == "IdempotentInstanceTerminated":
                raise
            return None  # the security or placement group is just made, and not known everywhere

    try:
        machine = ec2.timing.until(ask, within=ec2.timing.listing)
    except CloudError as error:
        if error.code == "IdempotentInstanceTerminated":
            return None
        raise
    if machine is None:
        raise NotFoundError(
            f"{order.node.name}: its security group {order.ground.group} is not known to EC2",
            hint="run it again",
            scope="region",
        )
    return machine if machine.node.state != "gone" else None


def _run(ec2: Ec2Client, order: LaunchRequest[ClusterNetwork], token: str) -> Vm | None:
    doubt = 0

    def ask() -> Vm | None:
        nonlocal doubt
        # What stands in for EC2 may not know client tokens: after a call without an answer, it
        # is asked first what there is.
        found = _alive(ec2, order) if doubt else None
        if found is not None:
            return found
        region = order.place.region
        try:
            answer = ec2.once(region, "RunInstances", requests.run_instances(order, token))
        except TransientError:
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
    """The instance that an earlier `up` requested.

    If that request may have gone unanswered, the instance is waited for as long as EC2 may list it
    late.
    """
    late = 0.0
    if order.asked is not None:
        late = max(0.0, order.asked + ec2.timing.listing - ec2.timing.clock.now())
    return ec2.timing.until(lambda: _alive(ec2, order), within=late)


def _listed(ec2: Ec2Client, order: LaunchRequest[ClusterNetwork]) -> list[tuple[str, Vm]]:
    """VMs of that name with their client tokens, ended ones included."""
    cluster, name = order.plan.config.name, order.node.name
    wanted = requests.filters(**{f"tag:{labels.CLUSTER}": cluster, "tag:Name": name})
    region, private = order.place.region, order.plan.config.network.private
    found = ec2.pages(region, "DescribeInstances", "reservationSet", wanted)
    read = [
        (xml.text(each, "clientToken"), listing.to_vm(each, region, private=private))
        for each in listing.instances(found)
    ]
    return [
        (token, machine)
        for token, machine in read
        if machine is not None
        and (machine.cluster, machine.node.name) == (cluster, name)
        and machine.place == order.place
    ]


def serial_log(ec2: Ec2Client, machine: Vm) -> str:
    """Latest serial output, which only Nitro instances have; for others that of the boot:
    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_GetConsoleOutput.html
    """
    asked = {"InstanceId": machine.id}
    try:
        answer = ec2.ask(machine.place.region, "GetConsoleOutput", {**asked, "Latest": True})
    except CloudConfigError:
        answer = ec2.ask(machine.place.region, "GetConsoleOutput", asked)
    text = base64.b64decode(xml.text(answer, "output"))
    return last_lines(text.decode("utf-8", "replace"))
