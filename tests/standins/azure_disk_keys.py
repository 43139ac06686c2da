"""Disk encryption sets: what a disk may name, and what is said of them.

https://learn.microsoft.com/rest/api/compute/disk-encryption-sets/get; KeyVaultAccessForbidden is
quoted by terraform-provider-azurerm#9177, the right to read one by
azuredisk-csi-driver#2609, both read 2026-11-24.
"""

from __future__ import annotations

import re

from werkzeug.wrappers import Response

from tests.standins.azure_call import Call, route
from tests.standins.azure_errors import Body, real
from tests.standins.azure_world import SUBSCRIPTION, World, same

KIND = "Microsoft.Compute/diskEncryptionSets"
ID = re.compile(
    rf"/subscriptions/{SUBSCRIPTION}/resourcegroups/([^/]+)/providers/{re.escape(KIND)}/([^/]+)",
    re.IGNORECASE,
)


@route(
    "GET",
    f"/subscriptions/{{subscription}}/resourceGroups/{{group}}/providers/{KIND}/{{name}}",
    f"{KIND}/read",
)
def _get(call: Call) -> Response:
    name = f"{call.given['group']}/{call.given['name']}"
    region = _region(call.world, name)
    if region is None:
        raise real("resource-not-found-by-name", kind=KIND, name=name)
    body = {"id": call.request.path, "name": call.given["name"], "type": KIND, "location": region}
    return call.answer({**body, "properties": {"provisioningState": "Succeeded"}})


def check(world: World, given: Body) -> None:
    """Raises Refusal for a set that a disk in this place cannot use."""
    disk = (given["properties"].get("storageProfile") or {}).get("osDisk") or {}
    set = ((disk.get("managedDisk") or {}).get("diskEncryptionSet") or {}).get("id")
    if set is None:
        return
    found = ID.fullmatch(set)
    region = _region(world, f"{found[1]}/{found[2]}") if found else None
    if region is None or not same(region, given["location"]):
        raise real("encryption-set-absent", set=set, location=given["location"])
    if f"{found[1]}/{found[2]}".lower() in [one.lower() for one in world.keys_denied]:  # type: ignore[index]
        raise real("key-vault-denied", set=set)


def _region(world: World, name: str) -> str | None:
    known = {key.lower(): region for key, region in world.disk_encryption_sets.items()}
    return known.get(name.lower())
