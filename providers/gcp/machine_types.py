"""Machine types as Google reports them, and what a node gets of its family: GPUs, disk, quotas."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from cloudtrain import catalog
from cloudtrain.catalog import availability
from cloudtrain.catalog.gpus import canonical_name, is_same_accelerator
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CloudConfigError
from cloudtrain.core.model import Accelerator, NodePlan
from cloudtrain.core.protocols import MachineFacts
from cloudtrain.providers.base import fact_tables
from cloudtrain.providers.base.driver import Location
from cloudtrain.providers.gcp.client import GcpClient, Json
from cloudtrain.providers.gcp.facts import FACTS, FOLDER


def facts(
    api: GcpClient, zones: Callable[[], Mapping[str, Sequence[Location]]], names: Iterable[str]
) -> tuple[MachineFacts, ...]:
    """The facts of each machine type, as described before, or else from the first zone that has it.
    `zones`, by entry of the placement, is called only for others."""
    wanted = list(dict.fromkeys(names))
    missing = [name for name in wanted if name not in api.described]
    where = [place for found in zones().values() for place in found] if missing else []
    for name in missing:
        for place in where:
            answer = api.find(f"{name} in {place}", f"zones/{place.zone}/machineTypes/{name}")
            if answer:
                api.described[name] = answer
                break
    return tuple(parse(name, api.described[name]) for name in wanted if name in api.described)


def parse(name: str, answer: Json) -> MachineFacts:
    """Parse a response of https://cloud.google.com/compute/docs/reference/rest/v1/machineTypes"""
    return MachineFacts(
        name=name,
        vcpus=int(answer.get("guestCpus") or 0),
        memory_gib=int(answer.get("memoryMb") or 0) / 1024,
        accelerator=_accelerator(answer),
        arm=answer.get("architecture") == "ARM64",
        scratch_gb=_scratch_gb(name, answer),
    )


def _scratch_gb(name: str, answer: Json) -> int:
    """Size of the local SSDs that every VM of the type has.

    `bundledLocalSsds.partitionCount` of the API's discovery document; a disk has 375 GiB, in Z3
    3,000: https://cloud.google.com/compute/docs/disks/local-ssd (documented; no VM was asked)"""
    count = int((answer.get("bundledLocalSsds") or {}).get("partitionCount") or 0)
    return count * (3_000 if name.startswith("z3-") else 375) * 2**30 // 10**9


def mismatch(node: NodePlan, answer: Json) -> str | None:
    """Reason why this node cannot have its machine type; None if none is reported."""
    if not answer or node.machine is None:
        return None
    has, wanted = parse(node.machine, answer), node.accelerator
    if has.arm:
        return f"{node.machine} is an ARM machine, but cloudtrain's images are x86-64"
    if has.accelerator is not None:
        if wanted is None:
            news = catalog.is_unknown_machine("gcp", node.machine)
            return f"{node.machine} has {has.accelerator}, not none" if news else None
        if (
            not is_same_accelerator(has.accelerator.kind, wanted.kind)
            or wanted.count != has.accelerator.count
        ):
            return f"{node.machine} has {has.accelerator}, not {wanted}"
        return None
    brings = wanted is not None and not node.machine.startswith("n1-")
    if brings and has.vcpus and catalog.machine_type("gcp", node.machine) is None:
        return f"{node.machine} has no accelerator, not {wanted}"
    return None


def _accelerator(answer: Json) -> Accelerator | None:
    for each in answer.get("accelerators") or ():
        kind = canonical_name(str(each.get("guestAcceleratorType") or ""))
        return Accelerator(kind=kind, count=int(each.get("guestAcceleratorCount") or 1))
    return None


_GPUS, _TRAITS = fact_tables.rows(FOLDER, "gpus"), fact_tables.rows(FOLDER, "family_traits")
ATTACHABLE = {row["kind"]: row["attached_as"] for row in _GPUS if row["attached_as"]}
QUOTAS = {row["kind"]: row["quota"] for row in _GPUS if row["quota"]}
COMPACT = frozenset(row["family"] for row in _TRAITS if row["compact"])
FAST = frozenset(row["family"] for row in _TRAITS if row["compact"] == "fast")
PERSISTENT_DISK = frozenset(row["family"] for row in _TRAITS if row["persistent_disk"])
CPU_QUOTAS = frozenset(row["family"] for row in _TRAITS if row["cpu_quota"] == "own")
SHARED_CPU_QUOTA = frozenset(row["family"] for row in _TRAITS if row["cpu_quota"] == "shared")


@dataclass(frozen=True, kw_only=True)
class Shape:
    machine: str
    gpus: Accelerator | None = None
    attached: str | None = None
    """Accelerator type to request; None if the machine type includes its accelerators."""

    @property
    def family(self) -> str:
        return family(self.machine)

    @property
    def has_gpus(self) -> bool:
        """True if the node has GPUs, also for an unknown machine type of a GPU family."""
        return self.gpus is not None or self.bundled

    @property
    def bundled(self) -> bool:
        """True for a machine type that includes its GPUs; its vCPUs count against no CPU quota.

        https://cloud.google.com/compute/resource-usage ("To create A2 VMs, you only need to have
        the required NVIDIA A100 GPU quotas"; the same for A3, A4, A4X, G2, G4)"""
        return availability.named_for_gpus(FACTS, self.machine)

    @property
    def disk_type(self) -> str:
        older_a3 = re.match(r"a3-(high|mega|edge)gpu-", self.machine)
        serves = self.family in PERSISTENT_DISK or older_a3
        return "pd-balanced" if serves else "hyperdisk-balanced"


def shape(node: NodePlan) -> Shape:
    """The shape of a node. Raises CloudConfigError if an accelerator cannot be attached.

    The plan has already set the machine and accelerator and refused known mismatches. An unknown
    machine type is assumed to include its accelerators, as all families except n1 do."""
    machine, wanted = node.machine, node.accelerator
    if machine is None:
        raise CloudConfigError(
            "no machine type is set",
            what=node.name,
            hint=f"set it: `nodes: {{{node.role}: {{machine: n1-standard-8}}}}`",
        )
    if wanted is None or family(machine) != "n1":
        return Shape(machine=machine, gpus=wanted)
    if wanted.kind not in ATTACHABLE:
        raise CloudConfigError(
            f"{wanted} cannot be attached to {machine}",
            what=node.name,
            hint=f"n1 machines support {', '.join(ATTACHABLE)}",
        )
    return Shape(machine=machine, gpus=wanted, attached=ATTACHABLE[wanted.kind])


def family(machine: str) -> str:
    return machine.partition("-")[0]
