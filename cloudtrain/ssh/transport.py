"""Transport over SSH: one tuned connection per node, kept open and reopened if it breaks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from cloudtrain.core.errors import CredentialsError, HostKeyMismatch, NodeError, NodeUnreachable
from cloudtrain.core.model import Identity, Node
from cloudtrain.core.protocols import Completed, Transport
from cloudtrain.core.retry import AWAY, CLOCK, Clock, Retry
from cloudtrain.core.shell import AnswerMark, Command
from cloudtrain.core.ship import text_of
from cloudtrain.ssh.sockets import ProxySocket, TunedSocket, Turn
from cloudtrain.ssh.ssh_proxy import ProxyFailed, in_words

if TYPE_CHECKING:
    import paramiko

    from cloudtrain.ssh.channel_io import ControlShell
    from cloudtrain.ssh.connection import SshConnection
    from cloudtrain.ssh.resident import Resident

T = TypeVar("T")


class SshTransport:
    """Transport that accepts only the host keys of `identity`. `connect_timeout` in seconds."""

    def __init__(self, identity: Identity, *, connect_timeout: float = 10.0) -> None:
        self._identity = identity
        self._pins = {name: key.pins for name, key in identity.host_keys.items()}
        self._connect_timeout = connect_timeout
        self._lock = threading.Lock()
        self._key_lock = threading.Lock()
        self._key_read: paramiko.PKey | None = None
        self._links: dict[tuple[object, ...], ConnectionPool] = {}
        self._closed = False

    def __enter__(self) -> SshTransport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self,
        node: Node,
        command: Command,
        *,
        stdin: bytes | Iterable[bytes] = b"",
        on_stdout: Callable[[bytes], None] | None = None,
        on_stderr: Callable[[bytes], None] | None = None,
        timeout: float | None = None,
    ) -> Completed:
        """Same as Transport.run. Never tried again if the connection breaks: it may have run."""
        link, program = self._link(node), text_of(command)
        if program:
            return self._run_program(
                node, link, command, program, stdin, on_stdout, on_stderr, timeout
            )
        channel = self._opened(link.session)
        from cloudtrain.ssh.channel_io import pump_channel

        mark, line = AnswerMark(), f"exec {command.shell()}"
        out = mark.stripping(on_stdout) if on_stdout is not None else None
        err = mark.stripping(on_stderr) if on_stderr is not None else None
        silent = f"no data from the node for {timeout or 0:g} s while `{_short(line)}` ran"
        with _failures_on(node, link, line, silent=silent, broken=f"while `{_short(line)}` ran"):
            done = pump_channel(
                channel,
                # No shell stays between us and its exit code or signal.
                f"exec {mark.before(command).shell()}",
                stdin=stdin,
                on_stdout=out,
                on_stderr=err,
                timeout=timeout,
            )
        for output in (out, err):
            if output is not None:
                output.end()
        stdout, stderr = mark.strip(done.stdout), mark.strip(done.stderr)
        return Completed(exit_code=done.exit_code, stdout=stdout, stderr=stderr)

    def _run_program(
        self,
        node: Node,
        link: ConnectionPool,
        command: Command,
        program: tuple[str, ...],
        stdin: bytes | Iterable[bytes],
        on_stdout: Callable[[bytes], None] | None,
        on_stderr: Callable[[bytes], None] | None,
        timeout: float | None,
    ) -> Completed:
        """Run a program for the node's Python in the one that runs there already."""
        line = f"exec {command.shell()}"
        resident = self._opened(link.resident)
        silent = f"no data from the node for {timeout or 0:g} s while `{_short(line)}` ran"
        with _failures_on(node, link, line, silent=silent, broken=f"while `{_short(line)}` ran"):
            done = resident.run(
                program, stdin=stdin, on_stdout=on_stdout, on_stderr=on_stderr, timeout=timeout
            )
        link.give_back(resident)
        return done

    def ask(self, node: Node, script: str, *, timeout: float = 30.0) -> Completed:
        """Same as Transport.ask. Background children of the script must not keep its outputs."""
        link = self._link(node)
        shell = self._opened(link.shell)
        from cloudtrain.ssh.channel_io import StaleShell

        silent = f"no answer within {timeout:g} s to `{_short(script)}`"
        broken = f"before `{_short(script)}` was answered"
        with _failures_on(node, link, script, silent=silent, broken=broken):
            while True:
                try:
                    return shell.ask(script, timeout)
                except StaleShell:
                    shell = link.shell()

    def _opened(self, open_one: Callable[[], T]) -> T:
        try:
            return open_one()
        except NodeUnreachable as error:
            raise error.copy_with(began=self._closed) from error.__cause__

    def trust(self, node: str, host_keys: tuple[str, ...]) -> None:
        """Same as HostKeys.trust."""
        with self._lock:
            self._pins[node] = host_keys
            changed = [self._links.pop(key) for key in tuple(self._links) if key[0] == node]
        for link in changed:
            link.close()

    def close(self) -> None:
        """Close at once; calls that other threads wait for end with NodeUnreachable."""
        with self._lock:
            self._closed = True
            links = tuple(self._links.values())
        for link in links:
            link.close()

    def _link(self, node: Node) -> ConnectionPool:
        key = (node.name, node.address, node.ssh_port, node.user, node.ssh_proxy)
        with self._lock:
            if self._closed:
                raise NodeUnreachable(node.name, "the connections were closed")
            link = self._links.get(key)
            if link is None:
                pinned = node.host_keys or self._pins.get(node.name, ())
                link = self._links[key] = ConnectionPool(
                    node, pinned, self._key, self._connect_timeout
                )
            return link

    def _key(self) -> paramiko.PKey:
        """The cluster's key, read and parsed once for all nodes."""
        from cloudtrain.ssh.connection import BROKEN, load_key

        with self._key_lock:
            if self._key_read is None:
                try:
                    self._key_read = load_key(self._identity.private_key)
                except BROKEN as error:
                    raise CredentialsError(
                        f"the cluster's key {self._identity.private_key} cannot be read: {error}",
                        hint="run `cloudtrain up` to recreate a missing key",
                    ) from error
            return self._key_read


