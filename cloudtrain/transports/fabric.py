"""Fabric connections for `fab` tasks: the same pinned host keys and tuned socket as ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fabric
import paramiko

from cloudtrain.errors import HostKeyMismatch, NodeUnreachable
from cloudtrain.model import Identity, Node
from cloudtrain.transports import tcp


def connection(
    node: Node, identity: Identity, *, connect_timeout: float = 10.0
) -> fabric.Connection:
    """Not open yet. Only host keys in the cluster's known_hosts are accepted (`keys.pin`).

    Fabric's `env=` joins values unquoted (fabric#2364): pass values with `shell.command`.
    """
    opened = _PinnedConnection(
        node.address,
        user=node.user,
        port=node.ssh_port,
        connect_timeout=connect_timeout,
        # An SSHConfig of its own keeps Fabric from reading ~/.ssh/config.
        config=fabric.Config(ssh_config=paramiko.SSHConfig()),
        connect_kwargs={
            "pkey": paramiko.Ed25519Key.from_private_key_file(str(identity.private_key)),
            "allow_agent": False,
            "look_for_keys": False,
        },
    )
    opened.pin(node.name, identity.known_hosts)
    return opened


class _PinnedConnection(fabric.Connection):  # type: ignore[misc]  # fabric has no types
    """Fabric itself accepts the key of whoever answers."""

    def pin(self, name: str, known_hosts: Path) -> None:
        self._set(_name=name)
        self.client.set_missing_host_key_policy(paramiko.RejectPolicy())
        if known_hosts.exists():
            self.client.load_host_keys(str(known_hosts))

    def open(self) -> Any:
        """Raises NodeUnreachable, HostKeyMismatch."""
        if self.is_connected:
            return None
        try:
            socket = tcp.connect(self.host, self.port, self.connect_timeout)
            self.connect_kwargs["sock"] = socket
            return super().open()
        except paramiko.BadHostKeyException as error:
            raise self._mismatch("its host key is not the one that was put on the node") from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            if "known_hosts" in str(error):
                raise self._mismatch("no key is pinned for it") from error
            raise NodeUnreachable(self._name, f"no SSH connection: {error}") from error

    def _mismatch(self, why: str) -> HostKeyMismatch:
        return HostKeyMismatch(
            self._name,
            f"another machine answers at {self.host}:{self.port}: {why}",
            hint="`cloudtrain status` asks the provider for the node's present address",
        )
