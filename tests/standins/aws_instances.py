"""Instances that take time to come and go, and that a token makes once."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from moto.ec2.models.instances import InstanceState, StateReason
from moto.ec2.utils import parse_user_data
from werkzeug.wrappers import Request

from tests.standins import aws_reservations
from tests.standins.aws_addresses import asked_address
from tests.standins.aws_checks import checked
from tests.standins.aws_query import Refused, params_of, real
from tests.standins.aws_world import World, name_of, tags_for

STATES = {
    "pending": 0,
    "running": 16,
    "shutting-down": 32,
    "terminated": 48,
    "stopping": 64,
    "stopped": 80,
}
FORGOTTEN = 3600.0
"""Seconds for which a terminated instance is still told of."""


class Instances(World):
    def __init__(self) -> None:
        super().__init__()
        self._tokens: dict[tuple[str, str], tuple[str, Any]] = {}
        self._addresses = itertools.count(1)
        self._at_work: dict[str, threading.Thread] = {}

    def interrupt(self, name: str) -> None:
        """Takes a spot instance away, as EC2 does after its notice of two minutes."""
        self._end_from_outside(name, "Server.SpotInstanceTermination", "Spot instance termination")

    def shut_down(self, name: str) -> None:
        """What happens when the machine itself runs `shutdown`."""
        self._end_from_outside(
            name, "Client.InstanceInitiatedShutdown", "Instance initiated shutdown"
        )

    def stop(self, name: str) -> None:
        """Somebody stops it in the console: its disk and its private address are kept."""
        with self.lock:
            self.go_on()
            self._stop(self.named(name), "Client.UserInitiatedShutdown", "User initiated shutdown")

    def tag(self, name: str, key: str, value: str) -> None:
        """Somebody tags it in the console."""
        with self.lock:
            self.named(name).add_tags({key: value})

    def _end_from_outside(self, name: str, code: str, text: str) -> None:
        with self.lock:
            self.go_on()
            instance = self.named(name)
            stops = code.startswith("Client") and (
                instance.instance_initiated_shutdown_behavior == "stop"
            )
            (self._stop if stops else self._terminate)(instance, code, text)

    def _run_instances(self, region: str, given: dict[str, Any], request: Request) -> Any:
        wish = {key: value for key, value in given.items() if key != "ClientToken"}
        digest = hashlib.sha256(json.dumps(wish, sort_keys=True).encode()).hexdigest()
        token = given.get("ClientToken")
        if token and (region, token) in self._tokens:
            before, reservation = self._tokens[region, token]
            if before != digest:
                raise real("client-token-of-another-request")
            if reservation is not None:
                return reservation
        if token and not given.get("DryRun"):
            # Bound to its parameters also where the request is then refused for want of capacity:
            # https://github.com/ubicloud/ubicloud/issues/5898
            self._tokens[region, token] = (digest, None)
        count = checked(self, region, given)
        params = {**params_of(request), "MinCount": str(count), "MaxCount": str(count)}
        # moto keeps interfaces by device index alone: those of other cards are checked, not kept
        params = {k: v for k, v in params.items() if not re.match(r"NetworkInterface\.(?!1\.)", k)}
        if self.nodes is not None:
            params.pop("NetworkInterface.1.PrivateIpAddress", None)
        answer = self.by_moto(request, params)
        found = re.search(r"<reservationId>([^<]+)", answer.get_data(as_text=True))
        if not found:
            return answer
        reservation = self.backend(region).reservations[found[1]]
        for instance in reservation.instances:
            self._begin(instance, given)
        if token:
            self._tokens[region, token] = (digest, reservation)
        return reservation

    def _begin(self, instance: Any, given: dict[str, Any]) -> None:
        """What moto gave at once is pending first."""
        self.born[instance.id] = self.now()
        instance.launch_time = _moment(self.now())
        instance.client_token = given.get("ClientToken", "")
        instance.placement.group_name = given.get("Placement", {}).get("GroupName", "")
        instance.platform = None
        self._reserve(instance, given)
        image = self.backend(instance.region_name).amis[instance.image_id]
        instance.root_device_name = image.root_device_name
        asked = {nic.get("DeviceIndex"): nic for nic in given.get("NetworkInterfaces", [])}
        tags = tags_for(given, "network-interface")
        for index, nic in instance.nics.items():
            nic.delete_on_termination = asked.get(index, {}).get("DeleteOnTermination", True)
            nic.add_tags(tags)
            nic.public_ip, nic.waiting_ip = None, nic.public_ip
        if self.nodes is not None:
            _give(instance.nics[0], asked_address(given) or self.nodes.address())
        root = {
            mapping["DeviceName"]: mapping.get("Ebs", {}).get("DeleteOnTermination")
            for mapping in given.get("BlockDeviceMappings", [])
        }.get(image.root_device_name)
        for device, mapping in instance.block_device_mapping.items():
            if device == image.root_device_name and root is None:
                mapping.delete_on_termination = True
        _state(instance, "pending")
        if any(
            mapping.get("Ebs", {}).get("KmsKeyId") in self.keys_denied
            for mapping in given.get("BlockDeviceMappings", [])
            if mapping.get("Ebs", {}).get("KmsKeyId")
        ):
            # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/troubleshooting-launch.html
            reason = ("Client.InternalError", "Client error on launch")
            self.after(self.delay, lambda: self._terminate(instance, *reason))
            return
        self.after(self.delay, lambda: self._run(instance))

    def _reserve(self, instance: Any, given: dict[str, Any]) -> None:
        market = given.get("InstanceMarketOptions", {}).get("MarketType")
        instance.lifecycle = market
        region, zone = instance.region_name, instance.availability_zone
        found = aws_reservations.place(self, region, given, instance.instance_type, zone)
        instance.capacity_reservation_id = found or None
        wish = given.get("CapacityReservationSpecification") or {
            "CapacityReservationPreference": "open"
        }
        instance.capacity_reservation_specification = wish
        ends = self.reservations.get(found, {}).get("ends")
        if market == "capacity-block" and ends is not None:
            code, words = "Server.CapacityBlockEnded", "the Capacity Block ends (this stand-in)"
            left = ends - aws_reservations.CLEARED - self.now()
            self.after(left, lambda: self._terminate(instance, code, words))

    def _run(self, instance: Any) -> None:
        if instance.state != "pending":
            return
        _state(instance, "running")
        nic = instance.nics[0]
        if self.nodes is not None:
            address = nic.public_ip = nic.private_ip_address
            data = instance.user_data
            text = data.decode() if data is not None else ""
            name = name_of(instance)
            self._elsewhere(name, lambda: self.nodes.start(name, text, address))
        elif nic.waiting_ip:
            nic.public_ip = f"203.0.113.{next(self._addresses) % 254 + 1}"

    def _get_console_output(self, region: str, given: dict[str, Any], request: Request) -> Any:
        (instance,) = self._asked(region, {"InstanceIds": [given["InstanceId"]]})
        if given.get("Latest") and instance.instance_type.startswith(("p3.", "p2.", "g3")):
            raise real("no-latest-console")
        name = name_of(instance)
        text = self.nodes.boot_log(name) if self.nodes is not None else self.serial_logs.get(name)
        output = base64.b64encode((text or "").encode()).decode()
        return {"InstanceId": instance.id, "Output": output}

    def _describe_instance_attribute(
        self, region: str, given: dict[str, Any], request: Request
    ) -> Any:
        if given.get("Attribute") != "userData":
            return self.by_moto(request)
        (instance,) = self._asked(region, {"InstanceIds": [given["InstanceId"]]})
        text = str(instance.user_data or "")
        return {"InstanceId": instance.id, "UserData": {"Value": text}}

    def _modify_instance_attribute(
        self, region: str, given: dict[str, Any], request: Request
    ) -> Any:
        """ "To change the user data … you must first stop the instance":
        https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/user-data.html"""
        if "UserData" not in given:
            return self.by_moto(request)
        (instance,) = self._asked(region, {"InstanceIds": [given["InstanceId"]]})
        if instance.state != "stopped":
            raise real("instance-not-stopped", instance=instance.id)
        value = given["UserData"]["Value"]
        instance.user_data = parse_user_data(value)
        return {}

    def _terminate_instances(self, region: str, given: dict[str, Any], request: Request) -> Any:
        found = self._asked(region, given)
        before = {one.id: (one.state, one.state_code) for one in found}
        for instance in found:
            if instance.disable_api_termination:
                raise real("termination-protected", instance=instance.id)
        for instance in found:
            self._terminate(instance, "Client.UserInitiatedShutdown", "User initiated shutdown")
        return {"TerminatingInstances": [_change(one, before[one.id]) for one in found]}

    def _terminate(self, instance: Any, code: str, text: str) -> None:
        if instance.state in ("shutting-down", "terminated"):
            return

        def gone() -> None:
            instance.terminate()
            instance.state_reason = StateReason(f"{code}: {text}", code)
            self.after(FORGOTTEN, lambda: self._forget(instance))

        if self.nodes is not None:
            name = name_of(instance)
            self._elsewhere(name, lambda: self.nodes.stop(name))
        _state(instance, "shutting-down")
        instance.state_reason = StateReason(f"{code}: {text}", code)
        self.after(self.delay, gone)

    def _forget(self, instance: Any) -> None:
        reservations = self.backend(instance.region_name).reservations
        for key, reservation in list(reservations.items()):
            if instance in reservation.instances:
                del reservations[key]

    def _stop_instances(self, region: str, given: dict[str, Any], request: Request) -> Any:
        found = self._asked(region, given)
        before = {one.id: (one.state, one.state_code) for one in found}
        for instance in found:
            if instance.state != "running" or instance.lifecycle == "spot":
                raise _wrong_state(instance, "stopped")
            self._stop(instance, "Client.UserInitiatedShutdown", "User initiated shutdown")
        return {"StoppingInstances": [_change(one, before[one.id]) for one in found]}

    def _stop(self, instance: Any, code: str, text: str) -> None:
        def stopped() -> None:
            if instance.state == "stopping":
                instance.stop()
                instance.state_reason = StateReason(f"{code}: {text}", code)

        if self.nodes is not None:
            name = name_of(instance)
            self._elsewhere(name, lambda: self.nodes.halt(name))
        _state(instance, "stopping")
        instance.nics[0].public_ip = None
        instance.state_reason = StateReason(f"{code}: {text}", code)
        self.after(self.delay, stopped)

    def _start_instances(self, region: str, given: dict[str, Any], request: Request) -> Any:
        found = self._asked(region, given)
        before = {one.id: (one.state, one.state_code) for one in found}
        for instance in found:
            if instance.state != "stopped":
                raise _wrong_state(instance, "started")
            _state(instance, "pending")
            self.after(self.delay, lambda one=instance: self._run(one))  # type: ignore[misc]
        return {"StartingInstances": [_change(one, before[one.id]) for one in found]}

    def _asked(self, region: str, given: dict[str, Any]) -> list[Any]:
        """Real EC2 does nothing at all where one of them is unknown."""
        with self.late_ones_hidden(region, self.lag):
            known = {one.id: one for one in self.backend(region).all_instances()}
        missing = [one for one in given["InstanceIds"] if one not in known]
        if missing:
            raise real(
                "instance-absent",
                s="s" if missing[1:] else "",
                missing=", ".join(missing),
                es="" if missing[1:] else "es",
            )
        return [known[one] for one in given["InstanceIds"]]

    def _elsewhere(self, name: str, work: Callable[[], None]) -> None:
        """Outside the lock; what is done to one node is done in its order."""
        before = self._at_work.get(name)

        def go() -> None:
            if before is not None:
                before.join()
            work()

        self._at_work[name] = threading.Thread(target=go, daemon=True)
        self._at_work[name].start()


def _give(nic: Any, address: str) -> None:
    """The instance has it until it is terminated, also while it is stopped."""
    nic.private_ip_address = address
    nic.private_ip_addresses = [{"Primary": True, "PrivateIpAddress": address}]


def _state(instance: Any, name: str) -> None:
    instance._state = InstanceState(name, STATES[name])


def _change(instance: Any, before: tuple[str, int]) -> dict[str, Any]:
    return {
        "InstanceId": instance.id,
        "PreviousState": {"Name": before[0], "Code": before[1]},
        "CurrentState": {"Name": instance.state, "Code": instance.state_code},
    }


def _wrong_state(instance: Any, what: str) -> Refused:
    return real("instance-in-wrong-state", instance=instance.id, what=what)


def _moment(seconds: float) -> datetime:
    """moto's are in UTC, and do not say so."""
    return datetime.fromtimestamp(seconds, timezone.utc).replace(tzinfo=None)
