"""What Compute Engine demands of a VM before it makes it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.standins import gcp_errors as errors
from tests.standins.gcp_addresses import check_address
from tests.standins.gcp_catalog import (
    ACCELERATORS,
    DISK_TYPES,
    IMAGES,
    MACHINES,
    PLACED_TOGETHER,
    Image,
    MachineType,
    region_of,
)
from tests.standins.gcp_errors import ApiError
from tests.standins.gcp_reservations import reserved
from tests.standins.gcp_world import Body, World, check_labels, check_name

SHORTEST, LONGEST = 30, 120 * 86400
"""Seconds of `maxRunDuration`: https://cloud.google.com/compute/docs/instances/limit-vm-runtime"""
NOT_ACTED_OUT = (
    "advancedMachineFeatures",
    "confidentialInstanceConfig",
    "instanceEncryptionKey",
    "sourceMachineImage",
    "workloadIdentityConfig",
)


@dataclass(frozen=True, kw_only=True)
class Wish:
    """An instance whose every part was found and fits."""

    machine: MachineType
    accelerators: list[Body]
    scheduling: Body
    disks: list[BootDisk]
    interfaces: list[Body]
    policies: list[str]
    queue: int
    """Seconds that it may wait for capacity."""
    reservation: Body | None
    """The one that it is in."""


@dataclass(frozen=True, kw_only=True)
class BootDisk:
    name: str
    type: str
    gb: int
    image: Image
    labels: dict[str, str]
    given: Body


def _check_constraint(world: World, body: Body) -> None:
    """A custom constraint on labels. Its reason is that of every constraint; the words are by
    general knowledge: https://cloud.google.com/resource-manager/docs/organization-policy/overview
    """
    disks = [disk.get("initializeParams", {}) for disk in body.get("disks", ())]
    for labels in (each.get("labels", {}) for each in (body, *disks)):
        lacking = set(world.required_labels) - set(labels)
        if lacking:
            name = f"customConstraints/custom.require{min(lacking).capitalize()}"
            text = f'Operation denied by custom org policies: ["{name}": "a label is required"].'
            raise ApiError(412, "conditionNotMet", text)


def checked(world: World, zone: str, body: Body) -> Wish:
    for name in NOT_ACTED_OUT:
        if name in body:
            raise ApiError(501, "notImplemented", f"This stand-in does not act out '{name}'")
    check_labels("resource.labels", body.get("labels", {}))
    _check_constraint(world, body)
    for number, tag in enumerate(body.get("tags", {}).get("items", ())):
        check_name(f"resource.tags.items[{number}]", tag)
    check_metadata(body.get("metadata", {}))
    machine = _machine(world, zone, body)
    accelerators = _accelerators(world, zone, body, machine)
    scheduling = checked_scheduling(body.get("scheduling", {}), bool(accelerators))
    if scheduling["provisioningModel"] not in machine.models:
        names = " or ".join(f"{model.capitalize()} VMs" for model in machine.models)
        why = f"{machine.name} machine types must be created by using {names}".replace("_", "-")
        raise ApiError(400, "invalid", why)
    reservation = reserved(world, zone, body, machine.name, accelerators)
    disks = _disks(world, zone, body, machine)
    return Wish(
        machine=machine,
        accelerators=accelerators,
        scheduling=scheduling,
        disks=disks,
        interfaces=_interfaces(world, zone, body, disks[0].image),
        policies=_policies(world, zone, body, machine),
        queue=queue_seconds(body),
        reservation=reservation,
    )


def check_metadata(metadata: Body) -> None:
    """https://cloud.google.com/compute/docs/metadata/setting-custom-metadata#limitations"""
    seen: set[str] = set()
    total = 0
    for number, item in enumerate(metadata.get("items", ())):
        key, value = item.get("key", ""), item.get("value", "")
        at = f"resource.metadata.items[{number}]"
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", key):
            why = "Must be a match of regex '[a-zA-Z0-9-_]{1,128}'"
            raise errors.invalid(f"{at}.key", key, why)
        if key in seen:
            raise errors.invalid(at, key, "Metadata has duplicate keys.")
        if len(value.encode()) > 262144:
            why = "Metadata value is too large: at most 262144 bytes."
            raise errors.invalid(f"{at}.value", "", why)
        seen.add(key)
        total += len(key) + len(value.encode())
    if total > 524288:
        raise errors.invalid("resource.metadata", "", "At most 524288 bytes in all.")


