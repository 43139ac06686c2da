"""Compare the quota that a plan needs with the project's remaining quota."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.model import MachineType, Market, NodePlan, Plan
from cloudtrain.core.partial_list import PartialList
from cloudtrain.core.protocols import Allowance
from cloudtrain.providers.base.quota import Quotas, allowance, allowances_in
from cloudtrain.providers.gcp.client import GcpClient
from cloudtrain.providers.gcp.images import GcpImage
from cloudtrain.providers.gcp.machine_types import (
    CPU_QUOTAS,
    QUOTAS,
    SHARED_CPU_QUOTA,
    Shape,
    shape,
)
from cloudtrain.providers.gcp.requests import least_disk

SHORT_LIVED = 7 * 24 * 3600.0
"""Lifetime in seconds up to which a VM's GPUs may use preemptible quota:
https://cloud.google.com/compute/docs/instances/limit-vm-runtime"""


def quotas(rows: Sequence[Mapping[str, Any]]) -> Quotas:
    return {
        str(q.get("metric")): (float(q.get("limit") or 0), float(q.get("usage") or 0)) for q in rows
    }


@dataclass(frozen=True)
class Shortage:
    """Quota shortages for all nodes together, as text."""

    lines: tuple[str, ...]
    inferred: tuple[str, ...]
    """Lines on metrics that were inferred from the machine's name; Google may count it against
    another quota."""


def shortage(
    plan: Plan,
    nodes: Sequence[NodePlan],
    vcpus: Mapping[str, int],
    images: Mapping[str, GcpImage],
    region: Quotas,
    project: Quotas,
) -> Shortage:
    """Find insufficient quota. A quota is skipped if it is not reported or the amount needed is
    unknown.

    `vcpus`: by machine type."""
    needs = need(plan, nodes, vcpus, images, region)
    guessed = {_cpus(s, False, region) for s in map(shape, nodes) if s.family not in CPU_QUOTAS}
    guessed -= {"CPUS"}
    wanted = [shape(node) for node in nodes if node.provisioning.market != "reservation"]
    everywhere = {
        "GPUS_ALL_REGIONS": sum(s.gpus.count for s in wanted if s.gpus),
        "CPUS_ALL_REGIONS": sum(vcpus.get(s.machine, 0) for s in wanted if not s.bundled),
    }
    network = plan.config.network
    if not (network.subnet or network.vpc) and len(nodes) == len(plan.nodes):
        everywhere |= {"NETWORKS": 1, "SUBNETWORKS": 1, "FIREWALLS": 2}
    lines = [_line(metric, n, region) for metric, n in needs.items() if metric not in guessed]
    lines += [_line(metric, n, project) for metric, n in everywhere.items()]
    inferred = [_line(metric, needs[metric], region) for metric in guessed & needs.keys()]
    return Shortage(tuple(filter(None, lines)), tuple(filter(None, sorted(inferred))))


def need(
    plan: Plan,
    nodes: Sequence[NodePlan],
    vcpus: Mapping[str, int],
    images: Mapping[str, GcpImage],
    region: Quotas,
) -> Counter[str]:
    """The amount needed of each metric of the region."""
    needs: Counter[str] = Counter()
    lifetime = plan.config.limits.max_lifetime
    brief = lifetime is not None and lifetime <= SHORT_LIVED
    for node in nodes:
        wanted, market = shape(node), node.provisioning.market
        needs["INSTANCES"] += 1
        if not plan.config.network.private:
            needs["IN_USE_ADDRESSES"] += 1
        if wanted.disk_type == "pd-balanced":
            needs["SSD_TOTAL_GB"] += least_disk(node, images[node.name])
        if market == "reservation":
            continue
        if not wanted.bundled:
            needs[_cpus(wanted, node.spot, region)] += vcpus.get(wanted.machine, 0)
        if wanted.gpus and wanted.gpus.kind in QUOTAS:
            metric, may = QUOTAS[wanted.gpus.kind], market in PREEMPTIBLE or brief
            needs[_preemptible(metric, may, region)] += wanted.gpus.count
    return needs


PREEMPTIBLE: tuple[Market, ...] = ("spot", "flex-start")
"""Markets whose VMs draw on the preemptible quotas of GPUs. Those in a reservation draw on none:
the reservation has, when it was made.
https://docs.cloud.google.com/ai-hypercomputer/docs/consumption-models ("Quota"), updated 2026-04-06
"""


def _cpus(wanted: Shape, spot: bool, region: Quotas) -> str:
    metric = "CPUS" if wanted.family in SHARED_CPU_QUOTA else f"{wanted.family.upper()}_CPUS"
    return "PREEMPTIBLE_CPUS" if spot and region.get("PREEMPTIBLE_CPUS", (0, 0))[0] else metric


def _preemptible(metric: str, may: bool, region: Quotas) -> str:
    """The standard or preemptible metric, whichever has more left, if both may be used. A metric
    that is not reported may suffice and is not compared."""
    other = f"PREEMPTIBLE_{metric}"
    if metric not in region:
        return metric
    return other if may and _left(other, region) > _left(metric, region) else metric


def _left(metric: str, quotas: Quotas) -> float:
    limit, usage = quotas.get(metric, (0.0, 0.0))
    return limit - usage


def _line(metric: str, need: int, quotas: Quotas) -> str:
    if metric not in quotas or need <= _left(metric, quotas):
        return ""
    limit, usage = quotas[metric]
    return f"{metric}: {need} needed, {usage:g} of {limit:g} in use"


def allowances(
    api: GcpClient, machines: Sequence[MachineType], regions: Sequence[str]
) -> PartialList[Allowance]:
    """Room that the quotas of GPUs and CPUs leave for each machine in these regions, or in all that
    the project's zones are in. The role in docs/gcp.md has no `regions.list`."""
    project = quotas(
        api.get(f"project {api.project}", f"projects/{api.project}").get("quotas") or ()
    )
    listed = (
        zone["name"] for page in api.pages("zones", "zones") for zone in page.get("items") or ()
    )
    existing = dict.fromkeys(sorted(zone.rpartition("-")[0] for zone in listed))
    where = [region for region in existing if not regions or region in regions]

    def ask(region: str) -> list[Allowance]:
        answer = api.get(f"region {region}", f"regions/{region}")
        there = {**project, **quotas(answer.get("quotas") or ())}
        return [
            allowance(machine, region, _needs(machine, there, spot=spot), there, spot=spot)
            for machine in machines
            for spot in (False, True)
        ]

    return allowances_in(where, ask)


def _needs(machine: MachineType, reported: Quotas, *, spot: bool) -> dict[str, int]:
    """Amount of each metric, of the region and the project, that one machine needs."""
    assert machine.accelerator is not None
    wanted, count = Shape(machine=machine.name, gpus=machine.accelerator), machine.accelerator.count
    metric = QUOTAS.get(machine.accelerator.kind, f"{machine.accelerator.kind} GPUs")
    needs = {_preemptible(metric, spot, reported): count, "GPUS_ALL_REGIONS": count}
    if not wanted.bundled:
        needs[_cpus(wanted, spot, reported)] = machine.vcpus
        needs["CPUS_ALL_REGIONS"] = machine.vcpus
    return needs
