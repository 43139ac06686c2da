"""Pure functions for Resource Manager's bodies; tests compare them with azure-mgmt's models."""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from cloudtrain.catalog import gpus
from cloudtrain.core.errors import CloudConfigError
from cloudtrain.core.model import NodePlan
from cloudtrain.providers.azure import paths
from cloudtrain.providers.azure.facts import GPU_DISK_GB

Body = dict[str, Any]
Tags = Mapping[str, str]

USER = "cloudtrain"
RANGE = "10.42.0.0/16"
"""Address range of our own networks."""
SSH = "ssh"
"""Name of the rule that allows SSH from the caller."""

UBUNTU_22 = "Canonical:0001-com-ubuntu-server-jammy:22_04-lts-gen2:latest"
IMAGES = {
    "ubuntu-22.04": UBUNTU_22,
    "ubuntu-24.04": "Canonical:ubuntu-24_04-lts:server:latest",
    # https://learn.microsoft.com/azure/virtual-machines/azure-hpc-vm-images
    "deeplearning": "microsoft-dsvm:ubuntu-hpc:2204:latest",
}
"""Image names of Azure; all are of generation 2, which machines with an A100 or H100 need."""
SECOND = {"ubuntu-22.04": "ubuntu-24.04", "deeplearning": "microsoft-dsvm:ubuntu-hpc:2404:latest"}
"""Second choice of an image, for when a cloud no longer has the first."""
OURS = frozenset({*IMAGES.values(), *SECOND.values()})


def group(region: str, tags: Tags) -> Body:
    return {"location": region, "tags": dict(tags)}


def firewall(region: str, tags: Tags, callers: Sequence[str], inside: Sequence[str]) -> Body:
    """Firewall that allows SSH from `callers` and all traffic between the nodes, nothing else.

    In our own network (`inside` is empty) the default rules AllowVnetInBound and DenyAllInBound
    already allow the nodes' traffic and deny all else. In the user's network, where those allow
    traffic from all peered networks, `inside` has the ranges of the nodes' subnet.
    https://learn.microsoft.com/azure/virtual-network/network-security-groups-overview"""
    rules = [_rule(SSH, 1000, "Allow", "Tcp", callers, "22")] if callers else []
    if inside:
        rules.append(_rule("cluster", 1010, "Allow", "*", inside, "*"))
        rules.append(_rule("nothing-else", 4096, "Deny", "*", ["*"], "*"))
    return _body(region, tags, {"securityRules": rules})


def _body(region: str | None, tags: Tags, properties: Body, **more: Any) -> Body:
    return {"location": region, "tags": dict(tags), **more, "properties": properties}


def _rule(
    name: str, priority: int, access: str, protocol: str, sources: Sequence[str], port: str
) -> Body:
    source: Body = {"sourceAddressPrefix": sources[0]}
    if len(sources) > 1:
        source = {"sourceAddressPrefixes": list(sources)}
    return {
        "name": name,
        "properties": {
            "priority": priority,
            "direction": "Inbound",
            "access": access,
            "protocol": protocol,
            **source,
            "sourcePortRange": "*",
            "destinationAddressPrefix": "*",
            "destinationPortRange": port,
        },
    }


def network(region: str, tags: Tags, subnet: str, *, outbound: bool) -> Body:
    """Virtual network. `outbound`: default outbound access, for nodes without a public address."""
    inside: Body = {"addressPrefix": RANGE}
    if outbound:
        inside["defaultOutboundAccess"] = True
    subnets = [{"name": subnet, "properties": inside}]
    return _body(region, tags, {"addressSpace": {"addressPrefixes": [RANGE]}, "subnets": subnets})


def proximity(region: str, tags: Tags) -> Body:
    return _body(region, tags, {"proximityPlacementGroupType": "Standard"})


def address(region: str, zone: str, tags: Tags) -> Body:
    """Public address. A VM in a zone needs an address in the same zone."""
    properties = {"publicIPAllocationMethod": "Static", "publicIPAddressVersion": "IPv4"}
    return _body(region, tags, properties, sku={"name": "Standard"}, **_zones(zone))


def nic(
    region: str,
    tags: Tags,
    *,
    subnet: str,
    firewall: str | None,
    address: str | None,
    fast: bool,
    internal: str = "",
) -> Body:
    """Network interface. `fast` enables accelerated networking, which some machine types do not
    support; `internal`: the private address to request.

    An interface keeps its private address, also a dynamic one, until it is deleted; a new one may
    request it again as a static one (documented):
    https://learn.microsoft.com/azure/virtual-network/ip-services/private-ip-addresses"""
    inside: Body = {"subnet": {"id": subnet}, "privateIPAllocationMethod": "Dynamic"}
    if internal:
        inside |= {"privateIPAllocationMethod": "Static", "privateIPAddress": internal}
    if address is not None:
        inside["publicIPAddress"] = {"id": address, "properties": {"deleteOption": "Delete"}}
    properties: Body = {
        "ipConfigurations": [{"name": "main", "properties": {"primary": True, **inside}}],
    }
    if firewall is not None:
        properties["networkSecurityGroup"] = {"id": firewall}
    if fast:
        properties["enableAcceleratedNetworking"] = True
    return _body(region, tags, properties)


