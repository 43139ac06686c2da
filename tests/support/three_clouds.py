"""A user with an account on each of the three stand-ins, all with real nodes."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.standins.cloud import DESCRIPTIONS, Cloud, running
from tests.standins.nodes import Nodes
from tests.support.cloud_user import LIMIT, MACHINES, READY
from tests.support.project import Project

PLACES = {"gcp": "us-central1-a", "aws": "us-east-1a", "azure": "eastus"}
"""One place each: m6i.xlarge, 0.192 $/hour by the packaged table, Standard_D4s_v5, the same,
n1-standard-8, 0.38 $/hour."""
DISK_GB = 60
"""Costs 4.80 $ a month on AWS and Azure, so that both have the same price."""
NO_ROOM: dict[str, dict[str, int]] = {
    "gcp": {"*": 0},
    "aws": {"m6i.xlarge us-east-1a": 0},
    "azure": {"*": 0},
}


@dataclass
class ThreeClouds:
    project: Project
    clouds: dict[str, Cloud]
    nodes: dict[str, Nodes]

    def config(self, names: Sequence[str] = READY, *, field: str = "any_of", **more: Any) -> Path:
        """A chief and a worker, in any of these clouds."""
        candidates = [
            {
                "provider": name,
                "placement": [PLACES[name]],
                **({"project": project} if (project := DESCRIPTIONS[name].project) else {}),
                "nodes": {
                    role: {"machine": MACHINES[name], "disk_gb": DISK_GB}
                    for role in ("chief", "worker")
                },
            }
            for name in names
        ]
        sections = {"setup": {"run": ["echo ready >made"]}, field: candidates, **more}
        path = self.project.config(**sections)
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("provider: local\n", "", 1), encoding="utf-8")
        return path

    def fill(self, *names: str) -> None:
        """These clouds have no capacity; all others have."""
        for name, cloud in self.clouds.items():
            cloud.set(capacity=NO_ROOM[name] if name in names else {})

    def do(self, *arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = self.project.cloudtrain(*arguments, timeout=LIMIT)
        assert done.returncode == code, f"{done.args}\n{done.stdout}\n{done.stderr}"
        return done

    def status(self) -> dict[str, Any]:
        (cluster,) = json.loads(self.do("status", "--json").stdout)["clusters"]
        assert isinstance(cluster, dict)
        return cluster

    def holding(self) -> dict[str, int]:
        """How many things each cloud has of the cluster; only those that have any."""
        counts = {name: len(cloud.holdings()) for name, cloud in self.clouds.items()}
        return {name: count for name, count in counts.items() if count}


@contextlib.contextmanager
def three_clouds(folder: Path) -> Iterator[ThreeClouds]:
    project = Project(folder / "user's project")
    project.environment["CLOUDTRAIN_CACHE"] = str(folder / "cache")
    project.limits = {
        "NODE_LISTED": 3.0,
        "cluster.place_choice.ROUNDS": 2.0,
        "runs.node_replacement.REQUESTS": 2.0,
    }
    with contextlib.ExitStack() as stack:
        nodes = {name: stack.enter_context(Nodes()) for name in READY}
        clouds = {name: stack.enter_context(running(name, nodes=nodes[name])) for name in READY}
        for cloud in clouds.values():
            project.environment.update(cloud.environment)
        yield ThreeClouds(project, clouds, nodes)
