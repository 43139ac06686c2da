"""Capacity advice on spot VMs: what a test says of each zone."""

from __future__ import annotations

from tests.standins import gcp_errors as errors
from tests.standins.gcp_catalog import MACHINES, ZONES, region_of
from tests.standins.gcp_world import Body, Call, acts

AT = "resource.distributionPolicy"


@acts("advice.capacity")
def capacity(call: Call) -> Body:
    """Of a single zone, named as `zones/z`: its score for all the VMs. 1 to 1000 of them, of one
    machine type without attached GPUs, and no TPU:
    https://cloud.google.com/compute/docs/instances/view-vm-availability (Preview, 2026-07)
    """
    world, body = call.world, call.body
    model = body.get("instanceProperties", {}).get("scheduling", {}).get("provisioningModel")
    if model not in ("SPOT", "FLEX_START"):
        raise errors.real(
            "advice-only-for-spot",
            field="resource.instanceProperties.scheduling",
            value=model or "",
        )
    if not 1 <= body.get("size", 0) <= 1000:
        raise errors.real("advice-size", field="resource.size", value=str(body.get("size")))
    selections = body.get("instanceFlexibilityPolicy", {}).get("instanceSelections", {})
    if len(selections) != 1:
        raise errors.real("advice-selection")
    (selection,) = selections.values()
    for name in selection.get("machineTypes", ()):
        if name not in MACHINES or name.startswith("n1-"):
            raise errors.real(
                "advice-policy", field="resource.instanceFlexibilityPolicy", value=name
            )
    policy = body.get("distributionPolicy", {})
    zones = [each["zone"].rpartition("/")[2] for each in policy.get("zones", ())]
    if any(zone not in ZONES or region_of(zone) != call.given["region"] for zone in zones):
        raise errors.real("advice-zones", field=AT, value=zones)
    (zone,) = zones
    shard = {
        "zone": world.link(f"projects/{world.project}/zones/{zone}"),
        "machineType": selection["machineTypes"][0],
        "instanceCount": body["size"],
        "provisioningModel": model,
    }
    if zone not in world.obtainability:
        return {"recommendations": []}
    scores = {"obtainability": world.obtainability[zone], "estimatedUptime": "3600s"}
    return {"recommendations": [{"scores": scores, "shards": [shard]}]}
