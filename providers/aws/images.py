"""Choose the image that a node boots from."""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.catalog import gpus
from cloudtrain.core.errors import CloudConfigError
from cloudtrain.core.model import NodePlan
from cloudtrain.providers.aws import requests, xml
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.facts import IMAGE_GB
from cloudtrain.providers.aws.types import AwsImage
from cloudtrain.providers.aws.xml import Tree

CANONICAL = (("cn-", "837727238323"), ("us-gov-", "513442679011"), ("", "099720109477"))
"""Canonical's account in each partition:
https://documentation.ubuntu.com/aws/aws-how-to/instances/find-ubuntu-images"""
UBUNTU = {
    "ubuntu-22.04": "ubuntu/images/hvm-ssd*/ubuntu-jammy-22.04-amd64-server-*",
    "ubuntu-24.04": "ubuntu/images/hvm-ssd*/ubuntu-noble-24.04-amd64-server-*",
    "ubuntu": "ubuntu/images/hvm-ssd*/ubuntu-*-amd64-server-*",
}
DEEP_LEARNING = tuple(
    f"Deep Learning Base {kind} (Ubuntu {release}) *"
    for release in ("22.04", "24.04")
    for kind in ("AMI with Single CUDA", "OSS Nvidia Driver GPU AMI")
)
"""Image names in order of preference; the first that exists is used. The image with a single
version of CUDA is smaller, as each version takes 10 GB, and pip installs its own:
https://docs.aws.amazon.com/dlami/latest/devguide/aws-deep-learning-ami-gpubasesinglecuda-ul2404-2026-07-17.html
https://docs.aws.amazon.com/dlami/latest/devguide/aws-deep-learning-x86-base-gpu-ami-ubuntu-22-04.html
(read 2026-11-22)"""


def choices(image: str, node: NodePlan) -> tuple[str, ...]:
    """Image names for this node in order of preference; the first that exists is used.

    `ubuntu` is the newest release, for when a partition has neither 22.04 nor 24.04."""
    if image != "auto":
        return (image,)
    has = node.accelerator
    # That image has NVIDIA's open kernel modules, which do not support GPUs older than Turing.
    served = has is not None and not gpus.is_older(has.kind, "Turing")
    return (*(["deeplearning"] if served else []), "ubuntu-22.04", "ubuntu-24.04", "ubuntu")


def find(ec2: Ec2Client, region: str, names: tuple[str, ...]) -> AwsImage:
    """The newest image of the first name that the region has. Raises CloudConfigError."""
    for name in names:
        if (found := _newest(ec2, region, name)) is not None:
            return found
    raise CloudConfigError(
        f"image {' or '.join(names)} does not exist in {region}",
        hint="set one of your own there: image: ami-…",
        scope="region",
    )


def _newest(ec2: Ec2Client, region: str, name: str) -> AwsImage | None:
    if name.startswith("ami-"):
        asked: dict[str, object] = {"ImageId": [name]}
    elif name == "deeplearning":
        asked = _wanted("amazon", *DEEP_LEARNING)
    elif name in UBUNTU:
        owner = next(owner for prefix, owner in CANONICAL if region.startswith(prefix))
        asked = _wanted(owner, UBUNTU[name])
    else:
        raise CloudConfigError(
            f"image {name!r} is invalid on AWS",
            hint=f"use auto, deeplearning, {', '.join(UBUNTU)} or an id: ami-…",
        )
    found = ec2.known(region, "DescribeImages", "imagesSet", asked)
    usable = [each for each in found if xml.text(each, "imageState") in ("", "available")]
    if name == "deeplearning":
        usable = _first_kind(usable)
    usable.sort(key=lambda each: (xml.text(each, "creationDate"), xml.text(each, "name")))
    return _image(usable[-1]) if usable else None


def _first_kind(images: Sequence[Tree]) -> list[Tree]:
    """The images that match the first pattern with any match."""
    for pattern in DEEP_LEARNING:
        start = pattern.removesuffix("*")
        found = [each for each in images if xml.text(each, "name").startswith(start)]
        if found:
            return found
    return list(images)


def _wanted(owner: str, *patterns: str) -> dict[str, object]:
    return {"Owner": [owner], **requests.filters(name=patterns, architecture="x86_64")}


def _image(found: Tree) -> AwsImage:
    root = xml.text(found, "rootDeviceName") or "/dev/sda1"
    disks = xml.items(found, "blockDeviceMapping")
    sizes = [xml.part(each, "ebs") for each in disks if xml.text(each, "deviceName") == root]
    return AwsImage(
        id=xml.text(found, "imageId"),
        name=xml.text(found, "name"),
        root=root,
        size_gb=(xml.number(sizes[0], "volumeSize") if sizes else 0) or IMAGE_GB,
    )
