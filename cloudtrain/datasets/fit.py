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
        disk, scratch, system = _disks(plan, node)
        if disk is None or scratch is None or node.role in found:
            continue
        if size > max(disk - system, scratch) * GB:
            local = f", nor its local disks of {scratch} GB" if scratch else ""
            found[node.role] = (
                f"nodes.{node.role}: {size / GB:,.1f} GB of data do not fit its disk of {disk} GB, "
                f"of which the system takes {system} or more{local}: "
                f"set disk_gb to {-(-size // GB) + system + 10:,} or more"
            )
    return tuple(found.values())


def _disks(plan: Plan, node: NodePlan) -> tuple[int | None, int | None, int]:
    """GB of a rented node's disk, of all local disks that images mount, and of what is never free;
    None for what is not known."""
    cloud, machine = cloud_of(plan.config.provider), node.machine or ""
    default = cloud and (cloud.gpu_disk_gb if node.accelerator else cloud.disk_gb)
    local = cloud.scratch_machines if cloud else ""
    scratch: int | None = 0
    if local and re.fullmatch(local, machine, re.IGNORECASE):
        listed = machine_type(plan.config.provider, machine)
        scratch = listed.scratch_gb if listed else None
    system = GPU_SYSTEM_GB if node.accelerator else SYSTEM_GB
    return node.disk_gb or default or None, scratch, system


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