def _machine(world: World, zone: str, body: Body) -> MachineType:
    at, text = "resource.machineType", body.get("machineType")
    if not text:
        raise errors.invalid(at, "", "The machine type must be specified.")
    parts = world.path_of(text, at, "machineTypes").split("/")
    name, where = parts[-1], parts[-3]
    if where != zone:
        raise errors.invalid(at, text, f"The machine type is not of zone '{zone}'.")
    if name not in MACHINES or zone not in MACHINES[name].zones:
        why = f"Machine type with name '{name}' does not exist in zone '{zone}'."
        raise errors.invalid(at, text, why)
    return MACHINES[name]


def _accelerators(world: World, zone: str, body: Body, machine: MachineType) -> list[Body]:
    """N1 takes those that are attached; the accelerator-optimized families have their own."""
    given = body.get("guestAccelerators", [])
    if len(given) > 1:
        raise errors.invalid("resource.guestAccelerators", "", "At most one type per instance.")
    for item in given:
        at = "resource.guestAccelerators[0].acceleratorType"
        text, count = item.get("acceleratorType", ""), item.get("acceleratorCount", 0)
        path = world.path_of(text, at, "acceleratorTypes", f"zones/{zone}")
        name, where = path.rpartition("/")[2], path.split("/")[-3]
        if name not in ACCELERATORS or where != zone or zone not in ACCELERATORS[name].zones:
            raise errors.not_found(path)
        if machine.accelerator:
            fits = (name, count) == (machine.accelerator, machine.count)
        else:
            most = ACCELERATORS[name].cpus.get(count, 0)
            fits = machine.family == "n1" and machine.cpus <= most
        if not fits:
            raise ApiError(
                400,
                "invalid",
                f"[{machine.name}, {name}] features are not compatible for creating instance.",
            )
        return [{"acceleratorType": world.link(path), "acceleratorCount": count}]
    if not machine.accelerator:
        return []
    path = f"projects/{world.project}/zones/{zone}/acceleratorTypes/{machine.accelerator}"
    return [{"acceleratorType": world.link(path), "acceleratorCount": machine.count}]


def checked_scheduling(given: Body, has_gpu: bool) -> Body:
    """With Google's defaults filled in."""
    at = "resource.scheduling"
    model = given.get("provisioningModel", "STANDARD")
    if model == "SPOT" and given.get("preemptible") is False:
        raise errors.invalid(at, given, "Spot instances must have preemptible be true.")
    legacy = given.get("preemptible", False) and model == "STANDARD"
    spot = legacy or model == "SPOT"
    maintenance = given.get("onHostMaintenance", "TERMINATE" if spot else "MIGRATE")
    restart = given.get("automaticRestart", not spot)
    if spot and restart:
        why = "Scheduling must have preemptible be false when AutomaticRestart is true."
        raise errors.invalid(at, given, why)
    if spot and maintenance != "TERMINATE":
        why = "Scheduling must have preemptible be false when OnHostMaintenance isn't TERMINATE."
        raise errors.invalid(at, given, why)
    if has_gpu and maintenance != "TERMINATE":
        raise errors.bad_request("Instances with guest accelerators do not support live migration.")
    told = {**given, "provisioningModel": model, "preemptible": spot}
    told |= {"onHostMaintenance": maintenance, "automaticRestart": restart}
    _check_end(at, given, model, spot, legacy)
    _check_notices(at, given, spot=spot and not legacy)
    if model == "FLEX_START":
        _check_flex_start(at, told)
    if spot and not legacy:
        told.setdefault("instanceTerminationAction", "STOP")
    return told


