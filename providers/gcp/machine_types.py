"""Machine types as Google reports them."""

from __future__ import annotations

from collections.abc import Iterable

from cloudtrain import catalog
from cloudtrain.core.model import Accelerator, NodePlan, canonical_name, is_same_accelerator
from cloudtrain.core.protocols import MachineFacts
from cloudtrain.providers.base.driver import Location
from cloudtrain.providers.gcp.client import GcpClient, Json


def facts(
    api: GcpClient, zones: Iterable[Location], names: Iterable[str]
) -> tuple[MachineFacts, ...]:
    """The facts of each machine type, as described before, or else from the first zone that has it.
    `zones` is read only for others.
    """
    wanted = list(dict.fromkeys(names))
    missing = [name for name in wanted if name not in api.described]
    where = list(zones) if missing else []
    for name in missing:
        for zone in where:
            answer = api.find(f"{name} in {zone}", f"zones/{zone.zone}/machineTypes/{name}")
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
    3,000: https://cloud.google.com/compute/docs/disks/local-ssd (documented; no VM was asked)
    """
    count = int((answer.get("bundledLocalSsds") or {}).get("partitionCount") or 0)
    return count * (3_000 if name.startswith("z3-") else 375) * 2**30 // 10**9


def mismatch(node: NodePlan, answer: Json) -> str | None:
    """Reason for which this node cannot have its machine type; None if nothing that Google reports
    contradicts it.
    """
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
