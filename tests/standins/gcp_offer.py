"""Acts out what a project reads: itself, regions, zones, machine types, accelerators, images."""

from __future__ import annotations

from tests.standins import gcp_catalog as catalog
from tests.standins import gcp_errors as errors
from tests.standins.gcp_catalog import ACCELERATORS, IMAGES, MACHINES, REGIONS, ZONES, region_of
from tests.standins.gcp_lists import page, pages_of_all
from tests.standins.gcp_quotas import project_quotas, region_quotas
from tests.standins.gcp_world import Body, Call, acts

SINCE = "2014-05-30T18:35:16.413-07:00"


def _common(call: Call, kind: str, path: str) -> Body:
    """The same id for the same thing, as nothing here is ever made anew."""
    number = sum((i + 1) * 257 * ord(letter) for i, letter in enumerate(path))
    return {
        "kind": f"compute#{kind}",
        "id": str(2_000_000 + number),
        "name": path.rpartition("/")[2],
        "creationTimestamp": SINCE,
        "selfLink": call.world.link(path),
    }


@acts("projects.get")
def project(call: Call) -> Body:
    path = f"projects/{call.world.project}"
    number = "123456789012"
    return {
        **_common(call, "project", path),
        "commonInstanceMetadata": {"kind": "compute#metadata", "fingerprint": "AAAAAAAAAAA="},
        "quotas": project_quotas(call.world),
        "defaultServiceAccount": f"{number}-compute@developer.gserviceaccount.com",
        "defaultNetworkTier": "PREMIUM",
        "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
    }


def _region(call: Call, name: str) -> Body:
    path = f"projects/{call.world.project}"
    return {
        **_common(call, "region", f"{path}/regions/{name}"),
        "description": name,
        "status": "UP",
        "zones": [
            call.world.link(f"{path}/zones/{zone}") for zone in ZONES if region_of(zone) == name
        ],
        "quotas": region_quotas(call.world, name),
    }


@acts("regions.get")
def region(call: Call) -> Body:
    return _region(call, call.given["region"])


@acts("regions.list")
def regions(call: Call) -> Body:
    return page(call, "Region", [("global", _region(call, name)) for name in REGIONS])


def _zone(call: Call, name: str) -> Body:
    path = f"projects/{call.world.project}"
    return {
        **_common(call, "zone", f"{path}/zones/{name}"),
        "description": name,
        "status": "UP",
        "region": call.world.link(f"{path}/regions/{region_of(name)}"),
        "availableCpuPlatforms": ["Intel Broadwell", "Intel Cascade Lake", "Intel Skylake"],
    }


@acts("zones.get")
def zone(call: Call) -> Body:
    return _zone(call, call.given["zone"])


@acts("zones.list")
def zones(call: Call) -> Body:
    return page(call, "Zone", [("global", _zone(call, name)) for name in ZONES])


def _machine(call: Call, zone: str, name: str) -> Body:
    machine = MACHINES[name]
    told = {
        **_common(
            call, "machineType", f"projects/{call.world.project}/zones/{zone}/machineTypes/{name}"
        ),
        "description": f"{machine.cpus} vCPUs, {machine.memory_mb // 1024} GB RAM",
        "guestCpus": machine.cpus,
        "memoryMb": machine.memory_mb,
        "imageSpaceGb": 0,
        "maximumPersistentDisks": 16 if machine.shared else 128,
        "maximumPersistentDisksSizeGb": "3072" if machine.shared else "263168",
        "isSharedCpu": machine.shared,
        "architecture": "ARM64" if machine.arm else "X86_64",
        "zone": zone,
    }
    if machine.accelerator:
        told["accelerators"] = [
            {
                "guestAcceleratorType": machine.accelerator,
                "guestAcceleratorCount": machine.count,
            }
        ]
    if machine.local_ssds:
        told["bundledLocalSsds"] = {
            "defaultInterface": "NVME",
            "partitionCount": machine.local_ssds,
        }
    return told


@acts("machineTypes.get")
def machine_type(call: Call) -> Body:
    name, where = call.given["machineType"], call.given["zone"]
    if name not in MACHINES or where not in MACHINES[name].zones:
        raise errors.real("resource-absent", path=call.path(name))
    return _machine(call, where, name)


