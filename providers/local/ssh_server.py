"""A node's SSH server: accepts only the cluster's key, on one loopback address."""

# SFTP uses strings and descriptors, as `os` does.
# ruff: noqa: PTH101, PTH102, PTH105, PTH106, PTH107, PTH115, PTH116, PTH211

from __future__ import annotations

import base64
import io
import ipaddress
import logging
import os
import signal
import socket
import stat
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn, TypeVar

import paramiko
from paramiko.common import (
    AUTH_FAILED,
    AUTH_SUCCESSFUL,
    MSG_CHANNEL_REQUEST,
    OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED,
    OPEN_FAILED_CONNECT_FAILED,
    OPEN_SUCCEEDED,
)
from paramiko.sftp import SFTP_FAILURE, SFTP_OK

from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.retry import Retry
from cloudtrain.providers.local import processes
from cloudtrain.providers.local.channels import Reaper, SessionChannel, TunnelChannel
from cloudtrain.ssh.connection import SafeRekeying

log = logging.getLogger("cloudtrain.node")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Start settings of a node's server."""

    tag: str
    user: str
    shell: str
    public_key: str
    host_key: str
    environment: Mapping[str, str]


class Terminated(BaseException):
    """Raised by SIGTERM."""


def serve(listener: socket.socket, settings: ServerSettings) -> NoReturn:
    """Serve until SIGTERM, then kill everything that runs on this node, as a shutdown does."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    host_key = paramiko.Ed25519Key.from_private_key(io.StringIO(settings.host_key))
    children = Reaper()
    log.warning("listening on %s:%s", *listener.getsockname())
    try:
        while True:
            ClientConnection(_accept(listener), settings, children).open(host_key)
    except Terminated:
        listener.close()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        left = processes.kill(lambda tag: tag == settings.tag)
        log.warning("stopped; still running: %s", left or "nothing")
    os._exit(0)


class ClientConnection(SafeRekeying, paramiko.Transport):
    """A client connection. Its channels are listed by number until either side closes them."""

    # Interval at which an idle connection wakes up; paramiko's 0.1 s is too much with 128 nodes.
    _active_check_timeout = 10.0

    def __init__(self, client: socket.socket, settings: ServerSettings, children: Reaper) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().__init__(client)
        self._settings = settings
        self._children = children
        self.sessions: dict[int, SessionChannel | TunnelChannel] = {}
        self.tunnels: dict[int, socket.socket] = {}
        self.after_answer: Callable[[], None] | None = None

    def open(self, host_key: paramiko.PKey) -> None:
        self.add_server_key(host_key)
        self.set_subsystem_handler("sftp", Subsystem, Files)
        # With an event, this call does not wait for the handshake.
        self.start_server(event=threading.Event(), server=SshServer(self, self._settings))

    def _queue_incoming_channel(self, channel: paramiko.Channel) -> None:
        number = channel.get_id()
        target = self.tunnels.pop(number, None)
        if target is None:
            self.sessions[number] = SessionChannel(
                channel, self._children, self._settings.environment
            )
        else:
            tunnel = self.sessions[number] = TunnelChannel(channel, target)
            tunnel.start()

    def _unlink_channel(self, number: int) -> None:
        """Hook of paramiko for a channel that the client closes, or whose connection ends."""
        super()._unlink_channel(number)  # type: ignore[misc]
        session = self.sessions.pop(number, None)
        if session:
            session.hang_up()

    @staticmethod
    def _handle_channel_request(channel: paramiko.Channel, message: paramiko.Message) -> None:
        """Answer first, then start: a fast command would otherwise close the channel first."""
        channel._handle_request(message)  # type: ignore[attr-defined]
        connection = channel.get_transport()
        assert isinstance(connection, ClientConnection)
        start, connection.after_answer = connection.after_answer, None
        if start:
            start()

    _channel_handler_table = {  # noqa: RUF012  paramiko's table with one entry replaced
        **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]
        MSG_CHANNEL_REQUEST: _handle_channel_request,
    }


class SshServer(paramiko.ServerInterface):
    """Decide which clients may log in and which requests are allowed."""

    def __init__(self, connection: ClientConnection, settings: ServerSettings) -> None:
        self._connection = connection
        self._settings = settings
        self._key = base64.b64decode(settings.public_key.split()[1])

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        if username == self._settings.user and key.asbytes() == self._key:
            return AUTH_SUCCESSFUL
        log.warning("refused key %s of user %r", key.get_name(), username)
        return AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED if kind == "session" else OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_direct_tcpip_request(
        self, chanid: int, origin: tuple[str, int], destination: tuple[str, int]
    ) -> int:
        host, port = destination
        if not _is_loopback(host):
            return OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED
        try:
            target = socket.create_connection((host, port), timeout=5)
        except OSError:
            return OPEN_FAILED_CONNECT_FAILED
        target.settimeout(None)
        self._connection.tunnels[chanid] = target
        return OPEN_SUCCEEDED

    def check_channel_env_request(
        self, channel: paramiko.Channel, name: bytes, value: bytes
    ) -> bool:
        """Accept only what Debian's sshd_config accepts (`AcceptEnv LANG LC_*`)."""
        variable = name.decode("ascii", "replace")
        if not (variable == "LANG" or variable.startswith("LC_")):
            return False
        self._session(channel).set_variable(variable, os.fsdecode(value))
        return True

    def check_channel_pty_request(
        self,
        channel: paramiko.Channel,
        term: bytes,
        width: int,
        height: int,
        pixelwidth: int,
        pixelheight: int,
        modes: bytes,
    ) -> bool:
        return self._session(channel).open_terminal(os.fsdecode(term), width, height)

    def check_channel_window_change_request(
        self, channel: paramiko.Channel, width: int, height: int, pixelwidth: int, pixelheight: int
    ) -> bool:
        self._session(channel).resize(width, height)
        return True

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        return self._start(channel, "/bin/sh", "-c", command)

    def check_channel_shell_request(self, channel: paramiko.Channel) -> bool:
        return self._start(channel, self._settings.shell, "-l")

    def _start(self, channel: paramiko.Channel, *arguments: bytes | str) -> bool:
        session = self._session(channel)
        self._connection.after_answer = lambda: session.start(*arguments)
        return True

    def _session(self, channel: paramiko.Channel) -> SessionChannel:
        session = self._connection.sessions[channel.get_id()]
        assert isinstance(session, SessionChannel)
        return session


