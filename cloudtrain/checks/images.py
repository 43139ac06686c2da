"""Findings on `setup.image`, by what its registry says of it."""

from __future__ import annotations

import platform

from cloudtrain import catalog
from cloudtrain.core.cloud import facts_of, is_cloud
from cloudtrain.core.errors import CloudError, ConfigError, TransientError, UsageError
from cloudtrain.core.image_name import ImageName
from cloudtrain.core.model import ClusterConfig, Plan
from cloudtrain.core.paths import shown, size_text
from cloudtrain.core.protocols import Finding
from cloudtrain.playbooks import containers

NAMES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Names of the kernel → of images (github.com/opencontainers/image-spec, config.md)."""


def image_findings(plan: Plan) -> tuple[Finding, ...]:
    """Describe the image, and whether it is one for the nodes' machines; none without an image."""
    image = containers.image_of(plan.config)
    if image is None:
        return ()
    if image.is_here and is_cloud(plan.config.provider):
        text = f"{image.registry} is a registry of this machine, which no rented node can reach"
        hint = "push the image to a registry that the nodes reach"
        return (Finding.of("image", UsageError(text, hint=hint)),)
    from cloudtrain.stores.registry import Registry, login_for, refuse_on_nodes  # rarely needed

    try:
        given = containers.login_of(plan.config)
    except ConfigError:
        return ()  # the finding on secrets says it
    try:
        login = login_for(image, *given)
        refuse_on_nodes(image, login)
        registry = Registry(image=image, login=login)
        wanted = architectures(plan)
        facts = registry.facts(next(iter(wanted), "amd64"))
    except TransientError as error:
        if not image.digest:  # else only the nodes must reach it
            return (Finding.of("image", error),)
        text = f"{image}: not known: {error.message}"
        return (Finding(what="image", ok=True, text=text, told=False),)
    except CloudError as error:
        return (Finding.of("image", error),)
    lacking = [each for each in wanted if each not in facts.architectures]
    if lacking:
        has = shown(" and ".join(facts.architectures)) or "no known machine"
        text = f"{image} is for {has}, but the nodes are {' and '.join(lacking)}"
        hint = "set another setup.image, or other machines"
        return (Finding.of("image", UsageError(text, hint=hint)),)
    text = f"{image.pinned(facts.digest)}, {size_text(facts.size)} to pull"
    if facts.entrypoint:
        text += f"; its entry point, {shown(facts.entrypoint[0])}, is not run"
    return (Finding(what="image", ok=True, text=text),)


def architectures(plan: Plan) -> dict[str, None]:
    """Architectures of the nodes, as far as they are known here."""
    config = plan.config
    if facts_of(config.provider).on_this_machine:
        return {NAMES.get(platform.machine(), platform.machine()): None}
    if not is_cloud(config.provider):
        return {}
    types = (catalog.machine_type(config.provider, each.machine or "") for each in plan.nodes)
    return {"arm64" if each.arm else "amd64": None for each in types if each is not None}


def image_note(config: ClusterConfig) -> str | None:
    """Note of `plan`, which asks nobody, on an image."""
    image: ImageName | None = containers.image_of(config)
    if image is None:
        return None
    known = "size and architecture are" if image.digest else "digest, size and architecture are"
    here = facts_of(config.provider).on_this_machine
    sandbox = "; nodes here are no sandbox, its containers are" if here else ""
    return f"setup.image: {image}: {known} known after `check`; its entry point is not run{sandbox}"
