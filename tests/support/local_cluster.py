"""A real local cluster for tests: made in a folder of its own, reached by paramiko and OpenSSH."""

from __future__ import annotations

import socket
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import paramiko
import pytest

from cloudtrain.core.model import Identity, Node, Plan
from cloudtrain.providers.local.provider import LocalProvider
from tests.support import processes
from tests.support.fakes import know_hosts, make_identity, make_plan, no_journal
from tests.support.ports import free_ports


@dataclass
class LocalCluster:
    provider: LocalProvider
    plan: Plan
    identity: Identity
    home: Path
    nodes: tuple[Node, ...] = ()

    @property
    def name(self) -> str:
        return self.plan.config.name

    def tag(self, node: str = "") -> str:
        return self.provider._tag(self.name, node)

    def folder(self, node: Node) -> Path:
        return self.home / "local" / self.name / node.name

    def pid(self, node: Node, inside: int) -> int:
        """The process here that has this number on the node."""
        return processes.here(inside, self.tag(node.name))

    def create(self) -> tuple[Node, ...]:
        self.nodes = self.provider.create(self.plan, self.identity, no_journal)
        know_hosts(self.identity, self.nodes)
        return self.nodes

    def destroy(self) -> None:
        self.provider.destroy(self.name, no_journal)

    def connect(self, node: Node, **changes: object) -> paramiko.SSHClient:
        """paramiko never sets NODELAY itself, and then each packet waits for the last one's ACK."""
        client = paramiko.SSHClient()
        client.load_host_keys(str(self.identity.known_hosts))
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        connection = socket.create_connection((node.address, node.ssh_port), timeout=20)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        options: dict[str, object] = {
            "sock": connection,
            "hostname": node.address,
            "port": node.ssh_port,
            "username": node.user,
            "key_filename": str(self.identity.private_key),
            "allow_agent": False,
            "look_for_keys": False,
            "timeout": 20,
        }
        client.connect(**{**options, **changes})  # type: ignore[arg-type]
        return client

    def options(self) -> list[str]:
        """For OpenSSH's ssh, scp and sftp: this cluster's key and host keys, nothing else."""
        return [
            *("-F", "/dev/null"),
            *("-i", str(self.identity.private_key)),
            *("-o", "IdentitiesOnly=yes"),
            *("-o", "BatchMode=yes"),
            *("-o", "StrictHostKeyChecking=yes"),
            *("-o", f"UserKnownHostsFile={self.identity.known_hosts}"),
            *("-o", "GlobalKnownHostsFile=/dev/null"),
        ]

    def ssh(
        self, node: Node, command: str, *extra: str, **run: object
    ) -> subprocess.CompletedProcess[bytes]:
        arguments = ["ssh", *self.options(), *extra, *self.place(node, "-p"), command]
        defaults: dict[str, object] = {"capture_output": True, "timeout": 60}
        if "input" not in run:
            defaults["stdin"] = subprocess.DEVNULL
        return subprocess.run(arguments, **{**defaults, **run})  # type: ignore[call-overload]

    def place(self, node: Node, port_option: str) -> list[str]:
        return [port_option, str(node.ssh_port), f"{node.user}@{node.address}"]


def local_cluster(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    name: str = "mnist",
    workers: int = 0,
    port: int | None = None,
) -> LocalCluster:
    """Not yet created. The homes have a space and a letter that is not ASCII, as homes may.

    Tasks' ports count up from `port`; without it they are this test's own.
    """
    home = folder / "státe home"
    plan = make_plan(name, workers=workers)
    first = free_ports(16) if port is None else port
    nodes = (replace(node, port=first + number) for number, node in enumerate(plan.nodes))
    plan = replace(plan, nodes=tuple(nodes))
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(home))
    monkeypatch.setenv("CLOUDTRAIN_CACHE", str(folder / "cache"))
    from cloudtrain.providers.local import provider

    return LocalCluster(provider.provider(plan.config), plan, make_identity(folder, plan), home)
