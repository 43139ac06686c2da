"""Chooses the image version for the nodes of one region, with its purchase plan."""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.core.errors import CloudConfigError
from cloudtrain.core.model import Plan
from cloudtrain.core.protocols import Journal
from cloudtrain.providers.azure import image_plans, requests
from cloudtrain.providers.azure.client import ArmClient, ask_or_none
from cloudtrain.providers.azure.images import existing, number, path_of, versions_at
from cloudtrain.providers.base import image_pins

LATEST = ":latest"


def of_nodes(
    arm: ArmClient, plan: Plan, region: str, journal: Journal
) -> dict[str, tuple[str, ...]]:
    """Each node's images by node name: one, or several to try in turn if this endpoint does not
    list versions.

    `latest` is resolved to the current version.
    """
    found: dict[tuple[str, ...], tuple[str, ...]] = {}
    nodes: dict[str, tuple[str, ...]] = {}
    for node in plan.nodes:
        choices = requests.images_of(plan.config.image, node)
        if choices not in found:
            found[choices] = _of(arm, plan, region, choices, journal)
        nodes[node.name] = found[choices]
    return nodes


def _of(
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
    principal may not read.
    """
    found = {image for choices in images for image in choices if image not in requests.OURS}
    plans = {image: _plan_of(arm, region, image) for image in sorted(found)}
    return {image: plan for image, plan in plans.items() if plan is not None}


def _plan_of(arm: ArmClient, region: str, image: str) -> dict[str, str] | None:
    reference = requests.image_reference(image)
    path = path_of(arm, region, reference)
    if path is None:
        return None
    version = str(reference["version"])
    if version == "latest":
        known = versions_at(arm, path)
        if not known:
            return None
        version = max(known, key=number)
    details = ask_or_none(lambda: arm.fact(f"{path}/{version}")) or {}
    return image_plans.plan_in(details)
