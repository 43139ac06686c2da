"""Channels of a node's SSH server: a process with its pipes or pty, or a tunnel."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import struct
import termios
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import paramiko
from paramiko.common import cMSG_CHANNEL_REQUEST

from cloudtrain.core.dataclass import dataclass

CHUNK = 1 << 16
HUNG_UP = -1
STATUS = struct.Struct("=i")


@dataclass(frozen=True, kw_only=True)
class Pipes:
    """Our ends of a process's stdin, stdout and stderr; a pty has no stderr."""

    stdin: int
    stdout: int
    stderr: int | None = None


class SessionChannel:
    """A `session` channel, from its opening to the end of its process."""

    def __init__(
        self, channel: paramiko.Channel, children: Reaper, environment: Mapping[str, str]
    ) -> None:
        self._channel = channel
        self._children = children
        self._environment = dict(environment)
        self._pty: tuple[int, int] | None = None
        self._wake: tuple[int, int] | None = None
        self._closing = threading.Lock()

    def set_variable(self, name: str, value: str) -> None:
        self._environment[name] = value

    def open_terminal(self, kind: str, width: int, height: int) -> bool:
        """Open a pty for the process that follows; False if this machine has none left."""
        try:
            self._pty = os.openpty()
        except OSError:
            return False
        self._environment |= {"TERM": kind, "SSH_TTY": os.ttyname(self._pty[1])}
        self.resize(width, height)
        return True

    def resize(self, width: int, height: int) -> None:
        if self._pty:
            size = struct.pack("HHHH", height, width, 0, 0)
            fcntl.ioctl(self._pty[0], termios.TIOCSWINSZ, size)

    def start(self, *arguments: bytes | str) -> None:
        """Run the process; its output, exit code and end go to the channel."""
        self._wake = os.pipe()
        try:
            pid, ends = self._spawn_on_pty(arguments) if self._pty else self._spawn(arguments)
        except (OSError, ValueError) as error:
            self._close_wake()
            with contextlib.suppress(OSError):  # the client is gone
                self._channel.sendall_stderr(f"cannot start the command: {error}\n".encode())
                self._channel.send_exit_status(126)
            self._channel.close()
            return
        threading.Thread(target=self._relay_input, args=(ends.stdin,), daemon=True).start()
        threading.Thread(target=self._relay_output, args=(pid, ends), daemon=True).start()

    def hang_up(self) -> None:
        """Close the process's pipes or terminal once the channel has closed, as sshd does."""
        self._tell(HUNG_UP)

    def _spawn(self, arguments: tuple[bytes | str, ...]) -> tuple[int, Pipes]:
        stdin, stdout, stderr = os.pipe(), os.pipe(), os.pipe()
        theirs = (stdin[0], stdout[1], stderr[1])
        ours = Pipes(stdin=stdin[1], stdout=stdout[0], stderr=stderr[0])
        files = [(os.POSIX_SPAWN_DUP2, end, number) for number, end in enumerate(theirs)]
        try:
            return self._children.spawn(arguments, self._environment, files, self._tell), ours
        except (OSError, ValueError):
            for descriptor in (stdin[1], stdout[0], stderr[0]):
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def _spawn_on_pty(self, arguments: tuple[bytes | str, ...]) -> tuple[int, Pipes]:
        """Start the process with the pty as its controlling terminal, which is the first terminal
        that a new session's leader opens."""
        assert self._pty
        ours, theirs = self._pty
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.ttyname(theirs), os.O_RDWR, 0),
            (os.POSIX_SPAWN_DUP2, 0, 1),
            (os.POSIX_SPAWN_DUP2, 0, 2),
        ]
        try:
            pid = self._children.spawn(arguments, self._environment, files, self._tell)
        finally:
            os.close(theirs)
        return pid, Pipes(stdin=os.dup(ours), stdout=ours)

    def _tell(self, status: int) -> None:
        with self._closing:
            if self._wake:
                os.write(self._wake[1], STATUS.pack(status))

    def _relay_input(self, stdin: int) -> None:
        try:
            while data := self._channel.recv(CHUNK):
                view = memoryview(data)
                while view:
                    view = view[os.write(stdin, view) :]
        except OSError:
            # The process has closed its stdin; the client must not wait for a window.
            while self._channel.recv(CHUNK):
                pass
        finally:
            os.close(stdin)

    def _relay_output(self, pid: int, ends: Pipes) -> None:
        """Copy output until all of it and the exit code are sent, or the client has hung up."""
        assert self._wake
        outputs: dict[int, Callable[[bytes], None]] = {ends.stdout: self._channel.sendall}
        if ends.stderr is not None:
            outputs[ends.stderr] = self._channel.sendall_stderr
        poller = select.poll()
        for descriptor in (*outputs, self._wake[0]):
            poller.register(descriptor, select.POLLIN)
        ended = False
        try:
            while outputs or not ended:
                for descriptor, _ in poller.poll():
                    if descriptor == self._wake[0]:
                        status = STATUS.unpack(os.read(descriptor, STATUS.size))[0]
                        if status == HUNG_UP:
                            return
                        send_exit(self._channel, status)
                        ended = True
                    elif data := _read(descriptor):
                        outputs[descriptor](data)
                    else:
                        poller.unregister(descriptor)
                        del outputs[descriptor]
                        os.close(descriptor)
        except (OSError, EOFError):
            pass  # the client is gone; closing our ends tells the process
        finally:
            self._children.forget(pid)
            self._close_wake()
            for descriptor in outputs:
                os.close(descriptor)
            self._channel.close()

    def _close_wake(self) -> None:
        with self._closing:
            if self._wake:
                for descriptor in self._wake:
                    os.close(descriptor)
            self._wake = None


