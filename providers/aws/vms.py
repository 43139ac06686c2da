"""Launches one VM exactly once, even if the request is repeated or its answer is lost."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace

from cloudtrain.core.errors import (
    BusyError,
    CloudConfigError,
    CloudError,
    NotFoundError,
    PermissionsError,
    TransientError,
)
from cloudtrain.providers.aws import faults, listing, requests, xml
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.types import ClusterNetwork
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.driver import LaunchRequest, Vm
from cloudtrain.providers.base.words import last_lines

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
    time, therefore uses its own token once no instance of the earlier token can still appear.
    """
    if order.node.machine is None:  # EC2 would choose a type
        raise CloudConfigError(
            f"{order.node.name} has no machine type", hint=f"set nodes.{order.node.role}.machine"
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

    unknown: CloudError | None = None

    def ask() -> Vm | None:
        nonlocal unknown
        try:
            return _run(ec2, order, token)
        except NotFoundError as error:
            if error.code == "IdempotentInstanceTerminated":
                raise
            unknown = None
        except PermissionsError as error:
            if error.code != faults.NO_PROFILE:
                raise
            unknown = error
        return None  # the security or placement group, or the profile, is new: not known everywhere

    try:
        machine = ec2.timing.until(ask, within=ec2.timing.listing)
    except CloudError as error:
        if error.code == "IdempotentInstanceTerminated":
            return None
        raise
    if machine is None and unknown is not None:
        raise unknown
    if machine is None:
        raise NotFoundError(
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
    wanted = requests.filters(**{f"tag:{key}": value for key, value in tags.items()})
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
    """The latest serial output; instances other than Nitro's only have that of their boot:
    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_GetConsoleOutput.html"""
    asked = {"InstanceId": machine.id}
    try:
        answer = ec2.ask(machine.place.region, "GetConsoleOutput", {**asked, "Latest": True})
    except CloudConfigError:
        answer = ec2.ask(machine.place.region, "GetConsoleOutput", asked)
    text = base64.b64decode(xml.text(answer, "output"))
    return last_lines(text.decode("utf-8", "replace"))
