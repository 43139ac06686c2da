"""Open connections of one node and its control shell, created on demand."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from cloudtrain.core.errors import HostKeyMismatch, NodeUnreachable
from cloudtrain.core.model import Node
from cloudtrain.ssh import tcp
from cloudtrain.ssh.proxy_process import ProxySocket, Turn
from cloudtrain.ssh.ssh_proxy import ProxyFailed
from cloudtrain.ssh.ssh_words import in_words

if TYPE_CHECKING:
    import paramiko

    from cloudtrain.ssh.connection import SshConnection
    from cloudtrain.ssh.control_shell import ControlShell

_MOST_CONNECTIONS = 8


class ConnectionPool:
    """Connection pool for one node. Thread-safe.

    Opens one connection, and more only when the server allows no further sessions on the open ones
    (OpenSSH's MaxSessions is 10 by default).
    """

    def __init__(
        self,
        node: Node,
        pinned: tuple[str, ...],
        key: Callable[[], paramiko.PKey],
        timeout: float,
    ) -> None:
        self._node = node
        self._pinned = pinned
        self._key = key
        self._timeout = timeout
        self._lock = threading.Lock()
        self._connections: dict[int, SshConnection] = {}
        self._connecting: tcp.TunedSocket | ProxySocket | Turn | None = None
        self._proxy: ProxySocket | None = None
        self._shell_lock = threading.Lock()
        self._shell: ControlShell | None = None
        self._closed = False

    def session(self) -> paramiko.Channel:
        """Open a session. Raises NodeUnreachable, HostKeyMismatch."""
        for number in range(_MOST_CONNECTIONS):
            channel = self._session(number)
            if channel is not None:
                return channel
        raise NodeUnreachable(
            self._node.name,
            "SSH connects but does not open a session",
            hint="the node may be out of memory or processes, or its sshd forbids commands",
        )

    def shell(self) -> ControlShell:
        """The node's control shell. Raises NodeUnreachable, HostKeyMismatch."""
        with self._shell_lock:
            if self._shell is None or not self._shell.alive:
                channel = self.session()
                from cloudtrain.ssh.connection import BROKEN
                from cloudtrain.ssh.control_shell import ControlShell

                try:
                    self._shell = ControlShell(channel)
                except BROKEN as error:
                    raise self._unreachable(
                        f"SSH disconnected: {in_words(error)}", _GONE_HINT
                    ) from error
            return self._shell

    def proxy_words(self) -> str:
        """What the command of `network.ssh_proxy` has said last, in brackets; "" for nothing."""
        words = self._proxy.last_words() if self._proxy is not None else ""
        return f" ({words})" if words else ""

    def close(self) -> None:
        """Close everything. Takes no lock: a connecting thread holds it, and is woken by this."""
        self._closed = True
        connecting = self._connecting
        if connecting is not None:
            connecting.close()
        for connection in tuple(self._connections.values()):
            connection.close()

    def _session(self, number: int) -> paramiko.Channel | None:
        """Open a session on connection `number`; None if the server refuses it.

        If an old connection turns out to be dead, a new one replaces it, as nothing was sent to the
        node yet.
        """
        while True:
            connection, fresh = self._connected(number)
            from cloudtrain.ssh.connection import BROKEN, ChannelRefused

            try:
                return connection.session()
            except ChannelRefused:
                return None
            except BROKEN as error:
                connection.close()
                if fresh or self._closed:
                    raise self._unreachable(
                        f"SSH disconnected: {in_words(error)}", _GONE_HINT
                    ) from error

    def _connected(self, number: int) -> tuple[SshConnection, bool]:
        """Return connection `number`, and whether it was opened just now."""
        with self._lock:
            connection = self._connections.get(number)
            if connection is not None and connection.alive:
                return connection, False
            if self._closed:
                raise self._unreachable("the connections were closed", None)
            connection = self._connections[number] = self._connect()
            return connection, True

    def _connect(self) -> SshConnection:
        node, timeout = self._node, self._timeout
        if not self._pinned:
            raise HostKeyMismatch(
                node.name,
                "no host key is pinned for this node, so whoever answers cannot be trusted",
                hint="run `cloudtrain up` to create the keys of every node",
            )
        self._connecting = opened = self._dial()
        # Imported only now, while the server sets up its side of the connection.
        from cloudtrain.ssh.connection import BROKEN, SshConnection

        try:
            if self._closed:
                raise self._unreachable("the connections were closed", None)
            return SshConnection(
                node, opened, pinned=self._pinned, key=self._key(), timeout=timeout
            )
        except BROKEN as error:
            if isinstance(opened, ProxySocket) and opened.has_ended():
                raise self._no_proxy(opened.failure()) from error
            raise self._unreachable(
                f"something answers at {node.address}:{node.ssh_port} but the SSH handshake "
                f"failed: {in_words(error)}",
                "the node may still be starting, or be too busy to accept logins",
            ) from error
        except BaseException:
            opened.close()
            raise
        finally:
            self._connecting = None

    def _through_proxy(self) -> ProxySocket:
        turn = self._connecting = Turn()
        try:
            with turn:
                opened = self._connecting = self._proxy = ProxySocket(self._node.ssh_proxy)
                if self._closed:
                    opened.close()
                opened.await_answer()
                return opened
        except ProxyFailed as error:
            if isinstance(self._connecting, ProxySocket):
                self._connecting.close()
            raise self._no_proxy(error) from error

    def _no_proxy(self, error: ProxyFailed) -> NodeUnreachable:
        found = self._unreachable(error.text, error.hint or _GONE_HINT)
        return found.copy_with(lasting=True, exit_code=4) if error.lasting else found

    def _dial(self) -> tcp.TunedSocket | ProxySocket:
        if self._node.ssh_proxy:
            return self._through_proxy()
        node = self._node
        place = f"{node.address}:{node.ssh_port}"
        try:
            return tcp.connect(node.address, node.ssh_port, self._timeout)
        except ConnectionRefusedError as error:
            raise self._unreachable(
                f"nothing listens for SSH at {place} (connection refused)", _GONE_HINT
            ) from error
        except TimeoutError as error:
            raise self._unreachable(
                f"no answer from {place} within {self._timeout:g} s",
                "a firewall, a VPN or `network.ssh_from` may block it, or the node is gone: "
                "check with `cloudtrain status`",
            ) from error
        except socket.gaierror as error:
            raise self._unreachable(
                f"its address {node.address!r} cannot be resolved: {error.strerror}", _GONE_HINT
            ) from error
        except OSError as error:
            raise self._unreachable(
                f"no connection to {place}: {error.strerror or error}", _GONE_HINT
            ) from error

    def _unreachable(self, what: str, hint: str | None) -> NodeUnreachable:
        return NodeUnreachable(self._node.name, what, hint=hint)


_GONE_HINT = "the node may be starting, stopped or gone: check with `cloudtrain status`"
