"""Which permissions a call needs, as Compute Engine's reference of IAM permissions names them.

https://cloud.google.com/compute/docs/access/iam-permissions
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

VERBS = {"insert": "create", "patch": "update", "aggregatedList": "list", "wait": "get"}


def needed(method: str, body: dict[str, Any], project: str) -> Iterator[str]:
    """Of `instances.insert` and its body; all begin with `compute.`"""
    collection, verb = method.split(".")
    if verb == "testIamPermissions":
        return
    yield f"compute.{collection}.{VERBS.get(verb, verb)}"
    if method in ("firewalls.insert", "firewalls.patch", "subnetworks.insert"):
        yield "compute.networks.updatePolicy"
    if method == "instances.insert":
        yield from _of_instance(body, project)


def _of_instance(body: dict[str, Any], project: str) -> Iterator[str]:
    yield from (
        f"compute.instances.{permission}"
        for field, permission in (
            ("labels", "setLabels"),
            ("metadata", "setMetadata"),
            ("tags", "setTags"),
        )
        if body.get(field)
    )
    for disk in body.get("disks", []):
        made = disk.get("initializeParams", {})
        yield "compute.disks.create"
        if made.get("labels"):
            yield "compute.disks.setLabels"
        if f"projects/{project}/" in made.get("sourceImage", ""):
            yield "compute.images.useReadOnly"
    for interface in body.get("networkInterfaces", []):
        if f"projects/{project}/" not in interface.get("subnetwork", f"projects/{project}/"):
            continue  # needed_of_host
        yield "compute.subnetworks.use"
        if interface.get("accessConfigs"):
            yield "compute.subnetworks.useExternalIp"
    if body.get("serviceAccounts"):
        yield "compute.instances.setServiceAccount"
    if body.get("resourcePolicies"):
        yield "compute.resourcePolicies.use"


def needed_of_host(body: dict[str, Any], project: str) -> Iterator[str]:
    """Permissions on the subnetworks of a Shared VPC that the VM uses."""
    for interface in body.get("networkInterfaces", []):
        if f"projects/{project}/" in interface.get("subnetwork", ""):
            yield "compute.subnetworks.use"
            if interface.get("accessConfigs"):
                yield "compute.subnetworks.useExternalIp"
