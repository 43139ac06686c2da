"""What Microsoft.Compute refuses in the body of a virtual machine."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from tests.standins import azure_disk_keys, azure_identities, azure_reservations
from tests.standins.azure_errors import (
    Body,
    not_acted_out,
    real,
)
from tests.standins.azure_network import check_interface_free
from tests.standins.azure_offer import IMAGES, SIZES, Image, Size
from tests.standins.azure_references import INTERFACES, check_zones
from tests.standins.azure_world import Thing, World, same

VMS = "Microsoft.Compute/virtualMachines"
GROUPS_OF_PLACES = "Microsoft.Compute/proximityPlacementGroups"
MOST_DATA = 64 * 1024
"""Bytes of customData, decoded: https://learn.microsoft.com/azure/virtual-machines/custom-data"""
NO_USERS = frozenset(
    [
        "administrator",
        "admin",
        "user",
        "user1",
        "test",
        "user2",
        "test1",
        "user3",
        "admin1",
        "1",
        "123",
        "a",
        "actuser",
        "adm",
        "admin2",
        "aspnet",
        "backup",
        "console",
        "david",
        "guest",
        "john",
        "owner",
        "root",
        "server",
        "sql",
        "support",
        "support_388945a0",
        "sys",
        "test2",
        "test3",
        "user4",
        "user5",
    ]
)
NOT_ACTED_OUT = (
    "availabilitySet",
    "virtualMachineScaleSet",
    "host",
    "hostGroup",
    "applicationProfile",
)
FIXED = (
    "osProfile.computerName",
    "osProfile.adminUsername",
    "osProfile.customData",
    "osProfile.linuxConfiguration.disablePasswordAuthentication",
    "osProfile.linuxConfiguration.ssh.publicKeys",
    "storageProfile.imageReference.publisher",
    "storageProfile.imageReference.offer",
    "storageProfile.imageReference.sku",
    "storageProfile.osDisk.name",
    "storageProfile.osDisk.createOption",
    "priority",
    "proximityPlacementGroup.id",
    "capacityReservation.capacityReservationGroup.id",
)
"""They may be left out of a second PUT, and not be changed by it."""


def check(world: World, id: str, given: Body, old: Thing | None) -> None:
    properties = given.setdefault("properties", {})
    for name in NOT_ACTED_OUT:
        if properties.get(name):
            raise not_acted_out(f"{name} of a virtual machine")
    if old is not None:
        check_unchanged(properties, old.properties, given, old.given)
    check_alone(world, given)
    azure_identities.check(world, id, given.get("identity") or {})
    azure_reservations.check(world, given)
    azure_disk_keys.check(world, given)
    _check_network(world, id, given, old)
    group = properties.get("proximityPlacementGroup")
    if group:
        found = world.find(str(group.get("id", "")))
        if (
            found is None
            or not same(found.type, GROUPS_OF_PLACES)
            or found.region != given["location"]
        ):
            raise real("proximity-group-absent", id=group.get("id"))


def check_alone(world: World, given: Body) -> None:
    """What is wrong whatever else there is."""
    properties = given["properties"]
    size = size_of(properties)
    check_zones(VMS, given)
    if len(given.get("zones") or []) > 1:
        raise real("several-zones")
    image = _image(given["location"], properties)
    _check_plan(world, given, image)
    _check_disk(world, properties, image, size)
    _check_os(properties)
    _check_spot(properties, size)


TRUSTED: Body = {
    "securityType": "TrustedLaunch",
    "uefiSettings": {"secureBootEnabled": True, "vTpmEnabled": True},
}
DEFAULT_FEATURE = "Microsoft.Compute/TrustedLaunchByDefaultPreview"
STANDARD_FEATURE = "Microsoft.Compute/UseStandardSecurityType"
TRUSTED_SINCE = "2025-11-01"
"""From here on anybody may ask for `Standard`; before, with a feature of the subscription
(Azure/azure-cli#33280, read 2026-11-26).
https://learn.microsoft.com/azure/virtual-machines/trusted-launch#trusted-launch-as-default"""


def is_trusted_by_default(world: World, given: Body) -> bool:
    """A VM that says nothing gets Secure Boot where the subscription has registered the feature,
    and image and size can."""
    image = _image(given["location"], given["properties"])
    return (
        DEFAULT_FEATURE in world.features
        and not given["properties"].get("securityProfile")
        and image.generation == "V2"
    )


def size_of(properties: Body) -> Size:
    name = (properties.get("hardwareProfile") or {}).get("vmSize")
    if not name:
        raise real("parameter-missing", name="hardwareProfile.vmSize")
    found = next((size for key, size in SIZES.items() if same(key, name)), None)
    if found is None:
        raise real("vm-size-unknown", name=name, sizes=",".join(SIZES))
    return found


def _image(region: str, properties: Body) -> Image:
    reference = (properties.get("storageProfile") or {}).get("imageReference")
    if not reference:
        raise real("parameter-missing", name="imageReference")
    if reference.get("id"):
        raise not_acted_out("images by id")
    for name in ("publisher", "offer", "sku", "version"):
        if not reference.get(name):
            raise real("parameter-missing", name=f"imageReference.{name}")
    wanted = tuple(reference[name] for name in ("publisher", "offer", "sku"))
    image = next((one for key, one in IMAGES.items() if all(map(same, key, wanted))), None)
    if image is None or reference["version"] not in ("latest", *image.versions):
        urn = ":".join([*wanted, reference["version"]])
        raise real("platform-image-absent", urn=urn)
    return image


def _check_plan(world: World, given: Body, image: Image) -> None:
    """https://learn.microsoft.com/azure/virtual-machines/linux/cli-ps-findimage#view-purchase-plan"""
    plan = given.get("plan")
    if image.plan and not plan:
        raise real("plan-missing")
    if plan and plan.get("name") != image.plan:
        raise real("plan-of-another-image", name=plan.get("name"))
    if plan and plan["name"] not in world.terms_accepted:
        raise real("terms-not-accepted")


def _check_disk(world: World, properties: Body, image: Image, size: Size) -> None:
    storage = properties["storageProfile"]
    if storage.get("dataDisks"):
        raise not_acted_out("data disks")
    disk = storage.get("osDisk")
    if disk is not None:
        if disk["createOption"] != "FromImage":
            raise not_acted_out(f"an OS disk with createOption {disk['createOption']}")
        if disk.get("vhd"):
            raise not_acted_out("unmanaged disks")
        gb = disk.get("diskSizeGB", image.gb)
        if not image.gb <= gb <= 4095:
            raise real("disk-smaller-than-image", wanted=f"{gb} GB", image=f"{image.gb} GB")
    name = properties["hardwareProfile"]["vmSize"]
    asked = storage.get("diskControllerType") or size.controllers
    if size.controllers and asked not in image.controllers:
        raise real("nvme-only", size=name)
    if image.generation not in size.generations.split(","):
        raise real("generation-of-another", name=name, generation=image.generation[1:])
    security = properties.get("securityProfile") or {}
    known = world.version >= TRUSTED_SINCE or STANDARD_FEATURE in world.features
    if security.get("securityType") == "Standard" and not known:
        raise real("security-type-refused")
    if security.get("securityType") == "TrustedLaunch" and image.generation != "V2":
        raise real("trusted-launch-not-of-image")


def _check_os(properties: Body) -> None:
    profile = properties.get("osProfile")
    if not profile:
        raise real("parameter-missing", name="osProfile")
    for name in ("computerName", "adminUsername"):
        if not profile.get(name):
            raise real("parameter-missing", name=f"osProfile.{name}")
    if not re.match(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,62}[A-Za-z0-9])?\Z", profile["computerName"]):
        raise real("host-name-invalid")
    user = profile["adminUsername"]
    if user.lower() in NO_USERS or not re.match(r"[a-z_][\w-]{0,63}\Z", user, re.IGNORECASE):
        raise real("admin-name-not-allowed")
    linux = profile.get("linuxConfiguration") or {}
    keys = (linux.get("ssh") or {}).get("publicKeys") or []
    for key in keys:
        _check_key(key, user)
    without_password = linux.get("disablePasswordAuthentication", False)
    if without_password and profile.get("adminPassword"):
        raise real("password-and-keys")
    if not (keys if without_password else profile.get("adminPassword")):
        raise real("neither-password-nor-key")
    for where, data in (
        ("customData", profile.get("customData")),
        ("userData", properties.get("userData")),
    ):
        if data is not None:
            decoded(data, where)


