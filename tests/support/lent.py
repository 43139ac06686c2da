"""OpenSSH servers as machines that a user has: their own key, their known_hosts, a config."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cloudtrain.core.model import ClusterConfig, Host
from tests.support.sshd import SshdNode


def lent_home(home: Path, machines: Sequence[SshdNode]) -> Path:
    """The home of a user who has logged in to each of them before."""
    ssh = home / ".ssh"
    ssh.mkdir(parents=True)
    identity = machines[0].identity
    (ssh / "known_hosts").write_text(identity.known_hosts.read_text())
    (ssh / "id_ed25519").touch(mode=0o600)
    (ssh / "id_ed25519").write_text(identity.private_key.read_text())
    return home


def hosts_config(
    machines: Sequence[SshdNode], roles: Sequence[str], name: str = "mnist"
) -> ClusterConfig:
    """The first machine has the first role, and so on."""
    return ClusterConfig(
        name=name,
        provider="hosts",
        strategy="custom",
        nodes={},
        hosts=tuple(
            Host(
                address=machine.node.address,
                port=machine.node.ssh_port,
                user=machine.node.user,
                role=role,
            )
            for machine, role in zip(machines, roles, strict=True)
        ),
    )
