"""Quotas: what the project may have, counted from what it has."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import cache

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
from tests.standins.gcp_errors import Failure, real_failure
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
    return Counter(_needs(world, region, instance))


def _needs(world: World, region: str, instance: Body) -> Mapping[str, int]:
    """What one VM draws on, by metric of its region; …_ALL_REGIONS are the project's.

    https://cloud.google.com/compute/resource-usage: spot VMs draw on the preemptible quotas, for
    CPUs only where the project has been granted any; flex-start VMs on those of GPUs, and VMs in a
    reservation on none that it has drawn on already:
    https://docs.cloud.google.com/ai-hypercomputer/docs/consumption-models ("Quota").
    """
    spot = bool(instance["scheduling"].get("preemptible"))
    granted = spot and (limit(world, region, "PREEMPTIBLE_CPUS") or 0) > 0
    affinity, interfaces = instance.get("reservationAffinity", {}), instance["networkInterfaces"]
    return _by_metric(
        machine=instance["machineType"].rpartition("/")[2],
        cpus="PREEMPTIBLE_CPUS" if granted else None,
        spot=spot or instance["scheduling"].get("provisioningModel") == "FLEX_START",
        reserved=affinity.get("consumeReservationType") == SPECIFIC,
        accelerators=tuple(
            (each["acceleratorType"].rpartition("/")[2], each["acceleratorCount"])
            for each in instance.get("guestAccelerators", ())
        ),
        addresses=sum([len(one.get("accessConfigs", ())) for one in interfaces]),
    )


@cache
def _by_metric(
    *,
    machine: str,
    cpus: str | None,
    spot: bool,
    reserved: bool,
    accelerators: tuple[tuple[str, int], ...],
    addresses: int,
) -> Mapping[str, int]:
    """`cpus`: the metric of its CPUs, unless it is the family's own. `spot`: its GPUs draw on the
    preemptible quotas."""
    found = MACHINES[machine]
    needed: Counter[str] = Counter(INSTANCES=1, IN_USE_ADDRESSES=addresses)
    if reserved:
        return +needed
    metric = CPU_METRICS.get(found.family)
    if found.family not in GPU_FAMILIES:
        needed["CPUS_ALL_REGIONS"] += found.cpus
    if metric:
        needed[cpus or metric] += found.cpus
    for name, count in accelerators:
        kind = ACCELERATORS[name]
        needed["GPUS_ALL_REGIONS"] += count
        if kind.metric:
            needed[f"PREEMPTIBLE_{kind.metric}" if spot else kind.metric] += count
    return +needed


SPECIFIC = "SPECIFIC_RESERVATION"


def disk_need(disk: Body) -> dict[str, int]:
    return {DISK_TYPES[disk["type"].rpartition("/")[2]]: int(disk["sizeGb"])}


def usage(world: World, region: str | None = None) -> Counter[str]:
    """In one region, or everywhere."""
    by_region = _usages(world)
    return by_region[region] if region is not None else _sum(by_region)


def _sum(by_region: Mapping[str, Counter[str]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for used in by_region.values():
        found.update(used)
    return found


def _usages(world: World) -> defaultdict[str, Counter[str]]:
    """By region. A stopped VM keeps its disk and its place, nothing else."""
    used: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for thing in world.things.values():
        if thing.collection not in ("disks", "instances"):
            continue
        region = region_of(thing.scope.partition("/")[2])
        more: Mapping[str, int]
        if thing.collection == "disks":
            more = disk_need(thing.body)
        elif thing.body["status"] in STOPPED:
            more = {"INSTANCES": 1}
        else:
            more = _needs(world, region, thing.body)
        here = used[region]
        for metric, count in more.items():
            here[metric] += count
    return used


def exceeded(world: World, region: str, more: Counter[str]) -> Failure | None:
    """Why these cannot be had on top of what there is."""
    by_region = _usages(world)
    used, everywhere = by_region[region], _sum(by_region)
    for metric, count in sorted(more.items()):
        if metric.endswith("_ALL_REGIONS"):
            most: float | None = project_limit(world, metric)
            have, where = everywhere[metric], {}
        else:
            most = limit(world, region, metric)
            have, where = used[metric], {"region": region}
        if most is not None and have + count > most:
            return _failure(metric, most, where)
    return None


def too_many(world: World, collection: str, metric: str) -> Failure | None:
    """Of a thing of the whole project, one more."""
    most = project_limit(world, metric)
    have = sum(1 for _ in world.under(collection))
    return _failure(metric, most, {}) if have + 1 > most else None


def _failure(metric: str, most: float, where: dict[str, str]) -> Failure:
    names = {"metric": metric, "lower": metric.lower(), "dashed": metric.replace("_", "-")}
    entry = "quota-of-region" if where else "quota-all-regions"
    return real_failure(entry, **names, limit=str(float(most)), **where, status=403)


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