def decoded(data: str, name: str) -> bytes:
    try:
        found = base64.b64decode(data, validate=True)
    except binascii.Error:
        raise real("data-not-base64", data=f"{name[0].upper()}{name[1:]}", target=name) from None
    if len(found) > MOST_DATA:
        raise real(
            "data-too-long",
            data=f"{name[0].upper()}{name[1:]}",
            found=len(found),
            most=MOST_DATA,
            target=name,
        )
    return found


def _check_key(key: Body, user: str) -> None:
    home = f"/home/{user}/.ssh/authorized_keys"
    if key.get("path") != home:
        raise real("key-path-fixed", home=home)
    parts = str(key.get("keyData") or "").split()
    kind = parts[0] if parts else ""
    try:
        fits = kind in ("ssh-rsa", "ssh-ed25519") and kind.encode() in base64.b64decode(parts[1])
    except (IndexError, binascii.Error):
        fits = False
    if not fits:
        raise real("key-invalid")


def _check_spot(properties: Body, size: Size) -> None:
    spot = properties.get("priority") in ("Spot", "Low")
    policy = properties.get("evictionPolicy")
    if not spot:
        for name in ("evictionPolicy", "billingProfile"):
            if properties.get(name):
                raise real("only-for-spot", name=name)
        return
    if not size.spot:
        name = properties["hardwareProfile"]["vmSize"]
        raise real("size-not-for-spot", name=name)
    if policy is None:
        raise real("parameter-missing", name="evictionPolicy")
    price = (properties.get("billingProfile") or {}).get("maxPrice", -1)
    if price != -1 and price <= 0:
        raise real("max-price-invalid")


def _check_network(world: World, id: str, given: Body, old: Thing | None) -> None:
    network = given["properties"].get("networkProfile") or {}
    if network.get("networkInterfaceConfigurations"):
        raise not_acted_out("networkInterfaceConfigurations: make the network interface first")
    interfaces = network.get("networkInterfaces")
    if not interfaces:
        raise real("parameter-missing", name="networkProfile")
    if len(interfaces) > 1:
        raise not_acted_out("virtual machines with several network interfaces")
    nic = world.find(str(interfaces[0].get("id", "")))
    if nic is None or not same(nic.type, INTERFACES) or nic.region != given["location"]:
        raise real("interface-absent", interface=interfaces[0].get("id"), id=id)
    if nic.state != "Succeeded":
        raise real("interface-not-provisioned", nic=nic.id, id=id, state=nic.state)
    check_interface_free(world, nic, id)
    public = nic.properties["ipConfigurations"][0]["properties"].get("publicIPAddress")
    zones = given.get("zones")
    if public and zones:
        there = (world.things[public["id"].lower()].given).get("zones")
        if there and len(there) == 1 and there != zones:
            raise real(
                "address-in-another-zone",
                id=id,
                zones=zones[0],
                address=public["id"],
                there=there[0],
            )
    if old is not None:
        (before,) = old.properties["networkProfile"]["networkInterfaces"]
        if not same(before["id"], nic.id):
            raise not_acted_out("another network interface for a virtual machine")


def check_unchanged(properties: Body, before: Body, given: Body, old: Body) -> None:
    changed = [path for path in FIXED if _at(properties, path) not in (None, _at(before, path))]
    if (given.get("zones") or None) != (old.get("zones") or None):
        changed.append("zones")
    if changed:
        raise real("property-fixed", changed=changed[0])


def keep(properties: Body, before: Body) -> None:
    for name, value in before.items():
        if isinstance(value, dict) and isinstance(properties.get(name), dict):
            keep(properties[name], value)
        else:
            properties.setdefault(name, value)


def _at(body: Any, path: str) -> Any:
    for name in path.split("."):
        body = body.get(name) if isinstance(body, dict) else None
    return body