@contextmanager
def _failures_on(
    node: Node, link: ConnectionPool, line: str, *, silent: str, broken: str
) -> Iterator[None]:
    """Raise what a channel raises as an error on the node that `line` ran on."""
    from cloudtrain.ssh.channel_io import MOST, ChannelEnded, ChannelSilent, TooMuch

    try:
        yield
    except TooMuch:
        raise NodeError(
            node.name,
            f"its answer to `{_short(line)}` exceeds {MOST >> 20} MB",
            hint="inspect the node with `cloudtrain ssh`",
        ) from None
    except ChannelSilent:
        raise NodeUnreachable(
            node.name,
            silent,
            hint="the node may be frozen, overloaded or cut off: check with `cloudtrain status`",
        ) from None
    except ChannelEnded as error:
        raise NodeUnreachable(
            node.name,
            f"{error}{link.proxy_words()} {broken}",
            hint="it is unknown how far the command got: check the node with `cloudtrain status`, "
            "then run the command again",
        ) from None


def _short(line: str) -> str:
    first = line.strip().partition("\n")[0]
    return line.strip() if len(line.strip()) <= 80 and first == line.strip() else f"{first[:77]}..."


# ── connections of one node ────────────────────────────────────────────────────


_MOST_CONNECTIONS = 8
_GONE_HINT = "the node may be starting, stopped or gone: check with `cloudtrain status`"


