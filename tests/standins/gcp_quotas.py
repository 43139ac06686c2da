"""Quotas: what the project may have, counted from what it has."""

from __future__ import annotations

from collections import Counter

from tests.standins.gcp_catalog import (
    ACCELERATORS,
    CPU_METRICS,
    DISK_TYPES,
    GPU_FAMILIES,
    MACHINES,
    PROJECT_QUOTAS,
    REGION_QUOTAS,
    region_of,
)
from tests.standins.gcp_errors import Failure
from tests.standins.gcp_world import Body, World

STOPPED = ("TERMINATED", "SUSPENDED")


def limit(world: World, region: str, metric: str) -> float | None:
    """None where a region's list does not have it. A test's own comes first, of one region
    (`us-east4/NVIDIA_T4_GPUS`) or of all (`NVIDIA_T4_GPUS`)."""
    if metric not in REGION_QUOTAS:
        return None
    overall = world.quotas.get(metric, REGION_QUOTAS[metric])
    return float(world.quotas.get(f"{region}/{metric}", overall))


def project_limit(world: World, metric: str) -> float:
    return float(world.quotas.get(metric, PROJECT_QUOTAS[metric]))


def need(world: World, region: str, instance: Body) -> Counter[str]:
    """What one VM draws on, by metric of its region; …_ALL_REGIONS are the project's.

    https://cloud.google.com/compute/resource-usage: spot VMs draw on the preemptible quotas, for
    CPUs only where the project has been granted any.
    """
    machine = MACHINES[instance["machineType"].rpartition("/")[2]]
    spot = bool(instance["scheduling"].get("preemptible"))
    needed: Counter[str] = Counter(INSTANCES=1)
    metric = CPU_METRICS.get(machine.family)
    if machine.family not in GPU_FAMILIES:
        needed["CPUS_ALL_REGIONS"] += machine.cpus
    if metric:
        own = spot and (limit(world, region, "PREEMPTIBLE_CPUS") or 0) > 0
        needed["PREEMPTIBLE_CPUS" if own else metric] += machine.cpus
    for accelerator in instance.get("guestAccelerators", ()):
        kind = ACCELERATORS[accelerator["acceleratorType"].rpartition("/")[2]]
        needed["GPUS_ALL_REGIONS"] += accelerator["acceleratorCount"]
        if kind.metric:
            prefix = "PREEMPTIBLE_" if spot else ""
            needed[f"{prefix}{kind.metric}"] += accelerator["acceleratorCount"]
    for interface in instance["networkInterfaces"]:
        needed["IN_USE_ADDRESSES"] += len(interface.get("accessConfigs", ()))
    return needed


def disk_need(disk: Body) -> Counter[str]:
    return Counter({DISK_TYPES[disk["type"].rpartition("/")[2]]: int(disk["sizeGb"])})


def usage(world: World, region: str | None = None) -> Counter[str]:
    """In one region, or everywhere. A stopped VM keeps its disk and its place, nothing else."""
    used: Counter[str] = Counter()
    for thing in world.under("instances", "disks"):
        here = region_of(thing.scope.partition("/")[2])
        if region is not None and here != region:
            continue
        if thing.collection == "disks":
            used += disk_need(thing.body)
        elif thing.body["status"] in STOPPED:
            used["INSTANCES"] += 1
        else:
            used += need(world, here, thing.body)
    return used


def exceeded(world: World, region: str, more: Counter[str]) -> Failure | None:
    """Why these cannot be had on top of what there is."""
    used = usage(world, region)
    everywhere = usage(world)
    for metric, count in sorted(more.items()):
        if metric.endswith("_ALL_REGIONS"):
            most: float | None = project_limit(world, metric)
            have, place, where = everywhere[metric], "globally", {}
        else:
            most = limit(world, region, metric)
            have, place, where = used[metric], f"in region {region}", {"region": region}
        if most is not None and have + count > most:
            return _failure(metric, most, place, where)
    return None


def too_many(world: World, collection: str, metric: str) -> Failure | None:
    """Of a thing of the whole project, one more."""
    most = project_limit(world, metric)
    have = sum(1 for _ in world.under(collection))
    return _failure(metric, most, "globally", {}) if have + 1 > most else None


def _failure(metric: str, most: float, place: str, where: dict[str, str]) -> Failure:
    scope = "per-project-region" if where else "per-project"
    info = {
        "metricName": f"compute.googleapis.com/{metric.lower()}",
        "limitName": f"{metric.replace('_', '-')}-{scope}",
        "limit": most,
        "dimensions": where or {"global": "global"},
    }
    return Failure(
        code="QUOTA_EXCEEDED",
        message=f"Quota '{metric}' exceeded.  Limit: {most} {place}.",
        status=403,
        details=({"quotaInfo": info},),
    )


def region_quotas(world: World, region: str) -> list[Body]:
    used = usage(world, region)
    return [
        {"metric": metric, "limit": limit(world, region, metric), "usage": float(used[metric])}
        for metric in REGION_QUOTAS
    ]


def project_quotas(world: World) -> list[Body]:
    used = usage(world)
    for collection in ("networks", "subnetworks", "firewalls"):
        used[collection.upper()] = sum(1 for _ in world.under(collection))
    return [
        {
            "metric": metric,
            "limit": project_limit(world, metric),
            "usage": float(used[metric]),
        }
        for metric in PROJECT_QUOTAS
    ]
