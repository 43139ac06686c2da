"""One SSH connection to one node: pinned host key, the cluster's key, channels."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from cloudtrain.core.errors import HostKeyMismatch, NodeUnreachable
from cloudtrain.core.model import Node
from cloudtrain.ssh.sockets import ProxySocket, TunedSocket


class _Metadata(ModuleType):
    """`importlib.metadata` for paramiko's own version; anything else of it is the real one's."""

    def version(self, name: str) -> str:
        own = name == "paramiko"
        return "cloudtrain" if own else str(self.__getattr__("version")(name))

    def __getattr__(self, name: str) -> Any:
        sys.modules.pop(self.__name__, None)
        return getattr(import_module(self.__name__), name)


# paramiko imports invoke only to run `Match exec` lines of ~/.ssh/config, which we never read, and
# metadata to tell servers its version: a third and a fifth of the time of its import.
_masks = {"invoke": None, "importlib.metadata": _Metadata("importlib.metadata")}
_masked = {name: mask for name, mask in _masks.items() if name not in sys.modules}
sys.modules.update(_masked)  # type: ignore[arg-type]
try:
    import paramiko
    from paramiko.common import MSG_CHANNEL_REQUEST, cMSG_CHANNEL_REQUEST
    from paramiko.ssh_exception import IncompatiblePeer
finally:
    for _name, _mask in _masked.items():
        if sys.modules.get(_name) is _mask:
            sys.modules.pop(_name, None)

BROKEN = (paramiko.SSHException, OSError, EOFError)
"""All exceptions that paramiko raises when a connection cannot be opened or breaks."""


class ChannelRefused(Exception):
    """The server runs and answers, but refuses another channel."""


WINDOW_BYTES = 1 << 23
"""Receive window: enough for 80 MB/s at 100 ms round trip."""

# paramiko prefers AES-CTR, whose checksum is a second pass, compared byte by byte in Python:
# 64 MB go up in 0.24 s with it and in 0.10 s with GCM (loopback).
_GCM = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
_CIPHERS = (*_GCM, "aes128-ctr", "aes192-ctr", "aes256-ctr")

# A library must not print: its errors reach the user as ours, once.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

_SIGNATURES = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}
"""Signature algorithms of kinds of host keys whose names differ."""

_SIGNAL_BASE = -1000
_NAMELESS_SIGNAL = 128
"""Exit code for signals such as SIGBUS and SIGSYS, for which OpenSSH sends no name."""


class SshConnection:
    """An authenticated connection; `alive` until it breaks or is closed."""

    def __init__(
        self,
        node: Node,
        socket: TunedSocket | ProxySocket,
        *,
        pinned: Sequence[str],
        key: paramiko.PKey,
        timeout: float,
    ) -> None:
        """Connect. `pinned`: the public host keys that the node may have."""
        self._node, self._timeout = node, timeout
        self._transport = _Transport(socket)
        self._transport.banner_timeout = timeout
        self._transport.handshake_timeout = timeout
        self._transport.auth_timeout = timeout
        try:
            self._shake_hands(pinned)
            self._log_in(key)
        except BaseException:
            self._transport.close()
            raise

    @property
    def alive(self) -> bool:
        return self._transport.is_active()

    def session(self) -> paramiko.Channel:
        """Open a session. Raises ChannelRefused if the server allows no more, or one of BROKEN."""
        began = time.monotonic()
        try:
            return self._transport.open_session(timeout=self._timeout)
        except paramiko.SSHException as error:
            # Of two refusals at the same time paramiko gives one as a ChannelException, the
            # other as a plain SSHException like that of a lost connection.
            if self.alive and time.monotonic() < began + self._timeout:
                raise ChannelRefused(str(error)) from error
            raise

    def close(self) -> None:
        self._transport.close()

    def _shake_hands(self, pinned: Sequence[str]) -> None:
        kinds = tuple(dict.fromkeys(key.split()[0] for key in pinned))
        options = self._transport.get_security_options()
        options.key_types = tuple(name for kind in kinds for name in _SIGNATURES.get(kind, (kind,)))
        options.ciphers = _CIPHERS
        try:
            self._transport.start_client(timeout=self._timeout)
        except IncompatiblePeer as error:
            if "host key" not in str(error):
                raise
            raise self._mismatch(f"it has no {', '.join(kinds)} host key") from error
        if not self._transport.initial_kex_done:
            raise NodeUnreachable(
                self._node.name,
                f"the SSH handshake was not done within {self._timeout:g} s",
                hint="the node accepts connections but does not answer: it may be overloaded",
            )
        answered = self._transport.get_remote_server_key().get_base64()
        if answered not in {key.split()[1] for key in pinned}:
            raise self._mismatch("its host key is not the one installed on the node")

    def _mismatch(self, why: str) -> HostKeyMismatch:
        node = self._node
        if self._node.state == "unknown":  # its provider could not read its host key
            return HostKeyMismatch(
                self._node.name,
                self._node.fault,
                hint="its host key could not be checked, so nothing was sent to it; "
                "`cloudtrain check` says what to mend",
            )
        return HostKeyMismatch(
            node.name,
            f"another machine answers at {node.address}:{node.ssh_port}: {why}",
            hint="the address may have been reassigned: `cloudtrain status` gets the node's current"
            " one from the provider; nothing was sent to that machine",
        )

    def _log_in(self, key: paramiko.PKey) -> None:
        try:
            self._transport.auth_publickey(self._node.user, key)
        except paramiko.AuthenticationException as error:
            raise NodeUnreachable(
                self._node.name,
                f"SSH refuses the cluster's key for user {self._node.user!r} at "
                f"{self._node.address}:{self._node.ssh_port}",
                hint="the node was created with another key, or is not ready yet: "
                "run `cloudtrain up` to repair it",
            ) from error


def why_ended(channel: paramiko.Channel) -> str:
    """Text on why a channel ended: the connection broke, or only this channel was ended."""
    transport = channel.get_transport()
    if transport.is_active():
        return "the node ended the session"
    error = transport.saved_exception
    if error is None or isinstance(error, EOFError):
        return "the connection was closed"
    return f"the connection broke ({error})"


def load_key(path: Path) -> paramiko.PKey:
    """Load a private key. Raises OSError, or one of BROKEN for any other file."""
    return paramiko.Ed25519Key.from_private_key_file(str(path))


def start(channel: paramiko.Channel, line: str) -> None:
    """Request the command's start without waiting for the answer: a refusal closes the channel.
    `Channel.exec_command` waits for it without a time limit and costs a round trip."""
    request = paramiko.Message()
    request.add_byte(cMSG_CHANNEL_REQUEST)
    request.add_int(channel.remote_chanid)
    request.add_string("exec")
    request.add_boolean(True)
    request.add_string(line.encode("utf-8", "surrogateescape"))
    channel.get_transport()._send_user_message(request)  # type: ignore[attr-defined]


def exit_code(channel: paramiko.Channel) -> int | None:
    """Exit code; negative for a signal, None if the channel ended without one."""
    status = channel.exit_status
    if status <= _SIGNAL_BASE:
        return status - _SIGNAL_BASE
    return None if status < 0 else status


def _channel_request(channel: paramiko.Channel, message: paramiko.Message) -> None:
    """Handle `exit-signal`, which paramiko's own handler drops."""
    position = message.packet.tell()
    if message.get_text() == "exit-signal":
        message.get_boolean()
        number = getattr(signal, f"SIG{message.get_text()}", _NAMELESS_SIGNAL)
        channel.exit_status = _SIGNAL_BASE - int(number)
        channel.status_event.set()
        return
    message.packet.seek(position)
    channel._handle_request(message)  # type: ignore[attr-defined]


