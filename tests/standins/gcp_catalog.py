"""What a project finds at Compute Engine before it makes anything: zones, machines, images, quotas.

A part of the real offer, as of 2026: https://cloud.google.com/compute/docs/gpus/gpu-regions-zones
and …/accelerator-optimized-machines. Enough kinds that each rule has something to hold and to fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

REGIONS = {
    "us-central1": "abcf",
    "us-east1": "bcd",
    "us-east4": "abc",
    "us-west1": "abc",
    "us-west4": "abc",
    "europe-west1": "bcd",
    "europe-west4": "abc",
    "asia-east1": "abc",
}
ZONES = tuple(f"{region}-{letter}" for region, letters in REGIONS.items() for letter in letters)


def region_of(zone: str) -> str:
    return zone.rpartition("-")[0]


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    zones: tuple[str, ...]
    metric: str | None
    """Its quota; the newest have none in a region's list."""
    cpus: dict[int, int]
    """Where it is attached to N1: how many go into one VM, and up to how many vCPUs."""
    most: int
    words: str


def _zones(text: str) -> tuple[str, ...]:
    return tuple(
        f"{region}-{letter}"
        for region, letters in (part.split(":") for part in text.split())
        for letter in letters
    )


_T4 = "us-central1:abcf us-east1:cd us-east4:abc us-west1:ab europe-west1:bcd europe-west4:abc"
ACCELERATORS = {
    "nvidia-tesla-t4": Accelerator(
        zones=_zones(f"{_T4} asia-east1:ac"),
        metric="NVIDIA_T4_GPUS",
        cpus={1: 48, 2: 48, 4: 96},
        most=4,
        words="NVIDIA T4",
    ),
    "nvidia-tesla-v100": Accelerator(
        zones=_zones("us-central1:abcf us-east1:c us-west1:ab europe-west4:abc asia-east1:c"),
        metric="NVIDIA_V100_GPUS",
        cpus={1: 12, 2: 24, 4: 48, 8: 96},
        most=8,
        words="NVIDIA V100",
    ),
    "nvidia-tesla-p100": Accelerator(
        zones=_zones("us-central1:cf us-east1:bc us-west1:ab europe-west1:bd europe-west4:a"),
        metric="NVIDIA_P100_GPUS",
        cpus={1: 16, 2: 32, 4: 96},
        most=4,
        words="NVIDIA Tesla P100",
    ),
    "nvidia-tesla-p4": Accelerator(
        zones=_zones("us-central1:ac us-east4:abc europe-west4:bc"),
        metric="NVIDIA_P4_GPUS",
        cpus={1: 24, 2: 48, 4: 96},
        most=4,
        words="NVIDIA Tesla P4",
    ),
    "nvidia-l4": Accelerator(
        zones=_zones("us-central1:abc us-east1:bcd us-east4:ac us-west1:abc europe-west4:abc"),
        metric="NVIDIA_L4_GPUS",
        cpus={},
        most=8,
        words="NVIDIA L4",
    ),
    "nvidia-tesla-a100": Accelerator(
        zones=_zones("us-central1:abcf us-east1:b us-west1:b us-west4:b europe-west4:ab"),
        metric="NVIDIA_A100_GPUS",
        cpus={},
        most=16,
        words="NVIDIA A100 40GB",
    ),
    "nvidia-a100-80gb": Accelerator(
        zones=_zones("us-central1:ac us-east4:c europe-west4:a"),
        metric="NVIDIA_A100_80GB_GPUS",
        cpus={},
        most=8,
        words="NVIDIA A100 80GB",
    ),
    "nvidia-h100-80gb": Accelerator(
        zones=_zones("us-central1:abc us-east4:abc us-west1:ab europe-west4:bc"),
        metric=None,
        cpus={},
        most=8,
        words="NVIDIA H100 80GB",
    ),
    "nvidia-h200-141gb": Accelerator(
        zones=_zones("us-central1:b us-east4:b us-west1:c europe-west1:b"),
        metric=None,
        cpus={},
        most=8,
        words="NVIDIA H200 141GB",
    ),
    "nvidia-h100-mega-80gb": Accelerator(
        zones=_zones("us-central1:abc us-east4:abc us-west1:ab europe-west4:bc"),
        metric=None,
        cpus={},
        most=8,
        words="NVIDIA H100 80GB Mega",
    ),
    "nvidia-rtx-pro-6000": Accelerator(
        zones=_zones("us-central1:bf us-east4:bc europe-west4:ac"),
        metric=None,
        cpus={},
        most=8,
        words="NVIDIA RTX PRO 6000",
    ),
    "nvidia-gb200": Accelerator(
        zones=_zones("us-central1:a"),
        metric=None,
        cpus={},
        most=4,
        words="NVIDIA GB200",
    ),
    "nvidia-b200": Accelerator(
        zones=_zones("us-central1:b us-west1:b"),
        metric=None,
        cpus={},
        most=8,
        words="NVIDIA B200",
    ),
}