class ConnectionPool:
    """Connection pool for one node. Thread-safe. Opens one connection, and more only when the
    server allows no further sessions on the open ones (OpenSSH's MaxSessions is 10 by default)."""

    def __init__(
        self, node: Node, pinned: tuple[str, ...], key: Callable[[], paramiko.PKey], timeout: float
    ) -> None:
        self._node, self._timeout = node, timeout
        self._pinned, self._key = pinned, key
        self._lock = threading.Lock()
        self._connections: dict[int, SshConnection] = {}
        self._connecting: TunedSocket | ProxySocket | Turn | None = None
        self._proxy: ProxySocket | None = None
        self._shell_lock = threading.Lock()
        self._shell: ControlShell | None = None
        self._residents: list[Resident] = []
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
                from cloudtrain.ssh.channel_io import ControlShell
                from cloudtrain.ssh.connection import BROKEN

                try:
                    self._shell = ControlShell(channel)
                except BROKEN as error:
                    raise self._unreachable(f"SSH disconnected: {in_words(error)}") from error
            return self._shell

    def resident(self) -> Resident:
        """A Python that waits for a program. Raises NodeUnreachable, HostKeyMismatch."""
        with self._lock:
            waiting, self._residents = self._residents, []
            free = [each for each in waiting if each.is_free]
            self._residents = free[:-1]
        if free:
            return free[-1]
        channel = self.session()
        from cloudtrain.ssh.connection import BROKEN
        from cloudtrain.ssh.resident import Resident

        try:
            return Resident(channel)
        except BROKEN as error:
            raise self._unreachable(f"SSH disconnected: {in_words(error)}") from error

    def give_back(self, resident: Resident) -> None:
        """Keep it for the next program, or end it if it cannot run one, or one is kept already."""
        with self._lock:
            if resident.is_free and not self._residents:
                self._residents.append(resident)
                return
        resident.close()

    def proxy_words(self) -> str:
        """Last message of the command of `network.ssh_proxy`, in brackets; "" for nothing."""
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
        """Open a session on connection `number`; None if the server refuses it. A new connection
        replaces an old one that turns out to be dead, as nothing was sent to the node yet."""
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
                    raise self._unreachable(f"SSH disconnected: {in_words(error)}") from error

    def _connected(self, number: int) -> tuple[SshConnection, bool]:
        """Connection `number`, and whether it was opened just now."""
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

    def _dial(self) -> TunedSocket | ProxySocket:
        if self._node.ssh_proxy:
            return self._through_proxy()
        node = self._node
        target = f"{node.address}:{node.ssh_port}"
        try:
            address = node.address, node.ssh_port
            return TunedSocket(socket.create_connection(address, self._timeout))
        except ConnectionRefusedError as error:
            raise self._unreachable(
                f"nothing listens for SSH at {target} (connection refused)"
            ) from error
        except TimeoutError as error:
            raise self._unreachable(
                f"no answer from {target} within {self._timeout:g} s",
                "a firewall, a VPN or `network.ssh_from` may block it, or the node is gone: "
                "check with `cloudtrain status`",
            ) from error
        except socket.gaierror as error:
            raise self._unreachable(
                f"its address {node.address!r} cannot be resolved: {error.strerror}"
            ) from error
        except OSError as error:
            raise self._unreachable(
                f"no connection to {target}: {error.strerror or error}"
            ) from error

    def _unreachable(self, what: str, hint: str | None = _GONE_HINT) -> NodeUnreachable:
        return NodeUnreachable(self._node.name, what, hint=hint)


# ── Transport that retries connections to a node that refuses logins for a moment ─────────────


class RetryingTransport:
    """Runs a command as soon as a connection can be opened; connecting is retried as `away` allows,
    and a node that stayed away all that time is tried once for each further command; so is one that
    its provider could not reach either.

    Never runs it twice: a connection that breaks after the command was sent is an error at once.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        away: Retry = AWAY,
        waits: Callable[[str], None] = lambda text: None,
        clock: Clock = CLOCK,
    ) -> None:
        """`waits` is called, once for each node, with the reason for waiting."""
        self._transport, self._away, self._waits = transport, away, waits
        self._clock = clock
        self._reported: set[str] = set()
        self._given_up: set[str] = set()

    def run(self, node: Node, command: Command, **options: Any) -> Completed:
        return self._once_connected(node, lambda: self._transport.run(node, command, **options))

    def ask(self, node: Node, script: str, *, timeout: float = 30.0) -> Completed:
        return self._once_connected(
            node, lambda: self._transport.ask(node, script, timeout=timeout)
        )

    def close(self) -> None:
        self._transport.close()

    def _once_connected(self, node: Node, work: Callable[[], Completed]) -> Completed:
        def report(error: NodeUnreachable, *_: float) -> None:
            if node.name not in self._reported:
                self._reported.add(node.name)
                self._waits(f"{error.message}: retrying for up to {self._away.within:.0f} s")

        once = node.name in self._given_up or node.state == "unknown"
        try:
            done = self._away.call(
                work,
                on=NodeUnreachable,
                unless=lambda error: error.began or error.lasting or once,
                before_pause=report,
                clock=self._clock,
            )
        except NodeUnreachable as error:
            if not error.began:
                self._given_up.add(node.name)
            raise
        self._given_up.discard(node.name)
        return done
