"""Bandwidth between the nodes of a cluster, by each cloud's table of machines."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

from cloudtrain.core.cloud import cloud_of
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.model import Plan


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """Gbit/s of one node to the others, as its cloud states it."""

    gbits: float
    up_to: bool
    """True if it is a maximum, or for a short while only."""


def bandwidth(provider: str, machine: str | None, *, private: bool) -> Bandwidth | None:
    """Bandwidth of a node of this machine type; None if not known. `private`: whether nodes have no
    public address, so that they get all network cards of their machine (AWS)."""
    cloud = cloud_of(provider)
    path = cloud.machines.with_name("bandwidth.csv") if cloud and machine else None
    row = _table(path).get((machine or "").lower()) if path else None
    if row is None:
        return None
    every = row["all_cards"] if private else ""
    return Bandwidth(gbits=float(every or row["gbits"]), up_to=row["up_to"] == "yes")


def between_nodes(plan: Plan) -> dict[str, Bandwidth]:
    """Known bandwidths by machine type; empty for a single node."""
    if len(plan.nodes) < 2:
        return {}
    private = plan.config.network.private
    found = {
        node.machine: bandwidth(plan.config.provider, node.machine, private=private)
        for node in plan.nodes
        if node.machine
    }
    return {machine: known for machine, known in found.items() if known}


@cache
def _table(path: Path) -> dict[str, dict[str, str]]:
    if not path.exists():
        return {}
    lines = path.read_text("utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return {row["machine"].lower(): row for row in rows}
