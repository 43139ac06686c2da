"""`check --deep`: has Resource Manager validate the whole cluster without creating anything.

Validating a deployment is free. It checks the request bodies that `up` sends against policies,
quotas, sizes, images and security profiles.
https://learn.microsoft.com/rest/api/resources/deployments/"""

from __future__ import annotations

import base64
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from cloudtrain.core.errors import CloudError
from cloudtrain.core.model import NodePlan, Plan
from cloudtrain.core.protocols import Finding
from cloudtrain.providers.azure import images, network, paths, requests, reservations
from cloudtrain.providers.azure.client import ArmClient, side_by_side
from cloudtrain.providers.azure.faults import refuses_boot
from cloudtrain.providers.azure.machine_types import Skus
from cloudtrain.providers.azure.vms import bodies
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.checks import in_each
from cloudtrain.providers.base.driver import LaunchRequest, Location

CALLER = "192.0.2.1/32"
"""Placeholder (TEST-NET-1): the validation does not need the caller's address."""
SCHEMA = "https://schema.management.azure.com/schemas"
DISALLOWED = "RequestDisallowed"
"""What the codes of policies begin with, those of Azure's own too."""
WITHIN = 300.0
"""Seconds to wait for a validation."""


def dry_run(arm: ArmClient, skus: Skus, plan: Plan, there: Sequence[Location]) -> Iterator[Finding]:
    """One finding per region. One that accepts the cluster is enough, as `up` tries all."""
    places = _first_in_regions(there)

    def ask(region: str) -> str:
        place, number = places[region], len(plan.nodes)
        refusal = _refusal(arm, skus, plan, place)
        if refusal is not None:
            raise refusal.copy_with(what="", text=f"{place}: {refusal.message}")
        return (
            f"{place}: Azure validated all that `up` creates ({number} "
            f"node{'s' if number > 1 else ''}); nothing was created or billed. Only `up` shows "
            "whether there is capacity"
        )

    return in_each("rehearsal", list(places), ask)


def policies(
    arm: ArmClient, skus: Skus, plan: Plan, there: Sequence[Location]
) -> Iterator[Finding]:
    """Yield for `check` what policies say of each region, such as Allowed locations: Azure is given
    one node of each kind. It is enough if one region is allowed."""
    kinds = {(node.machine, node.provisioning): node for node in reversed(plan.nodes)}
    small = replace(plan, nodes=tuple(kinds.values()))
    places = _first_in_regions(there)
    asked = side_by_side(*(partial(_refusal, arm, skus, small, place) for place in places.values()))
    denied = {
        region: error
        for region, error in zip(places, asked, strict=True)
        if error is not None and error.code.startswith(DISALLOWED)
    }
    for region, error in denied.items():
        found = Finding.of("policies", error, served=len(denied) < len(places))
        yield replace(found, text=f"{region}: {error.message}")


def _first_in_regions(there: Sequence[Location]) -> dict[str, Location]:
    places: dict[str, Location] = {}
    for place in there:
        places.setdefault(place.region, place)
    return places


def _refusal(arm: ArmClient, skus: Skus, plan: Plan, place: Location) -> CloudError | None:
    name = f"cloudtrain-{plan.config.name}"
    scope = arm.group(arm.given).path if arm.given else arm.path
    path = f"{scope}/providers/Microsoft.Resources/deployments/{name}/validate"
    try:
        body = deployment(arm, skus, plan, place)
    except CloudError as error:
        return error
    refusal = _validated(arm, path, body)
    while refusal is not None and refuses_boot(refusal):
        body, tried = requests.with_next_boot(body), body
        if body == tried:
            break
        refusal = _validated(arm, path, body)
    return refusal


def _validated(arm: ArmClient, path: str, body: requests.Body) -> CloudError | None:
    try:
        answer = arm.call("POST", path, body)
        arm.finish("POST", path, answer, within=WITHIN)
    except CloudError as error:
        return error
    return None


def deployment(arm: ArmClient, skus: Skus, plan: Plan, place: Location) -> requests.Body:
    """A deployment for a subscription: the resource group, with everything else nested in it; or
    for the user's group: everything else."""
    group = arm.group_for(plan.config.name, place.region)
    inside = _template(
        "2019-04-01/deploymentTemplate.json#", _inside(arm, skus, plan, place, group)
    )
    if arm.given:
        return {"properties": {"mode": "Incremental", "template": inside}}
    nested = {
        "type": "Microsoft.Resources/deployments",
        "apiVersion": "2022-09-01",
        "name": "nodes",
        "resourceGroup": group.name,
        "dependsOn": [group.name],
        "properties": {"mode": "Incremental", "template": inside},
    }
    made = {
        "type": "Microsoft.Resources/resourceGroups",
        "apiVersion": "2022-09-01",
        "name": group.name,
        **requests.group(place.region, labels.on_resources(plan)),
    }
    template = _template("2018-05-01/subscriptionDeploymentTemplate.json#", [made, nested])
    properties = {"mode": "Incremental", "template": template}
    return {"location": place.region, "properties": properties}