def _check_flex_start(at: str, told: Body) -> None:
    """What https://docs.cloud.google.com/compute/docs/instances/create-flex-start-vm and AI
    Hypercomputer's page on creating instances send with each: a run time of 10 minutes to 7 days,
    a termination action, and no live migration. That a restart is refused is suspected.
    """
    seconds = int(told.get("maxRunDuration", {}).get("seconds", 0))
    if not 600 <= seconds <= 7 * 86400:
        why = "Flex-start VMs must run for between 10 minutes and seven days."
        raise errors.invalid(f"{at}.maxRunDuration", str(seconds), why)
    if told["onHostMaintenance"] != "TERMINATE" or told["automaticRestart"]:
        why = "Flex-start VMs neither migrate live nor restart by themselves."
        raise errors.invalid(at, told, why)


def queue_seconds(body: Body) -> int:
    """For how long a flex-start request waits for capacity: 0, or 90 s to 2 h; no other request
    waits. `InstanceParams` of the discovery document: "Relevant only for Instances.Insert API"."""
    at = "resource.params.requestValidForDuration"
    given = body.get("params", {}).get("requestValidForDuration")
    if body.get("scheduling", {}).get("provisioningModel") != "FLEX_START":
        if given is not None:
            raise errors.invalid(at, given, "Only for the flex-start provisioning model.")
        return 0
    seconds = int((given or {}).get("seconds", 0))
    if seconds and not 90 <= seconds <= 7200:
        raise errors.invalid(at, str(seconds), "Must be 0, or between 90 seconds and 2 hours.")
    return seconds


def _check_notices(at: str, given: Body, *, spot: bool) -> None:
    """The discovery document has the notice "for Spot VMs only"; 0 and 120 s are the values that
    Google's pages name. Graceful shutdown lasts 1 s to 1 h and is not available for instances with
    a limited run time:
    https://cloud.google.com/compute/docs/instances/graceful-shutdown-overview
    """
    notice, graceful = given.get("preemptionNoticeDuration"), given.get("gracefulShutdown") or {}
    if notice is not None and not spot:
        why = "Preemption notice duration is only for Spot instances."
        raise errors.invalid(f"{at}.preemptionNoticeDuration", notice, why)
    if notice is not None and int(notice.get("seconds", 0)) not in (0, 120):
        why = "Must be 0 or 120 seconds."
        raise errors.invalid(f"{at}.preemptionNoticeDuration.seconds", notice, why)
    if not graceful.get("enabled"):
        return
    if given.get("maxRunDuration") is not None or given.get("terminationTime") is not None:
        why = "Graceful shutdown is not available with a limited run time."
        raise errors.invalid(f"{at}.gracefulShutdown", graceful, why)
    if not 1 <= int(graceful.get("maxDuration", {}).get("seconds", 600)) <= 3600:
        why = "Must be between 1 second and 1 hour."
        raise errors.invalid(f"{at}.gracefulShutdown.maxDuration", graceful, why)


def _check_end(at: str, given: Body, model: str, spot: bool, legacy: bool) -> None:
    duration, moment = given.get("maxRunDuration"), given.get("terminationTime")
    action = given.get("instanceTerminationAction")
    limited = duration is not None or moment is not None
    if duration is not None and moment is not None:
        raise errors.invalid(at, given, "Only one of maxRunDuration and terminationTime.")
    if limited and legacy:
        why = "A legacy preemptible instance cannot have a limited run time."
        raise errors.invalid(at, given, why)
    if limited and action is None:
        why = "Instance termination action must be specified with a limited run time."
        raise errors.invalid(f"{at}.instanceTerminationAction", "", why)
    if model == "RESERVATION_BOUND" and action is None:
        why = "Instance termination action must be specified for reservation-bound instances."
        raise errors.invalid(f"{at}.instanceTerminationAction", "", why)
    if action is not None and (legacy or not (spot or limited or model == "RESERVATION_BOUND")):
        why = "Only for Spot instances and those with a limited run time."
        raise errors.invalid(f"{at}.instanceTerminationAction", action, why)
    if duration is not None:
        seconds = int(duration.get("seconds", 0))
        if not SHORTEST <= seconds <= LONGEST:
            why = f"Must be between {SHORTEST} seconds and 120 days."
            raise errors.invalid(f"{at}.maxRunDuration.seconds", str(seconds), why)
        if not 0 <= duration.get("nanos", 0) <= 999_999_999:
            raise errors.invalid(f"{at}.maxRunDuration.nanos", "", "Must be in 0 to 999,999,999.")
    if moment is not None:
        try:
            datetime.fromisoformat(moment.replace("Z", "+00:00"))
        except ValueError as error:
            raise errors.invalid(f"{at}.terminationTime", moment, "Not RFC 3339.") from error


