"""Images: whether they exist and fit the machine and its disk, the version that the nodes of a
region get, and its purchase plan.

https://learn.microsoft.com/azure/virtual-machines/linux/cli-ps-findimage"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cloudtrain.core.errors import CloudConfigError, CloudError, PermissionsError, if_told
from cloudtrain.core.model import NodePlan, Plan
from cloudtrain.core.protocols import Journal
from cloudtrain.providers.azure import requests
from cloudtrain.providers.azure.client import ArmClient, ask_or_none
from cloudtrain.providers.azure.faults import is_unknown_question
from cloudtrain.providers.azure.machine_types import Sku, Skus, words_of
from cloudtrain.providers.base import image_pins
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
        if image.rpartition(":")[2] not in ("latest", *versions):
            raise CloudConfigError(
                f"image {image} does not exist; versions are {', '.join(versions[-5:])}"
            )
        details = _details(arm, region, image, versions)
        for node in its_nodes:
            _refuse_mismatch(image, details, node, known.get((node.machine or "").lower()))
        purchase = plan_in(details)
        words = "" if purchase is None else refuse_unaccepted(arm, image, purchase)
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
    """The versions of an image: None if not reported, empty if it does not exist."""
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


def _details(arm: ArmClient, region: str, image: str, versions: Sequence[str]) -> Tree:
    """The facts of a marketplace image's version, of which `latest` is the newest of these."""
    reference = requests.image_reference(image)
    version = str(reference["version"])
    version = max(versions, key=number) if version == "latest" else version
    path = f"{path_of(arm, region, reference)}/{version}"
    return ask_or_none(lambda: arm.fact(path)) or {}


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


# Purchase plans of marketplace images: what a VM's request must name, and whether its terms are
# accepted
# https://learn.microsoft.com/azure/virtual-machines/linux/cli-ps-findimage#check-the-purchase-plan-information


PLAN = ("name", "product", "publisher")


def plan_in(details: Tree) -> dict[str, str] | None:
    """The plan of a version's facts, as a VM's request names it; None without one."""
    plan: Mapping[str, str] = (details.get("properties") or {}).get("plan") or {}
    return {key: str(plan.get(key) or "") for key in PLAN} if plan else None


def refuse_unaccepted(arm: ArmClient, image: str, plan: Mapping[str, str]) -> str:
    """Raise CloudConfigError if the plan's terms are not accepted in this subscription. Returns
    what is known of them, in words.

    https://learn.microsoft.com/rest/api/marketplaceordering/marketplace-agreements/get-agreement"""
    path = (
        f"{arm.path}/providers/Microsoft.MarketplaceOrdering/offerTypes/virtualmachine/publishers/"
        f"{plan['publisher']}/offers/{plan['product']}/plans/{plan['name']}/agreements/current"
    )
    answer = if_told(lambda: arm.get(path), {})
    accepted = (answer.get("properties") or {}).get("accepted")
    if accepted is False:
        raise CloudConfigError(
            f"the terms of image {image} are not accepted in this subscription",
            hint=f"read and accept them: `az vm image terms accept --urn {image}`",
        )
    words = f"plan {plan['name']} of {plan['publisher']}, billed by its publisher besides"
    return words if accepted else f"{words}; whether its terms are accepted is not reported"


LATEST = ":latest"


def versions_of_nodes(
    arm: ArmClient, plan: Plan, region: str, journal: Journal
) -> dict[str, tuple[str, ...]]:
    """Each node's images by node name: one, or several to try in turn if this endpoint does not
    list versions.

    `latest` is resolved to the current version."""
    found: dict[tuple[str, ...], tuple[str, ...]] = {}
    nodes: dict[str, tuple[str, ...]] = {}
    for node in plan.nodes:
        choices = requests.images_of(plan.config.image, node)
        if choices not in found:
            found[choices] = _version_of(arm, plan, region, choices, journal)
        nodes[node.name] = found[choices]
    return nodes


def _version_of(
    arm: ArmClient, plan: Plan, region: str, choices: tuple[str, ...], journal: Journal
) -> tuple[str, ...]:
    if not all(image.endswith(LATEST) for image in choices):
        return choices

    def choose() -> tuple[str, ...]:
        image, known = existing(arm, region, choices)
        if not known:
            return choices
        return (f"{image.removesuffix(LATEST)}:{max(known, key=number)}",)

    def exact(pinned: str) -> tuple[str, ...]:
        known = existing(arm, region, (pinned,))[1]
        if known is not None and pinned.rpartition(":")[2] not in known:
            raise CloudConfigError(f"{region} no longer has that version")
        return (pinned,)

    return image_pins.pinned_image(
        plan,
        f"{region}/{'|'.join(choices)}",
        journal,
        choose=choose,
        exact=exact,
        id_of=lambda chosen: "" if chosen[0].endswith(LATEST) else chosen[0],
    )


def plans_of(
    arm: ArmClient, region: str, images: Sequence[tuple[str, ...]]
) -> dict[str, dict[str, str]]:
    """The plans by image; none for images without one, of our own choice, or whose facts this
    principal may not read."""
    found: dict[str, dict[str, str]] = {}
    for image in sorted({image for choices in images for image in choices} - requests.OURS):
        path = path_of(arm, region, requests.image_reference(image))
        if path is None:
            continue
        versions = versions_at(arm, path) if image.endswith(LATEST) else []
        if image.endswith(LATEST) and not versions:
            continue
        if (plan := plan_in(_details(arm, region, image, versions or []))) is not None:
            found[image] = plan
    return found
