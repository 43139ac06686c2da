"""Checks that all data of a config fits the disks of its nodes, as far as they are known before."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import platformdirs

from cloudtrain.catalog import machine_type
from cloudtrain.core.cloud import cloud_of, facts_of
from cloudtrain.core.model import NodePlan, Plan
from cloudtrain.datasets.dataset import DataFile

GB = 10**9

SYSTEM_GB, GPU_SYSTEM_GB = 6, 25
"""GB that are never free for data, at the least: Ubuntu and TensorFlow for CPUs; with NVIDIA's
driver, TensorFlow with CUDA and its downloads (`playbooks/base.ROOM_GB`)."""

Parts = Mapping[str, Sequence[Sequence[DataFile]]]
"""By dataset: the files of each node, in the plan's order."""


def too_small(plan: Plan, parts: Parts) -> tuple[str, ...]:
    """A sentence for each role, or this machine, whose disk cannot hold its data. Machines of
    `hosts:` are not known here, nor, before `check` or `up` has asked, local disks that a cloud's
    machine may have besides its root disk: nodes look at these before they download."""
    wanted = [
        sum(file.size for split in parts.values() for file in split[number])
        for number in range(len(plan.nodes))
    ]
    if facts_of(plan.config.provider).on_this_machine:
        return _on_this_machine(parts)
    found: dict[str, str] = {}
    for node, size in zip(plan.nodes, wanted, strict=True):
        room = _room(plan, node)
        if room is not None and size > room * GB and node.role not in found:
            enough = -(-size // GB) + _system(node) + 10
            found[node.role] = (
                f"nodes.{node.role}: {size / GB:,.1f} GB of data do not fit "
                f"{_disks(plan, node)}: set disk_gb to {enough:,} or more"
            )
    return tuple(found.values())


def _disks(plan: Plan, node: NodePlan) -> str:
    scratch = _scratch(plan, node)
    local = f", nor its local disks of {scratch} GB" if scratch else ""
    system = f"of which the system takes {_system(node)} or more"
    return f"its disk of {_disk(plan, node)} GB, {system}{local}"


def _room(plan: Plan, node: NodePlan) -> int | None:
    """GB for data on one disk of a rented node; None if its disks are not known."""
    disk, scratch = _disk(plan, node), _scratch(plan, node)
    if disk is None or scratch is None:
        return None
    return max(disk - _system(node), scratch)


def _disk(plan: Plan, node: NodePlan) -> int | None:
    cloud = cloud_of(plan.config.provider)
    default = cloud and (cloud.gpu_disk_gb if node.accelerator else cloud.disk_gb)
    return node.disk_gb or default or None


def _scratch(plan: Plan, node: NodePlan) -> int | None:
    """GB of local disks that images mount, all together; None if that is not known."""
    cloud, machine = cloud_of(plan.config.provider), node.machine or ""
    local = cloud.scratch_machines if cloud else ""
    if not local or not re.fullmatch(local, machine, re.IGNORECASE):
        return 0
    known = machine_type(plan.config.provider, machine)
    return known.scratch_gb if known else None


def _system(node: NodePlan) -> int:
    return GPU_SYSTEM_GB if node.accelerator else SYSTEM_GB


def _on_this_machine(parts: Parts) -> tuple[str, ...]:
    """Compare all files, which the nodes here share, with the whole disk: how much of the data is
    there already is seen only by a run."""
    files = {(name, each.path): each.size for name, n in parts.items() for p in n for each in p}
    size = sum(files.values())
    folder = Path(os.environ.get("CLOUDTRAIN_CACHE") or platformdirs.user_cache_path("cloudtrain"))
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    disk = shutil.disk_usage(folder).total
    if size <= disk:
        return ()
    return (f"{size / GB:,.1f} GB of data do not fit this machine's disk of {disk / GB:,.1f} GB",)
