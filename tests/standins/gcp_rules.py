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
            raise errors.real("label-required", name=name)


def checked(world: World, zone: str, body: Body) -> Wish:
    for name in NOT_ACTED_OUT:
        if name in body:
            raise errors.not_acted_out(f"'{name}'")
    check_labels("resource.labels", body.get("labels", {}))
    _check_constraint(world, body)
    for number, tag in enumerate(body.get("tags", {}).get("items", ())):
        check_name(f"resource.tags.items[{number}]", tag)
    check_metadata(body.get("metadata", {}))
    machine = _machine(world, zone, body)
    accelerators = _accelerators(world, zone, body, machine)
    scheduling = checked_scheduling(body.get("scheduling", {}), bool(accelerators))
    if scheduling["provisioningModel"] not in machine.models:
        models = " or ".join(f"{model.capitalize()} VMs" for model in machine.models)
        models = models.replace("_", "-")
        raise errors.real("market-not-of-machine", machine=machine.name, models=models)
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
            raise errors.real("metadata-key-invalid", field=f"{at}.key", value=key)
        if key in seen:
            raise errors.real("metadata-key-twice", field=at, value=key)
        if len(value.encode()) > 262144:
            raise errors.real("metadata-value-too-large", field=f"{at}.value", value="")
        seen.add(key)
        total += len(key) + len(value.encode())
    if total > 524288:
        raise errors.real("metadata-too-large", field="resource.metadata", value="")


def _machine(world: World, zone: str, body: Body) -> MachineType:
    at, text = "resource.machineType", body.get("machineType")
    if not text:
        raise errors.real("machine-type-missing", field=at, value="")
    parts = world.path_of(text, at, "machineTypes").split("/")
    name, where = parts[-1], parts[-3]
    if where != zone:
        raise errors.real("machine-type-of-another-zone", field=at, value=text, zone=zone)
    if name not in MACHINES or zone not in MACHINES[name].zones:
        raise errors.real("machine-type-absent", field=at, value=text, name=name, zone=zone)
    return MACHINES[name]


def _accelerators(world: World, zone: str, body: Body, machine: MachineType) -> list[Body]:
    """N1 takes those that are attached; the accelerator-optimized families have their own."""
    given = body.get("guestAccelerators", [])
    if len(given) > 1:
        raise errors.real("several-accelerator-types", field="resource.guestAccelerators", value="")
    for item in given:
        at = "resource.guestAccelerators[0].acceleratorType"
        text, count = item.get("acceleratorType", ""), item.get("acceleratorCount", 0)
        path = world.path_of(text, at, "acceleratorTypes", f"zones/{zone}")
        name, where = path.rpartition("/")[2], path.split("/")[-3]
        if name not in ACCELERATORS or where != zone or zone not in ACCELERATORS[name].zones:
            raise errors.real("resource-absent", path=path)
        if machine.accelerator:
            fits = (name, count) == (machine.accelerator, machine.count)
        else:
            most = ACCELERATORS[name].cpus.get(count, 0)
            fits = machine.family == "n1" and machine.cpus <= most
        if not fits:
            raise errors.real("accelerator-not-of-machine", machine=machine.name, name=name)
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
        raise errors.real("spot-not-preemptible", field=at, value=given)
    legacy = given.get("preemptible", False) and model == "STANDARD"
    spot = legacy or model == "SPOT"
    maintenance = given.get("onHostMaintenance", "TERMINATE" if spot else "MIGRATE")
    restart = given.get("automaticRestart", not spot)
    if spot and restart:
        raise errors.real("spot-restarts", field=at, value=given)
    if spot and maintenance != "TERMINATE":
        raise errors.real("spot-migrates", field=at, value=given)
    if has_gpu and maintenance != "TERMINATE":
        raise errors.real("accelerators-do-not-migrate")
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
        raise errors.real("flex-start-run-time", field=f"{at}.maxRunDuration", value=str(seconds))
    if told["onHostMaintenance"] != "TERMINATE" or told["automaticRestart"]:
        raise errors.real("flex-start-migrates", field=at, value=told)


