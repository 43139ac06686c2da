"""What tests of the code playbook share: configs, repositories and one node to deliver to."""

from __future__ import annotations

import subprocess
from pathlib import Path

from cloudtrain.core.model import ClusterConfig, Code, NodeGroup
from cloudtrain.core.shell import Step
from cloudtrain.playbooks import folder
from cloudtrain.playbooks.apply import apply
from tests.support.nodes_here import HereTransport, Remembered, node


def config(tmp_path: Path, **section: str) -> ClusterConfig:
    return ClusterConfig(
        name="mnist",
        provider="local",
        strategy="mirrored",
        nodes={"chief": NodeGroup()},
        code=Code(**section),
        source=str(tmp_path / "mnist.yaml"),
    )


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def delivered(steps: tuple[Step, ...], tmp_path: Path) -> Path:
    transport = HereTransport(tmp_path / "nodes")
    apply(lambda _: steps, [node()], transport, Remembered())
    (only,) = filter(Path.is_dir, transport.home(node()).glob(".cloudtrain/mnist/code/*"))
    return only


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "tag.gpgSign=false"]
    protocol = ["-c", "protocol.file.allow=always", "-c", "init.defaultBranch=master"]
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *protocol, *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def names(tmp_path: Path, path: str = "src") -> list[str]:
    return [entry.path for entry in folder.listing(config(tmp_path), tmp_path / path).entries]