@dataclass(frozen=True, kw_only=True)
class MachineType:
    name: str
    cpus: int
    memory_mb: int
    accelerator: str = ""
    count: int = 0
    shared: bool = False
    arm: bool = False

    @property
    def models(self) -> tuple[str, ...]:
        """Provisioning models that it is sold by:
        https://cloud.google.com/compute/docs/accelerator-optimized-machines ("you must create
        instances by using Spot VMs or Flex-start VMs", of A3 High with fewer than 8 GPUs) and
        https://cloud.google.com/compute/docs/instances/about-reservation-bound-vms"""
        if self.family == "a4x":
            return ("RESERVATION_BOUND",)
        if re.fullmatch(r"a3-highgpu-[124]g", self.name):
            return ("SPOT", "FLEX_START")
        if self.family == "a4" or self.name.startswith("a3-ultragpu"):
            return ("SPOT", "FLEX_START", "RESERVATION_BOUND")
        if self.name.startswith(("a3-highgpu-8g", "a3-megagpu")):
            return ("STANDARD", "SPOT", "FLEX_START", "RESERVATION_BOUND")
        if self.accelerator:
            return ("STANDARD", "SPOT", "FLEX_START")
        return ("STANDARD", "SPOT")

    @property
    def persistent_disk(self) -> bool:
        """https://cloud.google.com/compute/docs/disks/hyperdisks#machine-type-support"""
        hyperdisk = {"a4", "a4x", "c4", "c4a", "c4d", "g4", "h4d", "m4", "n4", "n4a", "n4d", "x4"}
        return self.family not in hyperdisk and not self.name.startswith("a3-ultragpu")

    @property
    def local_ssds(self) -> int:
        """Of 375 GiB each, which every VM of the type has:
        https://cloud.google.com/compute/docs/accelerator-optimized-machines
        """
        if self.name.endswith("-nolssd"):
            return 0
        each = {
            "a2-ultragpu": 1,
            "a3-highgpu": 2,
            "a3-megagpu": 2,
            "a3-ultragpu": 4,
            "a4-highgpu": 4,
        }
        return each.get("-".join(self.name.split("-")[:2]), 0) * self.count

    @property
    def family(self) -> str:
        return self.name.split("-")[0]

    @property
    def zones(self) -> tuple[str, ...]:
        return ACCELERATORS[self.accelerator].zones if self.accelerator else ZONES


_PRO = "nvidia-rtx-pro-6000"


def _machines() -> Iterator[MachineType]:
    for name, memory in {"micro": 1024, "small": 2048, "medium": 4096}.items():
        yield MachineType(name=f"e2-{name}", cpus=2, memory_mb=memory, shared=True)
    for family, gb_per_cpu, sizes in (
        ("e2-standard", 4.0, (2, 4, 8, 16, 32)),
        ("e2-highmem", 8.0, (2, 4, 8, 16)),
        ("n1-standard", 3.75, (1, 2, 4, 8, 16, 32, 64, 96)),
        ("n1-highmem", 6.5, (2, 4, 8, 16, 32, 64, 96)),
        ("n1-highcpu", 0.9, (2, 4, 8, 16, 32, 64, 96)),
        ("n2-standard", 4.0, (2, 4, 8, 16, 32, 48, 64, 80, 96, 128)),
        ("n2d-standard", 4.0, (2, 4, 8, 16, 32, 48, 64, 80, 96, 128, 224)),
        ("c2-standard", 4.0, (4, 8, 16, 30, 60)),
        ("n4d-standard", 4.0, (2, 4, 8, 16, 32, 48, 64)),
        ("c4-standard", 3.75, (2, 4, 8, 16, 32)),
        ("t2a-standard", 4.0, (1, 2, 4, 8, 16, 32, 48)),
    ):
        for size in sizes:
            yield MachineType(
                name=f"{family}-{size}",
                cpus=size,
                memory_mb=int(size * gb_per_cpu * 1024),
                arm=family.startswith("t2a"),
            )
    for name, cpus, gb, accelerator, count in (
        *((f"g2-standard-{n}", n, 4 * n, "nvidia-l4", 1) for n in (4, 8, 12, 16, 32)),
        ("g2-standard-24", 24, 96, "nvidia-l4", 2),
        ("g2-standard-48", 48, 192, "nvidia-l4", 4),
        ("g2-standard-96", 96, 384, "nvidia-l4", 8),
        *((f"a2-highgpu-{n}g", 12 * n, 85 * n, "nvidia-tesla-a100", n) for n in (1, 2, 4, 8)),
        ("a2-megagpu-16g", 96, 1360, "nvidia-tesla-a100", 16),
        *((f"a2-ultragpu-{n}g", 12 * n, 170 * n, "nvidia-a100-80gb", n) for n in (1, 2, 4, 8)),
        *((f"a3-highgpu-{n}g", 26 * n, 234 * n, "nvidia-h100-80gb", n) for n in (1, 2, 4, 8)),
        ("a3-highgpu-8g-nolssd", 208, 1872, "nvidia-h100-80gb", 8),
        ("a3-megagpu-8g", 208, 1872, "nvidia-h100-mega-80gb", 8),
        ("a3-ultragpu-8g", 224, 2952, "nvidia-h200-141gb", 8),
        ("a3-ultragpu-8g-nolssd", 224, 2952, "nvidia-h200-141gb", 8),
        ("a4-highgpu-8g", 224, 3968, "nvidia-b200", 8),
        ("a4x-highgpu-4g", 140, 884, "nvidia-gb200", 4),
        ("g5-standard-32", 32, 128, "nvidia-l4", 2),  # of no page: what cloudtrain's table lacks
        *(
            (f"g4-standard-{48 * n}", 48 * n, 180 * n, "nvidia-rtx-pro-6000", n)
            for n in (1, 2, 4, 8)
        ),
    ):
        yield MachineType(
            name=name,
            cpus=cpus,
            memory_mb=gb * 1024,
            accelerator=accelerator,
            count=count,
            arm=name.startswith("a4x"),
        )