_Handler = Callable[[paramiko.Channel, paramiko.Message], None]


class SafeRekeying(paramiko.Transport):
    """A paramiko.Transport whose reading thread, in clients and servers, never waits for itself.

    paramiko blocks all messages while keys change (each 512 MB). Its reading thread, which answers
    the close of a channel, would wait for itself until the connection is given up after 30 s
    (paramiko 5.1.0, Transport._send_user_message).
    """

    _held: list[paramiko.Message]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._held = []

    def _send_user_message(self, data: paramiko.Message) -> None:
        if threading.current_thread() is self and not self.clear_to_send.is_set():
            self._held.append(data)
        else:
            super()._send_user_message(data)  # type: ignore[misc]

    def _parse_newkeys(self, message: paramiko.Message) -> None:
        super()._parse_newkeys(message)  # type: ignore[misc]
        held, self._held = self._held, []
        for data in held:
            self._send_user_message(data)


class _Transport(SafeRekeying):
    _channel_handler_table: dict[int, _Handler] = {  # noqa: RUF012 - paramiko's own kind of table
        **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]
        MSG_CHANNEL_REQUEST: _channel_request,
    }

    def __init__(self, socket: TunedSocket | ProxySocket) -> None:
        super().__init__(socket, default_window_size=WINDOW_BYTES)