def _disks(world: World, zone: str, body: Body, machine: MachineType) -> list[BootDisk]:
    """A boot disk made from an image comes first; the others are empty or local ones."""
    given = body.get("disks", [])
    if not given or not given[0].get("boot"):
        raise errors.invalid("resource.disks", "", "Boot disk must be specified as the first one.")
    if len(given) > 1:
        raise ApiError(501, "notImplemented", "This stand-in makes one disk for each instance")
    at, start = "resource.disks[0]", given[0].get("initializeParams")
    if given[0].get("source") or start is None:
        raise ApiError(501, "notImplemented", "Only disks with initializeParams are acted out")
    image = _image(world, f"{at}.initializeParams.sourceImage", start.get("sourceImage"))
    if image.arm != machine.arm:
        kind = "ARM64" if image.arm else "X86_64"
        raise errors.invalid(at, image.name, f"{kind} images do not run on {machine.name}.")
    gb = int(start.get("diskSizeGb", given[0].get("diskSizeGb", image.gb)))
    if gb < image.gb:
        why = f"Requested disk size cannot be smaller than the image size ({image.gb} GB)"
        raise errors.invalid(f"{at}.initializeParams.diskSizeGb", str(gb), why)
    kind_at, kind = f"{at}.initializeParams.diskType", start.get("diskType", "pd-standard")
    path = world.path_of(kind, kind_at, "diskTypes", f"zones/{zone}")
    if path.rpartition("/")[2] not in DISK_TYPES or path.split("/")[-3] != zone:
        raise errors.invalid(kind_at, kind, "The referenced diskType resource cannot be found.")
    if not machine.persistent_disk and "pd-" in path:
        raise ApiError(400, "badRequest", f"pd disk types do not work with {machine.name}.")
    check_labels(f"{at}.initializeParams.labels", start.get("labels", {}))
    name = start.get("diskName") or body["name"]
    check_name(f"{at}.initializeParams.diskName", name)
    labels = start.get("labels", {})
    _check_key(world, zone, given[0].get("diskEncryptionKey", {}))
    return [BootDisk(name=name, type=path, gb=gb, image=image, labels=labels, given=dict(given[0]))]


def _check_key(world: World, zone: str, key: Body) -> None:
    """As terraform-provider-google#5103 quotes it, read 2026-11-24."""
    name = key.get("kmsKeyName")
    if name is None:
        return
    location = name.split("/")[3]
    if location not in (region_of(zone), "global"):
        why = f"The key is not in the region '{region_of(zone)}'."
        raise errors.invalid("resource.disks[0].diskEncryptionKey.kmsKeyName", name, why)
    if not world.kms_keys.get(name):
        text = (
            f"Cloud KMS error when using key {name}: Permission "
            f"'cloudkms.cryptoKeyVersions.useToEncrypt' denied on resource '{name}' (or it may not "
            "exist)."
        )
        raise ApiError(400, "kmsPermissionDenied", text)


def _image(world: World, at: str, text: str | None) -> Image:
    if not text:
        raise errors.invalid(at, "", "Boot disk must have a source.")
    tail = text.partition("/family/")
    path = world.path_of(tail[0] + "/x" if tail[1] else text, at, "images")
    owner = path.split("/")[1]
    for image in IMAGES.values():
        if image.project != owner:
            continue
        newest = image.family == tail[2] and not image.superseded
        if newest if tail[1] else image.name == path.rpartition("/")[2]:
            return image
    raise errors.invalid(at, text, "The referenced image resource cannot be found.")