def queue_seconds(body: Body) -> int:
    """For how long a flex-start request waits for capacity: 0, or 90 s to 2 h; no other request
    waits. `InstanceParams` of the discovery document: "Relevant only for Instances.Insert API"."""
    at = "resource.params.requestValidForDuration"
    given = body.get("params", {}).get("requestValidForDuration")
    if body.get("scheduling", {}).get("provisioningModel") != "FLEX_START":
        if given is not None:
            raise errors.real("wait-without-flex-start", field=at, value=given)
        return 0
    seconds = int((given or {}).get("seconds", 0))
    if seconds and not 90 <= seconds <= 7200:
        raise errors.real("flex-start-wait", field=at, value=str(seconds))
    return seconds


def _check_notices(at: str, given: Body, *, spot: bool) -> None:
    """The discovery document has the notice "for Spot VMs only"; 0 and 120 s are the values that
    Google's pages name. Graceful shutdown lasts 1 s to 1 h and is not available for instances with
    a limited run time:
    https://cloud.google.com/compute/docs/instances/graceful-shutdown-overview
    """
    notice, graceful = given.get("preemptionNoticeDuration"), given.get("gracefulShutdown") or {}
    if notice is not None and not spot:
        raise errors.real(
            "preemption-notice-without-spot", field=f"{at}.preemptionNoticeDuration", value=notice
        )
    if notice is not None and int(notice.get("seconds", 0)) not in (0, 120):
        raise errors.real(
            "preemption-notice-length", field=f"{at}.preemptionNoticeDuration.seconds", value=notice
        )
    if not graceful.get("enabled"):
        return
    if given.get("maxRunDuration") is not None or given.get("terminationTime") is not None:
        raise errors.real(
            "graceful-shutdown-with-run-time", field=f"{at}.gracefulShutdown", value=graceful
        )
    if not 1 <= int(graceful.get("maxDuration", {}).get("seconds", 600)) <= 3600:
        raise errors.real(
            "graceful-shutdown-length", field=f"{at}.gracefulShutdown.maxDuration", value=graceful
        )


def _check_end(at: str, given: Body, model: str, spot: bool, legacy: bool) -> None:
    duration, moment = given.get("maxRunDuration"), given.get("terminationTime")
    action = given.get("instanceTerminationAction")
    limited = duration is not None or moment is not None
    if duration is not None and moment is not None:
        raise errors.real("run-time-and-end", field=at, value=given)
    if limited and legacy:
        raise errors.real("legacy-preemptible-with-run-time", field=at, value=given)
    if limited and action is None:
        raise errors.real(
            "termination-action-missing", field=f"{at}.instanceTerminationAction", value=""
        )
    if model == "RESERVATION_BOUND" and action is None:
        raise errors.real(
            "termination-action-of-reservation", field=f"{at}.instanceTerminationAction", value=""
        )
    if action is not None and (legacy or not (spot or limited or model == "RESERVATION_BOUND")):
        raise errors.real(
            "termination-action-not-wanted", field=f"{at}.instanceTerminationAction", value=action
        )
    if duration is not None:
        seconds = int(duration.get("seconds", 0))
        if not SHORTEST <= seconds <= LONGEST:
            raise errors.real(
                "run-time-length",
                field=f"{at}.maxRunDuration.seconds",
                value=str(seconds),
                shortest=SHORTEST,
            )
        if not 0 <= duration.get("nanos", 0) <= 999_999_999:
            raise errors.real("run-time-nanos", field=f"{at}.maxRunDuration.nanos", value="")
    if moment is not None:
        try:
            datetime.fromisoformat(moment.replace("Z", "+00:00"))
        except ValueError as error:
            raise errors.real(
                "end-malformed", field=f"{at}.terminationTime", value=moment
            ) from error


