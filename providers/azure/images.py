"""Checks, before anything is billed, that images exist and fit the machine and its disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cloudtrain.core.errors import CloudConfigError, CloudError, PermissionsError, if_told
from cloudtrain.core.model import NodePlan, Plan
from cloudtrain.providers.azure import image_plans, requests
from cloudtrain.providers.azure.client import ArmClient, ask_or_none
from cloudtrain.providers.azure.faults import is_unknown_question
from cloudtrain.providers.azure.machine_types import Sku, Skus, words_of
from cloudtrain.providers.base.http import Tree

SECURE_BOOT = (
    "Microsoft.Features/providers/Microsoft.Compute/features/TrustedLaunchByDefaultPreview"
)
"""https://learn.microsoft.com/azure/virtual-machines/trusted-launch#trusted-launch-as-default"""


def check(arm: ArmClient, skus: Skus, region: str, plan: Plan) -> Iterator[tuple[str, bool]]:
    """Check each image; yields its name and whether Azure reports it. Raises CloudConfigError."""
    known = skus.of(region) or {}
    nodes: dict[tuple[str, ...], list[NodePlan]] = {}
    for node in plan.nodes:
        nodes.setdefault(requests.images_of(plan.config.image, node), []).append(node)
    for names, its_nodes in nodes.items():
        image, versions = existing(arm, region, names)
        if versions is None:
            yield image, False
            continue
        reference = requests.image_reference(image)
        wanted = str(reference["version"])
        if wanted not in ("latest", *versions):
            raise CloudConfigError(
                f"image {image} does not exist; versions are {', '.join(versions[-5:])}"
            )
        version = max(versions, key=number) if wanted == "latest" else wanted
        path = f"{path_of(arm, region, reference)}/{version}"
        details = ask_or_none(lambda p=path: arm.fact(p))  # type: ignore[misc]
        for node in its_nodes:
            _refuse_mismatch(image, details or {}, node, known.get((node.machine or "").lower()))
        purchase = image_plans.plan_in(details or {})
        words = "" if purchase is None else image_plans.refuse_unaccepted(arm, image, purchase)
        yield f"{image} ({words})" if words else image, True


def existing(arm: ArmClient, region: str, names: Sequence[str]) -> tuple[str, list[str] | None]:
    """The first image that exists and its versions, which are None if not reported."""
    for image in names:
        path = path_of(arm, region, requests.image_reference(image))
        versions = None if path is None else versions_at(arm, path)
        if versions != []:
            return image, versions
    raise CloudConfigError(f"no image {names[0]}", hint="run `az vm image list --all`")


def secure_boot(arm: ArmClient) -> bool:
    """True if this subscription enables Secure Boot for machines by default."""
    feature = if_told(lambda: arm.get(f"{arm.path}/providers/{SECURE_BOOT}"), {})
    return str((feature.get("properties") or {}).get("state", "")).lower() == "registered"


def path_of(arm: ArmClient, region: str, reference: Tree) -> str | None:
    """The path of a marketplace image; None for a custom or gallery image."""
    if "publisher" not in reference:
        return None
    return (
        f"{arm.path}/providers/Microsoft.Compute/locations/{region}/publishers/"
        f"{reference['publisher']}/artifacttypes/vmimage/offers/{reference['offer']}"
        f"/skus/{reference['sku']}/versions"
    )


def versions_at(arm: ArmClient, path: str) -> list[str] | None:
    """The versions of an image; None if this endpoint does not report them, empty if the image does
    not exist.
    """
    try:
        answer = arm.fact(path)
    except CloudError as error:
        if "VMImage" in error.message:  # "Artifact: VMImage was not found."
            return []
        if is_unknown_question(error) or isinstance(error, PermissionsError):
            return None
        raise
    return [str(version.get("name")) for version in answer or ()]


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split("."))


def _refuse_mismatch(image: str, details: Tree, node: NodePlan, sku: Sku | None) -> None:
    properties: Any = details.get("properties") or {}
    generation = str(properties.get("hyperVGeneration") or "")
    if sku is not None and sku.generations and generation and generation not in sku.generations:
        raise CloudConfigError(
            f"image {image} is of generation {generation}, but {node.machine} boots "
            f"{', '.join(sorted(sku.generations))}",
            hint="use its SKU of the other generation (`az vm image list --all`)",
        )
    if str(properties.get("architecture") or "x64").lower() != "x64":
        raise CloudConfigError(
            f"image {image} is for {properties['architecture']}, but nodes are x86-64",
            hint="choose one of `az vm image list --all --architecture x64`",
        )
    features = {f.get("name"): str(f.get("value")) for f in properties.get("features") or ()}
    boots = words_of(features.get("DiskControllerTypes", "SCSI"))
    if features and sku is not None and sku.controllers and not sku.controllers & boots:
        # kubernetes-sigs/image-builder#1875 has both sides and Azure's refusal, read 2026-11-26.
        raise CloudConfigError(
            f"{node.machine} boots from {', '.join(sorted(sku.controllers))} alone, image {image} "
            f"from {', '.join(sorted(boots))}",
            hint="take an image with NVMe among its DiskControllerTypes (`az vm image show`), or a "
            "machine of series 5",
        )
    size = (properties.get("osDiskImage") or {}).get("sizeInGb")
    disk = requests.disk_gb(node, image)
    if isinstance(size, int) and disk is not None and disk < size:
        raise CloudConfigError(
            f"image {image} needs {size} GB, but the disk of {node.name} has {disk}",
            hint=f"set nodes.{node.role}.disk_gb to {size} or more",
        )