def _template(schema: str, resources: Iterable[Mapping[str, Any]]) -> requests.Body:
    return {
        "$schema": f"{SCHEMA}/{schema}",
        "contentVersion": "1.0.0.0",
        "resources": list(resources),
    }


def _inside(
    arm: ArmClient, skus: Skus, plan: Plan, place: Location, group: paths.Group
) -> Iterator[Mapping[str, Any]]:
    """Yield the resources in the group as network.py and vms.py create them."""
    region, name = place.region, network.shared_name(arm, plan.config.name, place.region)
    tags, wanted = labels.on_resources(plan), plan.config.network
    firewall: str | None = group.firewall(name)
    subnet, shared = wanted.subnet, list[str]()
    if wanted.firewall is not None:
        firewall = next(iter(wanted.firewall), None)
    elif firewall is not None:
        inside = () if subnet is None else network.ranges(arm, subnet)
        callers = network.ssh_sources(arm, wanted, CALLER)
        yield _resource(arm, firewall, requests.firewall(region, tags, callers, inside))
        shared.append(firewall)
    if subnet is None:
        whole = group.network(name)
        subnet = f"{whole}/subnets/{name}"
        yield _resource(arm, whole, requests.network(region, tags, name, outbound=wanted.private))
        shared.append(whole)
    close = f"{labels.group_name(plan.config.name)}-{place}"
    proximity = group.proximity(close) if network.uses_placement_group(plan) else None
    if proximity is not None:
        yield _resource(arm, proximity, requests.proximity(region, tags))
    known = skus.of(region) or {}
    chosen = {
        node.name: images.existing(arm, region, requests.images_of(plan.config.image, node))[:1]
        for node in plan.nodes
    }
    ground = network.ClusterNetwork(
        group=group,
        subnet=subnet,
        firewall=firewall,
        proximity=proximity,
        fast=frozenset(name for name, sku in known.items() if sku.fast),
        nvme=frozenset(name for name, sku in known.items() if sku.nvme_only),
        reserved={bought.name: one.id for bought, one in reservations.find(arm, plan).items()},
        images=chosen,
        plans=images.plans_of(arm, region, list(chosen.values())),
    )
    for node in plan.nodes:
        yield from _of_node(arm, plan, place, node, ground, shared)


def _of_node(
    arm: ArmClient,
    plan: Plan,
    place: Location,
    node: NodePlan,
    ground: network.ClusterNetwork,
    shared: Sequence[str],
) -> Iterator[Mapping[str, Any]]:
    """Yield a node's address, network interface and VM. `shared`: what the interface needs."""
    region, zone, group = place.region, place.zone, ground.group
    tags = labels.on_resources(plan)
    address = None if plan.config.network.private else group.address(node.name, zone)
    if address is not None:
        yield _resource(arm, address, requests.address(region, zone, tags))
    nic = requests.nic(
        region,
        tags,
        subnet=ground.subnet,
        firewall=ground.firewall,
        address=address,
        fast=(node.machine or "").lower() in ground.fast,
    )
    yield _resource(arm, group.nic(node.name), nic, *shared, *filter(None, [address]))
    order = LaunchRequest(
        plan=plan,
        node=node,
        place=place,
        network=ground,
        user_data="#cloud-config\n",
        public_key=_some_key(),
        token="",
        expires=None,
        labels=labels.on_node(plan, node, None),
    )
    needs = [group.nic(node.name), *filter(None, [ground.proximity])]
    yield _resource(arm, group.vm(node.name), bodies(arm, order)[0], *needs)


def _resource(arm: ArmClient, id: str, body: requests.Body, *needs: str) -> Mapping[str, Any]:
    kind = id.partition("/providers/")[2].rpartition("/")[0]
    found = {"type": kind, "apiVersion": arm.version(id), "name": paths.last(id), **body}
    return {**found, "dependsOn": list(needs)} if needs else found


def _some_key() -> str:
    """A well-formed public key for which no private key exists."""
    kind = b"ssh-ed25519"
    data = b"".join(struct.pack(">I", len(part)) + part for part in (kind, os.urandom(32)))
    return f"{kind.decode()} {base64.b64encode(data).decode()} rehearsal"
