"""A user with an account on a stand-in that has real machines: what both hands can do."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import subprocess
from pathlib import Path
from typing import Any

from cloudtrain.core.cloud import clouds
from cloudtrain.core.model import Identity
from cloudtrain.ssh.keys import load_identity
from tests.standins.cloud import DESCRIPTIONS, Cloud
from tests.standins.nodes import Nodes
from tests.support.project import Project

READY = [
    name
    for name in (cloud.name for cloud in clouds())
    if importlib.util.find_spec(f"cloudtrain.providers.{name}")
    and importlib.util.find_spec(DESCRIPTIONS[name].at.partition(":")[0])
]

MACHINES = {"aws": "m6i.xlarge", "gcp": "n1-standard-8", "azure": "Standard_D4s_v5"}
"""Without GPUs: there are none here for the driver step to find."""

LIMIT = 400.0
"""Seconds for a command: about 30 for TensorFlow on three nodes of a quiet machine."""


@dataclasses.dataclass
class Account:
    """A user's project and an account with real machines."""

    project: Project
    cloud: Cloud
    nodes: Nodes

    def __post_init__(self) -> None:
        """What the stand-in says of its machines is not kept in this user's cache."""
        self.project.environment["CLOUDTRAIN_CACHE"] = str(self.project.folder / "cache")

    def config(
        self, *, machine: str = "", roles: dict[str, int] | None = None, **sections: Any
    ) -> Path:
        """As many nodes of each role, by default a chief and a worker."""
        described = DESCRIPTIONS[self.cloud.name]
        counts = roles or {"chief": 1, "worker": 1}
        kind = machine or MACHINES[self.cloud.name]
        nodes = {role: {"machine": kind, "count": count} for role, count in counts.items()}
        sections.setdefault("setup", {"run": ["echo ready >made"]})
        return self.project.config(
            provider=self.cloud.name,
            project=described.project or None,
            nodes=nodes,
            **{"placement": list(described.placement), **sections},
        )

    @property
    def folder(self) -> Path:
        return self.project.home / "clusters" / self.project.name

    def identity(self) -> Identity:
        return load_identity(self.folder)

    def do(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        done = self.project.cloudtrain(*arguments, timeout=LIMIT)
        assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}{self.logs()}"
        return done

    def logs(self) -> str:
        names = self.nodes.running()
        return "".join(f"\n{name}:\n{self.nodes.boot_log(name)[-2000:]}" for name in names)

    def status(self) -> list[dict[str, str]]:
        (cluster,) = json.loads(self.do("status", "--json").stdout)["clusters"]
        found: list[dict[str, str]] = cluster["nodes"]
        return found

    def status_of(self) -> list[dict[str, str]]:
        """The nodes, whatever the exit code of `status` is."""
        told = self.project.cloudtrain("status", "--json", timeout=LIMIT).stdout
        (cluster,) = json.loads(told)["clusters"]
        found: list[dict[str, str]] = cluster["nodes"]
        return found

    def openssh(self, name: str, line: str) -> str:
        """What plain `ssh` prints."""
        config = self.project.folder / "ssh_config"
        config.write_text(self.do("ssh-config", self.project.name).stdout)
        arguments = ["ssh", "-F", str(config), "-o", "BatchMode=yes", name, line]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout
