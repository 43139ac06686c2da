"""Which sizes and images there are, and where."""

from __future__ import annotations

import re

from werkzeug.wrappers import Response

from tests.standins.azure_call import Call, route
from tests.standins.azure_errors import Body, real
from tests.standins.azure_machine_rules import VMS
from tests.standins.azure_offer import IMAGES, REGIONS, SIZES, Size
from tests.standins.azure_resources import location
from tests.standins.azure_room import restricted
from tests.standins.azure_world import World, same


@route(
    "GET",
    "/subscriptions/{subscription}/providers/Microsoft.Compute/skus",
    "Microsoft.Compute/skus/read",
)
def _skus(call: Call) -> Response:
    wanted = call.query.get("$filter")
    found = re.match(r"location eq '([^']*)'\Z", wanted) if wanted else None
    if wanted and not found:
        raise real("skus-filter-invalid")
    regions = [found[1].lower()] if found else list(REGIONS)
    return call.page(
        [
            _sku(call.world, region, name, size)
            for region in regions
            for name, size in SIZES.items()
            if region in size.regions
        ]
    )


def _sku(world: World, region: str, name: str, size: Size) -> Body:
    capabilities = {
        "vCPUs": size.vcpus,
        "vCPUsAvailable": size.vcpus,
        "MemoryGB": size.memory_gb,
        "HyperVGenerations": size.generations,
        "LowPriorityCapable": size.spot,
        "PremiumIO": True,
        "AcceleratedNetworkingEnabled": True,
        "CpuArchitectureType": size.architecture,
        "MaxResourceVolumeMB": size.temporary_mib,
        **({"NvmeDiskSizeInMiB": size.nvme_mib} if size.nvme_mib else {}),
        **({"DiskControllerTypes": size.controllers} if size.controllers else {}),
        **({"GPUs": size.gpus} if size.gpus else {}),
    }
    zones = list(size.zones_in(region))
    return {
        "resourceType": "virtualMachines",
        "name": name,
        "tier": "Standard",
        "size": name.partition("_")[2],
        "family": size.family,
        "locations": [region],
        "locationInfo": [{"location": region, "zones": zones, "zoneDetails": []}],
        "capabilities": [{"name": key, "value": str(one)} for key, one in capabilities.items()],
        "restrictions": list(_restrictions(world, region, name, zones)),
    }


def _restrictions(world: World, region: str, name: str, zones: list[str]) -> list[Body]:
    shut = [zone for zone in zones if restricted(world, f"{region}-{zone}", name)]
    found = []
    if restricted(world, region, name):
        inner: Body = {"locations": [region]}
        found.append({"type": "Location", "values": [region], "restrictionInfo": inner})
    if shut:
        inner = {"locations": [region], "zones": shut}
        found.append({"type": "Zone", "values": [region], "restrictionInfo": inner})
    return [{**one, "reasonCode": "NotAvailableForSubscription"} for one in found]


_VERSIONS = (
    "/subscriptions/{subscription}/providers/Microsoft.Compute/locations/{location}/publishers/{publisher}"
    "/artifacttypes/vmimage/offers/{offer}/skus/{sku}/versions"
)


@route(
    "GET",
    _VERSIONS,
    "Microsoft.Compute/locations/publishers/artifacttypes/offers/skus/versions/read",
)
def _versions(call: Call) -> Response:
    region = location(call.given["location"], VMS)
    wanted = tuple(call.given[name] for name in ("publisher", "offer", "sku"))
    found = next((one for key, one in IMAGES.items() if all(map(same, key, wanted))), None)
    if found is None:
        raise real("vm-image-absent")
    versions = sorted(found.versions)
    if "name desc" in call.query.get("$orderby", ""):
        versions.reverse()
    versions = versions[: int(call.query.get("$top", len(versions)))]
    base = call.request.path.rstrip("/")
    return call.answer(
        [{"id": f"{base}/{one}", "name": one, "location": region} for one in versions]
    )


@route(
    "GET",
    _VERSIONS + "/{version}",
    "Microsoft.Compute/locations/publishers/artifacttypes/offers/skus/versions/read",
)
def _version(call: Call) -> Response:
    region = location(call.given["location"], VMS)
    wanted = tuple(call.given[name] for name in ("publisher", "offer", "sku"))
    found = next((one for key, one in IMAGES.items() if all(map(same, key, wanted))), None)
    version = call.given["version"]
    if found is None or version not in found.versions:
        raise real("vm-image-version-absent", version=version)
    inner = {"osDiskImage": {"operatingSystem": "Linux", "sizeInGb": found.gb}}
    properties = {
        **inner,
        "hyperVGeneration": found.generation,
        "architecture": found.architecture,
        "features": [
            {"name": "SecurityType", "value": "TrustedLaunchSupported"},
            *(
                [{"name": "DiskControllerTypes", "value": found.controllers}]
                * bool(found.controllers)
            ),
        ],
    }
    if found.plan:
        publisher, offer, _ = wanted
        properties["plan"] = {"name": found.plan, "product": offer, "publisher": publisher}
    body = {"id": call.request.path, "name": version, "location": region}
    return call.answer({**body, "properties": properties})