def _disks(world: World, zone: str, body: Body, machine: MachineType) -> list[BootDisk]:
    """A boot disk made from an image comes first; the others are empty or local ones."""
    given = body.get("disks", [])
    if not given or not given[0].get("boot"):
        raise errors.real("boot-disk-missing", field="resource.disks", value="")
    if len(given) > 1:
        raise errors.not_acted_out("several disks")
    at, start = "resource.disks[0]", given[0].get("initializeParams")
    if given[0].get("source") or start is None:
        raise errors.not_acted_out("disks without initializeParams")
    image = _image(world, f"{at}.initializeParams.sourceImage", start.get("sourceImage"))
    if image.arm != machine.arm:
        kind = "ARM64" if image.arm else "X86_64"
        raise errors.real(
            "image-of-another-architecture",
            field=at,
            value=image.name,
            kind=kind,
            machine=machine.name,
        )
    gb = int(start.get("diskSizeGb", given[0].get("diskSizeGb", image.gb)))
    if gb < image.gb:
        raise errors.real(
            "disk-smaller-than-image",
            field=f"{at}.initializeParams.diskSizeGb",
            value=str(gb),
            gb=image.gb,
        )
    kind_at, kind = f"{at}.initializeParams.diskType", start.get("diskType", "pd-standard")
    path = world.path_of(kind, kind_at, "diskTypes", f"zones/{zone}")
    if path.rpartition("/")[2] not in DISK_TYPES or path.split("/")[-3] != zone:
        raise errors.real("disk-type-absent", field=kind_at, value=kind)
    if not machine.persistent_disk and "pd-" in path:
        raise errors.real("disk-type-not-of-machine", machine=machine.name)
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
        raise errors.real(
            "key-of-another-region",
            field="resource.disks[0].diskEncryptionKey.kmsKeyName",
            value=name,
            region=region_of(zone),
        )
    if not world.kms_keys.get(name):
        raise errors.real("key-denied", name=name)


def _image(world: World, at: str, text: str | None) -> Image:
    if not text:
        raise errors.real("boot-disk-without-source", field=at, value="")
    tail = text.partition("/family/")
    path = world.path_of(tail[0] + "/x" if tail[1] else text, at, "images")
    owner = path.split("/")[1]
    for image in IMAGES.values():
        if image.project != owner:
            continue
        newest = image.family == tail[2] and not image.superseded
        if newest if tail[1] else image.name == path.rpartition("/")[2]:
            return image
    raise errors.real("image-absent", field=at, value=text)


def _interfaces(world: World, zone: str, body: Body, image: Image) -> list[Body]:
    given = body.get("networkInterfaces", [])
    if not given:
        raise errors.real("interface-missing", field="resource.networkInterfaces", value="")
    for number, interface in enumerate(given):
        kind = interface.get("nicType", "VIRTIO_NET")
        at = f"resource.networkInterfaces[{number}].nicType"
        if kind not in ("GVNIC", "VIRTIO_NET"):
            raise errors.not_acted_out(kind)
        if kind == "GVNIC" and not image.gvnic:
            # https://cloud.google.com/compute/docs/networking/using-gvnic#requirements
            raise errors.real("gvnic-not-of-image", field=at, value=kind)
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
            raise errors.real(
                "subnetwork-of-another-region",
                field=f"{at}.subnetwork",
                value=text,
                region=region_of(zone),
            )
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
                raise errors.real("subnetwork-missing", field=at, value="")
        elif subnet.body["network"] != network.body["selfLink"]:
            raise errors.real(
                "subnetwork-of-another-network", field=f"{at}.subnetwork", value=given["subnetwork"]
            )
    access = given.get("accessConfigs", [])
    if len(access) > 1:
        raise errors.real("several-access-configs", field=f"{at}.accessConfigs", value="")
    for config in access:
        if config.get("type", "ONE_TO_ONE_NAT") != "ONE_TO_ONE_NAT" or "natIP" in config:
            raise errors.not_acted_out("static addresses")
    check_address(world, at, given.get("networkIP"), subnet)
    return {**given, "network": subnet.body["network"], "subnetwork": subnet.body["selfLink"]}


def _ready(world: World, path: str, at: str, text: str, kind: str) -> Any:
    if path not in world.things:
        raise errors.real("reference-absent", field=at, value=text, kind=kind)
    return world.free(path)


def _policies(world: World, zone: str, body: Body, machine: MachineType) -> list[str]:
    region = f"regions/{region_of(zone)}"
    found = []
    for number, text in enumerate(body.get("resourcePolicies", ())):
        at = f"resource.resourcePolicies[{number}]"
        path = world.path_of(text, at, "resourcePolicies", region)
        policy = _ready(world, path, at, text, "resource policy")
        if policy.scope != region:
            raise errors.real("policy-of-another-region", field=at, value=text)
        together = policy.body["groupPlacementPolicy"].get("collocation") == "COLLOCATED"
        if together and machine.family not in PLACED_TOGETHER:
            raise errors.real("no-compact-placement", field=at, value=text, machine=machine.name)
        found.append(world.link(path))
    return found