def machine(
    region: str,
    zone: str,
    tags: Tags,
    *,
    node: NodePlan,
    image: str,
    nic: str,
    user_data: str,
    public_key: str,
    proximity: str | None,
    identity: str | None = None,
    reservation: str | None = None,
    disk_key: str | None = None,
    plan: Mapping[str, str] | None = None,
    nvme: bool = False,
) -> Body:
    """VM whose disk, NIC and address are deleted with it. `identity`: ID of its only identity; none
    by default. `reservation`: ID of the capacity reservation group that it takes its place in.
    `nvme`: it boots from NVMe alone, which some services do not choose by themselves
    (kubermatic/machine-controller#1980, read 2026-11-26)."""
    own_nic = {"id": nic, "properties": {"primary": True, "deleteOption": "Delete"}}
    properties: Body = {
        "hardwareProfile": {"vmSize": node.machine},
        "storageProfile": _storage(node, image_of(image, node), disk_key, nvme=nvme),
        # Azure keeps the serial log for free; it shows why a node cannot be reached.
        "diagnosticsProfile": {"bootDiagnostics": {"enabled": True}},
        "osProfile": _os_profile(node, user_data, public_key),
        "networkProfile": {"networkInterfaces": [own_nic]},
    }
    if has_gpu(node):
        properties["securityProfile"] = dict(PLAIN_BOOT)
    if node.spot:
        properties |= SPOT
    if reservation is not None:
        properties["capacityReservation"] = {"capacityReservationGroup": {"id": reservation}}
    if proximity is not None:
        properties["proximityPlacementGroup"] = {"id": proximity}
    body = _body(region, tags, properties, **_zones(zone))
    if plan is not None:
        body["plan"] = dict(plan)
    if identity is not None:
        body["identity"] = {"type": "UserAssigned", "userAssignedIdentities": {identity: {}}}
    return body


SPOT: Body = {"priority": "Spot", "evictionPolicy": "Delete", "billingProfile": {"maxPrice": -1}}
"""Never evicted for its price, which is at most the on-demand price. A VM that is only deallocated
keeps a disk that is billed. https://learn.microsoft.com/azure/virtual-machines/spot-vms"""


def _storage(node: NodePlan, image: str, disk_key: str | None, *, nvme: bool) -> Body:
    encryption = {} if disk_key is None else {"diskEncryptionSet": {"id": disk_key}}
    disk: Body = {
        "createOption": "FromImage",
        "caching": "ReadWrite",
        "deleteOption": "Delete",
        "managedDisk": {"storageAccountType": "StandardSSD_LRS", **encryption},
    }
    if (size := disk_gb(node, image)) is not None:
        disk["diskSizeGB"] = size
    controller = {"diskControllerType": "NVMe"} if nvme else {}
    return {"imageReference": image_reference(image), "osDisk": disk, **controller}


def disk_gb(node: NodePlan, image: str) -> int | None:
    """The size of a node's disk; None: as large as its image."""
    roomy = node.accelerator is not None and image in OURS
    return node.disk_gb or (GPU_DISK_GB if roomy else None)


def _os_profile(node: NodePlan, user_data: str, public_key: str) -> Body:
    """OS profile with the first-boot data and the only key for logins; no password."""
    key = {"path": f"/home/{USER}/.ssh/authorized_keys", "keyData": public_key}
    return {
        "computerName": node.name,
        "adminUsername": USER,
        "customData": base64.b64encode(user_data.encode()).decode(),
        "linuxConfiguration": {"disablePasswordAuthentication": True, "ssh": {"publicKeys": [key]}},
    }


SUBMIT, STATUS, CANCEL = (
    "virtualMachinesSubmitDeallocate",
    "virtualMachinesGetOperationStatus",
    "virtualMachinesCancelOperations",
)


def deadline(vms: Sequence[str], expires: float, asked: str) -> Body:
    """Scheduled action that deallocates VMs at `expires` (Unix time). `asked`: ID of this request.
    https://learn.microsoft.com/rest/api/computeschedule/scheduled-actions"""
    at = datetime.fromtimestamp(int(expires), timezone.utc)
    return {
        "schedule": {
            "deadline": f"{at:%Y-%m-%dT%H:%M:%SZ}",
            "timezone": "UTC",
            "deadlineType": "InitiateAt",
        },
        "executionParameters": {"retryPolicy": {"retryCount": 4, "retryWindowInMinutes": 30}},
        "resources": {"ids": list(vms)},
        "correlationid": asked,
    }


def operations(ids: Sequence[str]) -> Body:
    return {"operationIds": list(ids), "correlationid": str(uuid.uuid4())}


