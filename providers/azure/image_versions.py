"""Chooses the image version for the nodes of one region."""

from __future__ import annotations

from cloudtrain.errors import CloudConfigError
from cloudtrain.model import Plan
from cloudtrain.protocols import Journal
from cloudtrain.providers.azure import requests
from cloudtrain.providers.azure.client import ArmClient
from cloudtrain.providers.azure.images import existing, number
from cloudtrain.providers.base import image_pins

LATEST = ":latest"


def of_nodes(
    arm: ArmClient, plan: Plan, region: str, journal: Journal
) -> dict[str, tuple[str, ...]]:
    """Return each node's images by node name: one, or several to try in turn if this endpoint does
    not list versions.

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
