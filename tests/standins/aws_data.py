"""What an AWS account sees before it has made anything: images, machine types, quotas."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

REGIONS = ("us-east-1", "us-west-2", "eu-west-1")

CANONICAL, AMAZON, STRANGER = "099720109477", "898082745236", "111122223333"


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One public image, named as its owner names them."""

    id: str
    name: str
    owner: str
    created: str
    gb: int
    architecture: str = "x86_64"


_UBUNTU = "ubuntu/images/hvm-ssd"
_DLAMI = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04)"

IMAGES = (
    Picture(
        id="ami-0a00000000002204a",
        name=f"{_UBUNTU}/ubuntu-jammy-22.04-amd64-server-20260218",
        owner=CANONICAL,
        created="2026-02-18T04:11:52.000Z",
        gb=8,
    ),
    Picture(
        id="ami-0a00000000002204b",
        name=f"{_UBUNTU}/ubuntu-jammy-22.04-amd64-server-20261015",
        owner=CANONICAL,
        created="2026-10-15T03:40:12.000Z",
        gb=8,
    ),
    Picture(
        id="ami-0a00000000002204c",
        name=f"{_UBUNTU}/ubuntu-jammy-22.04-arm64-server-20261015",
        owner=CANONICAL,
        created="2026-10-15T04:02:37.000Z",
        gb=8,
        architecture="arm64",
    ),
    Picture(
        id="ami-0a00000000002404a",
        name=f"{_UBUNTU}-gp3/ubuntu-noble-24.04-amd64-server-20261022",
        owner=CANONICAL,
        created="2026-10-22T05:21:09.000Z",
        gb=8,
    ),
    Picture(
        id="ami-0d00000000002204a",
        name=f"{_DLAMI} 20260301",
        owner=AMAZON,
        created="2026-03-01T10:00:00.000Z",
        gb=35,
    ),
    Picture(
        id="ami-0d00000000002204b",
        name=f"{_DLAMI} 20261101",
        owner=AMAZON,
        created="2026-11-01T10:00:00.000Z",
        gb=35,
    ),
    Picture(
        id="ami-0d00000000002404a",
        name="Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 20261101",
        owner=AMAZON,
        created="2026-11-01T11:00:00.000Z",
        gb=45,
    ),
    Picture(  # Anybody may give a public image any name.
        id="ami-0bad0000000000000",
        name=f"{_UBUNTU}/ubuntu-jammy-22.04-amd64-server-20261120",
        owner=STRANGER,
        created="2026-11-20T00:00:00.000Z",
        gb=8,
    ),
)

QUOTAS = {
    "L-1216C47A": ("Running On-Demand Standard instances", 256.0),
    "L-34B43A08": ("All Standard Spot Instance Requests", 256.0),
    "L-DB2E81BA": ("Running On-Demand G and VT instances", 128.0),
    "L-3819A6DF": ("All G and VT Spot Instance Requests", 128.0),
    "L-417A185B": ("Running On-Demand P instances", 192.0),
    "L-7212CCBC": ("All P4, P3 and P2 Spot Instance Requests", 192.0),
    "L-C4BD4855": ("All P5 Spot Instance Requests", 0.0),
}
"""Code → name and vCPUs: https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html"""

_BUCKETS = {
    "g": ("L-DB2E81BA", "L-3819A6DF"),
    "vt": ("L-DB2E81BA", "L-3819A6DF"),
    "p": ("L-417A185B", "L-7212CCBC"),
}
_STANDARD = ("L-1216C47A", "L-34B43A08")


def quota_of(machine: str, spot: bool) -> str:
    """The code of the quota that a machine type draws on."""
    family = machine.partition(".")[0]
    if spot and family.startswith("p5"):
        return "L-C4BD4855"
    letters = "".join(character for character in family.partition("-")[0] if character.isalpha())
    bucket = next((_BUCKETS[key] for key in ("vt", "p", "g") if letters.startswith(key)), _STANDARD)
    return bucket[spot]


_ADDED = {"g9.4xlarge": (16, 131072, 1, ("L4", 24576))}
"""vCPUs, MiB and GPUs of a type that nobody sells: whatever the table of cloudtrain lacks. What EC2
has is as moto recorded it: nothing here may replace that (tests/unit/test_standin_aws.py)."""


def add_machines(types: dict[str, Any], offerings: dict[str, Any]) -> None:
    """To moto's own tables."""
    for name, (vcpus, mib, gpus, (kind_of_gpu, gpu_mib)) in _ADDED.items():
        assert name not in types, f"moto has recorded {name}"
        made = types[name] = copy.deepcopy(types["g4dn.xlarge"])
        made["InstanceType"] = name
        made["VCpuInfo"] |= {"DefaultVCpus": vcpus, "DefaultCores": vcpus // 2}
        made["MemoryInfo"] = {"SizeInMiB": mib}
        made["InstanceStorageSupported"] = False
        made.pop("InstanceStorageInfo", None)
        card = {"Name": kind_of_gpu, "Manufacturer": "NVIDIA", "Count": gpus}
        card["MemoryInfo"] = {"SizeInMiB": gpu_mib}
        made["GpuInfo"] = {"Gpus": [card], "TotalGpuMemoryInMiB": gpu_mib * gpus}
        for kind, by_region in offerings.items():
            for region in REGIONS:
                places = {
                    offer["Location"]
                    for offer in by_region[region]
                    if offer["InstanceType"] == "g4dn.xlarge"
                }
                by_region[region] += [
                    {"InstanceType": name, "Location": place, "LocationType": kind}
                    for place in sorted(places)
                ]