@acts("machineTypes.list")
def machine_types(call: Call) -> Body:
    where = call.given["zone"]
    found = [
        (f"zones/{where}", _machine(call, where, machine.name))
        for machine in MACHINES.values()
        if where in machine.zones
    ]
    return page(call, "MachineType", found)


@acts("machineTypes.aggregatedList")
def all_machine_types(call: Call) -> Body:
    found = [
        (f"zones/{where}", _machine(call, where, machine.name))
        for machine in MACHINES.values()
        for where in machine.zones
    ]
    return pages_of_all(call, "MachineType", found, [f"zones/{zone}" for zone in ZONES])


def _accelerator(call: Call, zone: str, name: str) -> Body:
    path = f"projects/{call.world.project}/zones/{zone}"
    return {
        **_common(call, "acceleratorType", f"{path}/acceleratorTypes/{name}"),
        "description": ACCELERATORS[name].words,
        "maximumCardsPerInstance": ACCELERATORS[name].most,
        "zone": call.world.link(path),
    }


@acts("acceleratorTypes.get")
def accelerator_type(call: Call) -> Body:
    name, where = call.given["acceleratorType"], call.given["zone"]
    if name not in ACCELERATORS or where not in ACCELERATORS[name].zones:
        raise errors.real("resource-absent", path=call.path(name))
    return _accelerator(call, where, name)


@acts("acceleratorTypes.list")
def accelerator_types(call: Call) -> Body:
    where = call.given["zone"]
    found = [
        (f"zones/{where}", _accelerator(call, where, name))
        for name, accelerator in ACCELERATORS.items()
        if where in accelerator.zones
    ]
    return page(call, "AcceleratorType", found)


@acts("acceleratorTypes.aggregatedList")
def all_accelerator_types(call: Call) -> Body:
    found = [
        (f"zones/{where}", _accelerator(call, where, name))
        for name, accelerator in ACCELERATORS.items()
        for where in accelerator.zones
    ]
    return pages_of_all(call, "AcceleratorType", found, [f"zones/{zone}" for zone in ZONES])


def _image(call: Call, image: catalog.Image) -> Body:
    path = f"projects/{image.project}/global/images"
    told = {
        **_common(call, "image", f"{path}/{image.name}"),
        "family": image.family,
        "description": image.family,
        "status": "READY",
        "sourceType": "RAW",
        "rawDisk": {"containerType": "TAR", "source": ""},
        "architecture": "ARM64" if image.arm else "X86_64",
        "diskSizeGb": str(image.gb),
        "archiveSizeBytes": str(image.gb * 10**8),
        "guestOsFeatures": [
            {"type": kind}
            for kind in ("VIRTIO_SCSI_MULTIQUEUE", "UEFI_COMPATIBLE", *(["GVNIC"] * image.gvnic))
        ],
        "licenses": [call.world.link(f"projects/{image.project}/global/licenses/{image.family}")],
        "storageLocations": ["us"],
        "labelFingerprint": "42WmSpB8rSM=",
    }
    if image.state:
        told["deprecated"] = {"state": image.state, "deprecated": "2026-12-31T00:00:00-00:00"}
    if image.superseded:
        newer = next(
            other.name
            for other in IMAGES.values()
            if other.family == image.family and not other.superseded
        )
        told["deprecated"] = {
            "state": "DEPRECATED",
            "replacement": call.world.link(f"{path}/{newer}"),
        }
    return told


@acts("images.get")
def image(call: Call) -> Body:
    owner, name = call.given["project"], call.given["image"]
    if (owner, name) not in IMAGES:
        raise errors.real("resource-absent", path=f"projects/{owner}/global/images/{name}")
    return _image(call, IMAGES[owner, name])


@acts("images.getFromFamily")
def image_of_family(call: Call) -> Body:
    owner, family = call.given["project"], call.given["family"]
    for found in IMAGES.values():
        if (found.project, found.family) == (owner, family) and not found.superseded:
            return _image(call, found)
    raise errors.real("resource-absent", path=f"projects/{owner}/global/images/family/{family}")


@acts("images.list")
def images(call: Call) -> Body:
    found = [
        ("global", _image(call, image))
        for image in IMAGES.values()
        if image.project == call.given["project"]
    ]
    return page(call, "Image", found)
