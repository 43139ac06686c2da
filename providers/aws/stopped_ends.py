"""Moves the end of a stopped instance, whose own timer cannot be told."""

from __future__ import annotations

import base64
import gzip
from contextlib import suppress

from cloudtrain.core.errors import CloudConfigError, CloudError, TransientError
from cloudtrain.providers.aws import requests, xml
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.expiry import Schedules, name_of
from cloudtrain.providers.base import boot, labels
from cloudtrain.providers.base.driver import Vm


def move(ec2: Ec2Client, schedules: Schedules, machine: Vm, expires: float) -> None:
    """Move the end in AWS's schedule, the user data and the tag, each confirmed. On failure, what
    was changed is put back; the instance must not be started then.

    The timer reads its end from the user data, which EC2 lets change while the instance is stopped
    and cloud-init reads again at each boot:
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/user-data.html (documented)
    """
    old = machine.node.expires
    if old is not None and abs(old - expires) <= 1.0:
        return
    region = machine.place.region
    schedules.refuse_hidden(region, machine.id)
    made = schedules.arm(region, machine.id, expires)
    before = ""
    try:
        before = _user_data(ec2, machine)
        now = int(ec2.timing.clock.now())
        _set_user_data(ec2, machine, _moved(machine, before, expires, f"{now}-{int(expires)}"))
        tag(ec2, machine, expires)
        schedules.drop_others(region, machine.node.name, machine.id, made)
    except CloudError:
        with suppress(CloudError):
            tag(ec2, machine, old)
            if before:
                _set_user_data(ec2, machine, before)
        with suppress(CloudError):
            kept = None if old is None else name_of(machine.id, old)
            if made is not None and made != kept:
                schedules.drop(region, [made])
        raise


def tag(ec2: Ec2Client, machine: Vm, expires: float | None) -> None:
    """Write the end into the tag that commands read."""
    tag, verb = {"Key": labels.EXPIRES}, "DeleteTags"
    if expires is not None:
        verb, tag = "CreateTags", {**tag, "Value": str(int(expires))}
    ec2.ask(machine.place.region, verb, {"ResourceId": [machine.id], "Tag": [tag]})


def _moved(machine: Vm, user_data: str, expires: float, moved: str) -> str:
    try:
        return boot.with_end(user_data, expires, moved=moved)
    except ValueError as error:
        raise CloudConfigError(
            f"{machine.node.name} ({machine.id}): its end cannot be moved while it is stopped: its "
            f"user data is not cloudtrain's ({error})",
            hint="start it in the console to save what it holds, or delete it with `cloudtrain "
            "down --discard`",
        ) from error


def _user_data(ec2: Ec2Client, machine: Vm) -> str:
    asked = {"InstanceId": machine.id, "Attribute": "userData"}
    answer = ec2.ask(machine.place.region, "DescribeInstanceAttribute", asked)
    data = base64.b64decode(xml.text(xml.part(answer, "userData"), "value"))
    return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8", "replace")


def _set_user_data(ec2: Ec2Client, machine: Vm, text: str) -> None:
    """Change the user data and read it back."""
    asked = {"InstanceId": machine.id, "UserData": {"Value": requests.user_data(text)}}
    ec2.ask(machine.place.region, "ModifyInstanceAttribute", asked)
    if _user_data(ec2, machine) != text:
        text = "EC2 accepted its user data but reports another"
        raise TransientError(text, what=machine.node.name)