def _interfaces(world: World, zone: str, body: Body, image: Image) -> list[Body]:
    given = body.get("networkInterfaces", [])
    if not given:
        why = "At least one network interface is required."
        raise errors.invalid("resource.networkInterfaces", "", why)
    for number, interface in enumerate(given):
        kind = interface.get("nicType", "VIRTIO_NET")
        at = f"resource.networkInterfaces[{number}].nicType"
        if kind not in ("GVNIC", "VIRTIO_NET"):
            raise ApiError(501, "notImplemented", f"This stand-in does not act out {kind}")
        if kind == "GVNIC" and not image.gvnic:
            # https://cloud.google.com/compute/docs/networking/using-gvnic#requirements
            why = "GVNIC requires an image with the guest OS feature GVNIC."
            raise errors.invalid(at, kind, why)
    return [
        _interface(world, zone, f"resource.networkInterfaces[{number}]", interface)
        for number, interface in enumerate(given)
    ]


def _interface(world: World, zone: str, at: str, given: Body) -> Body:
    subnet: Any = None
    if text := given.get("subnetwork"):
        where = f"regions/{region_of(zone)}"
        path = world.path_of(text, f"{at}.subnetwork", "subnetworks", where)
        subnet = _ready(world, path, f"{at}.subnetwork", text, "subnetwork")
        if subnet.scope != where:
            why = f"The subnetwork is not of region '{region_of(zone)}'."
            raise errors.invalid(f"{at}.subnetwork", text, why)
    text = given.get("network")
    if not text and subnet is None:
        text = "global/networks/default"
    if text:
        path = world.path_of(text, f"{at}.network", "networks", "global")
        network = _ready(world, path, f"{at}.network", text, "network")
        if subnet is None:
            subnet = next(
                (
                    other
                    for other in world.under("subnetworks")
                    if other.scope == f"regions/{region_of(zone)}"
                    and other.body["network"] == network.body["selfLink"]
                    and network.body["autoCreateSubnetworks"]
                ),
                None,
            )
            if subnet is None:
                why = "Subnetwork should be specified for custom subnetmode network"
                raise errors.invalid(at, "", why)
        elif subnet.body["network"] != network.body["selfLink"]:
            why = "The subnetwork is not of the network."
            raise errors.invalid(f"{at}.subnetwork", given["subnetwork"], why)
    access = given.get("accessConfigs", [])
    if len(access) > 1:
        raise errors.invalid(f"{at}.accessConfigs", "", "At most one access config.")
    for config in access:
        if config.get("type", "ONE_TO_ONE_NAT") != "ONE_TO_ONE_NAT" or "natIP" in config:
            raise ApiError(501, "notImplemented", "Only ephemeral addresses are acted out")
    check_address(world, at, given.get("networkIP"), subnet)
    return {**given, "network": subnet.body["network"], "subnetwork": subnet.body["selfLink"]}


def _ready(world: World, path: str, at: str, text: str, kind: str) -> Any:
    if path not in world.things:
        raise errors.invalid(at, text, f"The referenced {kind} resource cannot be found.")
    return world.free(path)


def _policies(world: World, zone: str, body: Body, machine: MachineType) -> list[str]:
    region = f"regions/{region_of(zone)}"
    found = []
    for number, text in enumerate(body.get("resourcePolicies", ())):
        at = f"resource.resourcePolicies[{number}]"
        path = world.path_of(text, at, "resourcePolicies", region)
        policy = _ready(world, path, at, text, "resource policy")
        if policy.scope != region:
            raise errors.invalid(at, text, "The policy is not of the instance's region.")
        together = policy.body["groupPlacementPolicy"].get("collocation") == "COLLOCATED"
        if together and machine.family not in PLACED_TOGETHER:
            why = f"Compact placement is not supported for machine type {machine.name}."
            raise errors.invalid(at, text, why)
        found.append(world.link(path))
    return found