def _accept(listener: socket.socket) -> socket.socket:
    def warn(error: OSError, *_: float) -> None:  # out of descriptors: some will be closed
        log.warning("cannot accept a connection: %s", error)

    return Retry(pause=0.1).call(listener.accept, on=OSError, before_pause=warn)[0]


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _stop(number: int, frame: object) -> None:
    raise Terminated


# ── SFTP subsystem of a local node: the user's own files, relative paths from the node's home ─


T = TypeVar("T")


class Files(paramiko.SFTPServerInterface):
    """File operations of the server's process, whose working folder is the node's home."""

    def open(
        self, path: str, flags: int, attr: paramiko.SFTPAttributes
    ) -> paramiko.SFTPHandle | int:
        def opened() -> paramiko.SFTPHandle:
            mode = 0o666 if attr.st_mode is None else stat.S_IMODE(attr.st_mode)
            return OpenFile(os.open(path, flags, mode), flags)

        return _answer(opened)

    def list_folder(self, path: str) -> list[paramiko.SFTPAttributes] | int:
        return _answer(
            lambda: [
                paramiko.SFTPAttributes.from_stat(entry.stat(follow_symlinks=False), entry.name)
                for entry in os.scandir(path)
            ]
        )

    def stat(self, path: str) -> paramiko.SFTPAttributes | int:
        return _answer(lambda: paramiko.SFTPAttributes.from_stat(os.stat(path)))

    def lstat(self, path: str) -> paramiko.SFTPAttributes | int:
        return _answer(lambda: paramiko.SFTPAttributes.from_stat(os.lstat(path)))

    def remove(self, path: str) -> int:
        return _done(lambda: os.remove(path))

    def rename(self, oldpath: str, newpath: str) -> int:
        """Rename; an existing target is an error in version 3 of the protocol."""
        return SFTP_FAILURE if os.path.lexists(newpath) else self.posix_rename(oldpath, newpath)

    def posix_rename(self, oldpath: str, newpath: str) -> int:
        return _done(lambda: os.replace(oldpath, newpath))

    def mkdir(self, path: str, attr: paramiko.SFTPAttributes) -> int:
        mode = 0o777 if attr.st_mode is None else stat.S_IMODE(attr.st_mode)
        return _done(lambda: os.mkdir(path, mode))

    def rmdir(self, path: str) -> int:
        return _done(lambda: os.rmdir(path))

    def chattr(self, path: str, attr: paramiko.SFTPAttributes) -> int:
        return _done(lambda: _change(path, attr))

    def symlink(self, target_path: str, path: str) -> int:
        return _done(lambda: os.symlink(target_path, path))

    def readlink(self, path: str) -> str | int:
        return _answer(lambda: os.readlink(path))

    def canonicalize(self, path: str) -> str:
        return str(Path(path).resolve())


class OpenFile(paramiko.SFTPHandle):
    """An open file. It stores no position, as each request includes one."""

    def __init__(self, descriptor: int, flags: int) -> None:
        super().__init__(flags)
        self._descriptor = descriptor

    def close(self) -> None:
        os.close(self._descriptor)

    def read(self, offset: int, length: int) -> bytes | int:
        return _answer(lambda: os.pread(self._descriptor, length, offset))

    def write(self, offset: int, data: bytes) -> int:  # type: ignore[override]
        def written() -> None:
            view = memoryview(data)
            position = offset
            while view:
                count = os.pwrite(self._descriptor, view, position)
                view, position = view[count:], position + count

        return _done(written)

    def stat(self) -> paramiko.SFTPAttributes | int:
        return _answer(lambda: paramiko.SFTPAttributes.from_stat(os.fstat(self._descriptor)))

    def chattr(self, attr: paramiko.SFTPAttributes) -> int:
        """Set mode and times: scp and sftp do so on the open file, and copies fail without it."""
        return _done(lambda: _change(self._descriptor, attr))


class Subsystem(paramiko.SFTPServer):
    """paramiko's server plus the exit status that OpenSSH's clients wait for."""

    def finish_subsystem(self) -> None:
        if self.sock:
            self.sock.send_exit_status(0)
        super().finish_subsystem()


def _change(target: str | int, attr: paramiko.SFTPAttributes) -> None:
    """Set attributes; paramiko's `set_file_attr` truncates a file before it sets its size."""
    if attr.st_size is not None:
        os.truncate(target, attr.st_size)
    if attr.st_uid is not None and attr.st_gid is not None:
        os.chown(target, attr.st_uid, attr.st_gid)
    if attr.st_mode is not None:
        os.chmod(target, stat.S_IMODE(attr.st_mode))
    if attr.st_atime is not None and attr.st_mtime is not None:
        os.utime(target, (attr.st_atime, attr.st_mtime))


def _done(action: Callable[[], object]) -> int:
    return _answer(lambda: (action(), SFTP_OK)[1])


def _answer(action: Callable[[], T]) -> T | int:
    try:
        return action()
    except OSError as error:
        return paramiko.SFTPServer.convert_errno(error.errno or 0)
