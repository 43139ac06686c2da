"""Transport over SSH: one tuned connection per node, kept open and reopened if it breaks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from cloudtrain.core.answer_mark import AnswerMark
from cloudtrain.core.errors import CredentialsError, NodeError, NodeUnreachable
from cloudtrain.core.model import Identity, Node
from cloudtrain.core.protocols import Completed
from cloudtrain.core.shell import Command
from cloudtrain.ssh.connection_pool import ConnectionPool

if TYPE_CHECKING:
    import paramiko


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
        """Same as Transport.run. Never retried if the connection breaks, as the command may have
        run.
        """
        link = self._link(node)
        try:
            channel = link.session()
        except NodeUnreachable as error:
            raise error.copy_with(began=self._closed) from error.__cause__
        from cloudtrain.ssh.channel_io import ChannelEnded, ChannelSilent, TooMuch, pump_channel

        mark, line = AnswerMark(), f"exec {command.shell()}"
        out = mark.stripping(on_stdout) if on_stdout is not None else None
        err = mark.stripping(on_stderr) if on_stderr is not None else None
        try:
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
        except TooMuch:
            raise _too_much(node, line) from None
        except ChannelSilent:
            raise NodeUnreachable(
                node.name,
                f"no data from the node for {timeout:g} s while `{_short(line)}` ran",
                hint=_SILENT_HINT,
            ) from None
        except ChannelEnded as error:
            what = f"{error}{link.proxy_words()} while `{_short(line)}` ran"
            raise _broken(node, what) from None

    def ask(self, node: Node, script: str, *, timeout: float = 30.0) -> Completed:
        """Same as Transport.ask. The script reads nothing, and its background children must not
        keep its outputs.
        """
        link = self._link(node)
        try:
            shell = link.shell()
        except NodeUnreachable as error:
            raise error.copy_with(began=self._closed) from error.__cause__
        from cloudtrain.ssh.channel_io import ChannelEnded, ChannelSilent, TooMuch
        from cloudtrain.ssh.control_shell import StaleShell

        try:
            while True:
                try:
                    return shell.ask(script, timeout)
                except StaleShell:
                    shell = link.shell()
        except TooMuch:
            raise _too_much(node, script) from None
        except ChannelSilent:
            raise NodeUnreachable(
                node.name,
                f"no answer within {timeout:g} s to `{_short(script)}`",
                hint=_SILENT_HINT,
            ) from None
        except ChannelEnded as error:
            what = f"{error}{link.proxy_words()} before `{_short(script)}` was answered"
            raise _broken(node, what) from None

    def trust(self, node: str, host_keys: tuple[str, ...]) -> None:
        """Same as HostKeys.trust."""
        with self._lock:
            self._pins[node] = host_keys
            changed = [self._links.pop(place) for place in tuple(self._links) if place[0] == node]
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
        place = (node.name, node.address, node.ssh_port, node.user, node.ssh_proxy)
        with self._lock:
            if self._closed:
                raise NodeUnreachable(node.name, "the connections were closed")
            link = self._links.get(place)
            if link is None:
                pinned = node.host_keys or self._pins.get(node.name, ())
                link = self._links[place] = ConnectionPool(
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


_SILENT_HINT = "the node may be frozen, overloaded or cut off: check with `cloudtrain status`"


def _too_much(node: Node, line: str) -> NodeError:
    from cloudtrain.ssh.channel_io import MOST

    return NodeError(
        node.name,
        f"its answer to `{_short(line)}` exceeds {MOST >> 20} MB",
        hint="inspect the node with `cloudtrain ssh`",
    )


def _broken(node: Node, what: str) -> NodeUnreachable:
    return NodeUnreachable(
        node.name,
        what,
        hint="it is unknown how far the command got: check the node with `cloudtrain status`, then "
        "run the command again",
    )


def _short(line: str) -> str:
    first = line.strip().partition("\n")[0]
    return line.strip() if len(line.strip()) <= 80 and first == line.strip() else f"{first[:77]}..."