PLAIN_BOOT = {"securityType": "Standard"}
"""Security profile that disables Secure Boot: with it, the kernel refuses NVIDIA's modules, and a
subscription may enable it by default.
https://learn.microsoft.com/azure/virtual-machines/trusted-launch"""
UNSIGNED_BOOT = {
    "securityType": "TrustedLaunch",
    "uefiSettings": {"secureBootEnabled": False, "vTpmEnabled": True},
}
"""The same where `Standard` needs a feature that the subscription lacks (before 2025-11-01:
Azure/azure-cli#31234 and #33280, read 2026-11-26)."""


def has_gpu(node: NodePlan) -> bool:
    """True if the node's machine type has a GPU: all GPU families have an N in their name."""
    return node.accelerator is not None or str(node.machine).lower().startswith("standard_n")


def with_next_boot(body: Any) -> Any:
    """The body with the profile to try after the one that was refused: that of Trusted Launch
    without Secure Boot, then none. The same if it has none."""
    if isinstance(body, list):
        return [with_next_boot(each) for each in body]
    if not isinstance(body, dict):
        return body
    profile = body.get("securityProfile")
    kept = {k: with_next_boot(v) for k, v in body.items() if k != "securityProfile"}
    return {**kept, "securityProfile": UNSIGNED_BOOT} if profile == PLAIN_BOOT else kept


def schedule(region: str, tags: Tags, *, vm: str, expires: float, enabled: bool = True) -> Body:
    """Daily schedule that deallocates the VM at the minute of day of `expires` (Unix time), in UTC.
    https://learn.microsoft.com/rest/api/dtl/global-schedules"""
    at = datetime.fromtimestamp(expires, timezone.utc)
    properties = {
        "status": "Enabled" if enabled else "Disabled",
        "taskType": "ComputeVmShutdownTask",
        "dailyRecurrence": {"time": f"{at:%H%M}"},
        "timeZoneId": "UTC",
        "notificationSettings": {"status": "Disabled"},
        "targetResourceId": vm,
    }
    return _body(region, tags, properties)


def settings_of(found: Mapping[str, Any]) -> Body:
    """Body of a PUT that restores a schedule as it was found."""
    stored = found.get("properties") or {}
    kept = (
        *("status", "taskType", "dailyRecurrence", "timeZoneId"),
        *("notificationSettings", "targetResourceId"),
    )
    properties = {key: stored[key] for key in kept if key in stored}
    return _body(found.get("location"), found.get("tags") or {}, properties)


def same_schedule(found: Body | Mapping[str, Any], body: Body) -> bool:
    """True if the schedule found in Azure has the end that `body` requests."""
    stored, wanted = found.get("properties") or {}, body["properties"]
    return bool(
        str(stored.get("status", "")).lower() == wanted["status"].lower()
        and (stored.get("dailyRecurrence") or {}).get("time") == wanted["dailyRecurrence"]["time"]
        and str(stored.get("targetResourceId", "")).lower() == wanted["targetResourceId"].lower()
    )


def seconds_to(found: Mapping[str, Any], now: float) -> float:
    """The seconds to the nearest run of the schedule, past or future."""
    time = str(((found.get("properties") or {}).get("dailyRecurrence") or {}).get("time", ""))
    if not re.fullmatch(r"\d{4}", time):
        return 0.0
    at = int(time[:2]) * 3600.0 + int(time[2:]) * 60.0
    ahead = (at - now) % 86400.0
    return min(ahead, 86400.0 - ahead)


def _zones(zone: str) -> Body:
    return {"zones": [paths.zone_of(zone)]} if zone else {}


def image_of(image: str, node: NodePlan) -> str:
    """Azure's name of an image."""
    return images_of(image, node)[0]


def images_of(image: str, node: NodePlan) -> tuple[str, ...]:
    """Azure's names of an image, of which the first that exists is used."""
    if image not in ("auto", "deeplearning"):
        return (IMAGES.get(image, image),)
    # Images with drivers may have NVIDIA's open kernel modules, which need Turing or later.
    has = node.accelerator
    served = has is not None and not gpus.is_older(has.kind, "Turing")
    first = "deeplearning" if served or image == "deeplearning" else "ubuntu-22.04"
    return IMAGES[first], IMAGES.get(SECOND[first], SECOND[first])


def image_reference(image: str) -> Body:
    """The reference for `publisher:offer:sku:version`, or for the ID of a custom or gallery image.
    Raises CloudConfigError for anything else."""
    lower = image.lower()
    for prefix, field in (
        ("/subscriptions/", "id"),
        ("/sharedgalleries/", "sharedGalleryImageId"),
        ("/communitygalleries/", "communityGalleryImageId"),
    ):
        if lower.startswith(prefix):
            return {field: image}
    parts = image.split(":")
    if len(parts) != 4 or not all(parts):
        raise CloudConfigError(
            f"image {image!r} is invalid on Azure",
            hint="use publisher:offer:sku:version (`az vm image list`), a resource id, or auto",
        )
    return dict(zip(("publisher", "offer", "sku", "version"), parts, strict=True))