MACHINES = {machine.name: machine for machine in _machines()}
PLACED_TOGETHER = ("a2", "a3", "a4", "c2", "g2", "n2", "n2d")
"""Families that a compact placement policy takes, of those above:
https://cloud.google.com/compute/docs/instances/placement-policies-overview"""


@dataclass(frozen=True, kw_only=True)
class Image:
    project: str
    family: str
    name: str
    gb: int
    arm: bool = False
    gvnic: bool = True
    """Whether it has the driver of Google's network card."""
    superseded: bool = False
    """An older one of its family."""
    state: str = ""
    """Of `deprecated`, where there is one: ACTIVE only announces an end."""


def _images() -> Iterator[Image]:
    for family, name, arm in (
        ("ubuntu-2204-lts", "ubuntu-2204-jammy", False),
        ("ubuntu-2204-lts-arm64", "ubuntu-2204-jammy-arm64", True),
        ("ubuntu-2404-lts-amd64", "ubuntu-2404-noble-amd64", False),
        ("ubuntu-2404-lts-arm64", "ubuntu-2404-noble-arm64", True),
    ):
        for date, old in (("20261004", True), ("20261112", False)):
            yield Image(
                project="ubuntu-os-cloud",
                family=family,
                name=f"{name}-v{date}",
                gb=10,
                arm=arm,
                superseded=old,
            )
    yield Image(project="debian-cloud", family="debian-12", name="debian-12-v20261110", gb=10)
    yield Image(project="own-images", family="plain", name="plain-1", gb=10, gvnic=False)
    for family in (
        "common-cpu-ubuntu-2204-py310",
        "common-cu128-ubuntu-2204-nvidia-570",
        "common-cu129-ubuntu-2204-nvidia-580",
        "common-cu129-ubuntu-2404-nvidia-580",
        "tf-latest-gpu",
        "tf-2-20-cu128-ubuntu-2204-py310",
    ):
        yield Image(
            project="deeplearning-platform-release",
            family=family,
            name=f"{family}-v20261105",
            gb=50,
        )


IMAGES = {(image.project, image.name): image for image in _images()}
DISK_TYPES = {"pd-standard": "DISKS_TOTAL_GB", "pd-balanced": "SSD_TOTAL_GB"}
DISK_TYPES |= {"pd-ssd": "SSD_TOTAL_GB", "hyperdisk-balanced": "SSD_TOTAL_GB"}
"""Each with the quota that it draws on."""
CPU_METRICS = {"e2": "CPUS", "n1": "CPUS", "n2": "N2_CPUS", "n2d": "N2D_CPUS", "c2": "C2_CPUS"}
"""By family; the newest have none in a region's list. The families with GPUs draw on quotas of GPUs
alone ("To create A2 VMs, you only need to have the required NVIDIA A100 GPU quotas. You don't need
to request CPU quotas", https://cloud.google.com/compute/resource-usage), though A2_CPUS is told."""
GPU_FAMILIES = ("a2", "a3", "a4", "a4x", "g2", "g4")

REGION_QUOTAS = {
    **dict.fromkeys(sorted(set(CPU_METRICS.values())), 5000.0),
    "A2_CPUS": 0.0,
    "PREEMPTIBLE_CPUS": 0.0,
    "INSTANCES": 6000.0,
    "IN_USE_ADDRESSES": 2300.0,
    "STATIC_ADDRESSES": 8.0,
    "DISKS_TOTAL_GB": 204800.0,
    "SSD_TOTAL_GB": 204800.0,
    **{
        f"{spot}{accelerator.metric}": 128.0
        for accelerator in ACCELERATORS.values()
        if accelerator.metric
        for spot in ("", "PREEMPTIBLE_")
    },
}
PROJECT_QUOTAS = {
    "GPUS_ALL_REGIONS": 256.0,
    "CPUS_ALL_REGIONS": 5000.0,
    "NETWORKS": 25.0,
    "SUBNETWORKS": 275.0,
    "FIREWALLS": 500.0,
    "IMAGES": 2000.0,
    "STATIC_ADDRESSES": 21.0,
}