class TunnelChannel:
    """A `direct-tcpip` channel and its connection."""

    def __init__(self, channel: paramiko.Channel, connection: socket.socket) -> None:
        self._channel = channel
        self._connection = connection

    def start(self) -> None:
        threading.Thread(target=self._to_connection, daemon=True).start()
        threading.Thread(target=self._to_channel, daemon=True).start()

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):  # the other side closed first
            self._connection.shutdown(socket.SHUT_RDWR)

    def _to_connection(self) -> None:
        try:
            while data := self._channel.recv(CHUNK):
                self._connection.sendall(data)
            self._connection.shutdown(socket.SHUT_WR)
        except OSError:
            self._channel.close()

    def _to_channel(self) -> None:
        try:
            while data := self._connection.recv(CHUNK):
                self._channel.sendall(data)
        except (OSError, EOFError):
            pass
        finally:
            self._channel.close()
            self._connection.close()


def send_exit(channel: paramiko.Channel, status: int) -> None:
    """Send the exit code, or the signal's name (RFC 4254, 6.10; paramiko has no call for it)."""
    if not os.WIFSIGNALED(status):
        channel.send_exit_status(os.WEXITSTATUS(status))
        return
    number = os.WTERMSIG(status)
    name = signal.Signals(number).name if number in set(signal.Signals) else f"SIG{number}"
    message = paramiko.Message()
    message.add_byte(cMSG_CHANNEL_REQUEST)
    message.add_int(channel.remote_chanid)
    message.add_string("exit-signal")
    message.add_boolean(False)
    message.add_string(name.removeprefix("SIG"))
    message.add_boolean(os.WCOREDUMP(status))
    message.add_string("")
    message.add_string("")
    channel.get_transport()._send_user_message(message)  # type: ignore[attr-defined]


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, CHUNK)
    except OSError:
        return b""  # EIO: the last process has closed the terminal


# Starts a node's processes and reaps all of them, including orphans that the kernel re-parents


RESET = (signal.SIGPIPE, signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)

Ended = Callable[[int], None]
"""Called with the wait status (for `os.WIFSIGNALED`, …); must not block."""


class Reaper:
    """Reap a node server's children, and orphans that get it as parent."""

    def __init__(self) -> None:
        self._ended: dict[int, Ended] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._reap, name="reaper", daemon=True).start()

    def spawn(
        self,
        arguments: tuple[bytes | str, ...],
        environment: Mapping[str, str],
        files: Sequence[tuple[Any, ...]],
        ended: Ended,
    ) -> int:
        """Start a process in its own session; `files` are posix_spawn's file actions.

        Holds the lock, so that even a process that exits at once is known before it is reaped."""
        with self._changed:
            pid = os.posix_spawn(
                arguments[0],
                arguments,
                environment,
                file_actions=files,
                setsid=True,
                setsigmask=(),
                setsigdef=RESET,
            )
            self._ended[pid] = ended
            self._changed.notify()
            return pid

    def forget(self, pid: int) -> None:
        """Stop reporting this process's end; it is still reaped."""
        with self._changed:
            self._ended.pop(pid, None)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                # No child, so no orphan either: orphans come from our children.
                with self._changed:
                    self._changed.wait_for(lambda: self._ended)
                continue
            with self._changed:
                ended = self._ended.pop(pid, None)
                if ended:
                    ended(status)
