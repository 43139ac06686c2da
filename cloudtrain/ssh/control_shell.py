"""A shell that stays open on a node: each short script is one round trip without a new channel."""

from __future__ import annotations

import os
import shlex
import threading

import paramiko

from cloudtrain.core.awake import awake
from cloudtrain.core.protocols import Completed
from cloudtrain.ssh import channel_io
from cloudtrain.ssh.channel_io import MOST, ChannelEnded, ChannelSilent, TooMuch, Wakeup, drain
from cloudtrain.ssh.connection import start, why_ended

_LOOK_SECONDS = 0.5
"""Polling interval in seconds; needed because no event arrives if the shell is killed while a child
still holds its outputs.
"""


class StaleShell(Exception):
    """The shell was closed before the script was sent: retrying is safe."""


class ControlShell:
    """Runs one script at a time. `alive` until the shell or its connection ends, or a script does
    not complete.
    """

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._wakeup = Wakeup(channel)
        start(channel, "exec /bin/sh")

    @property
    def alive(self) -> bool:
        channel = self._channel
        return not (channel.closed or channel.eof_received or channel.status_event.is_set())

    def ask(self, script: str, timeout: float) -> Completed:
        """Run a script. Raises ChannelSilent after `timeout` seconds, ChannelEnded with the reason,
        StaleShell if it is safe to use another shell.
        """
        deadline = awake() + timeout
        if not self._lock.acquire(timeout=timeout):
            raise ChannelSilent
        try:
            if not self.alive:
                raise StaleShell
            return self._ask(script, deadline)
        except BaseException:
            # The state of its outputs is unknown: the next script gets a new shell.
            self.close()
            raise
        finally:
            self._lock.release()

    def close(self) -> None:
        channel_io.close(self._channel)

    def _ask(self, script: str, deadline: float) -> Completed:
        token = os.urandom(16).hex()
        self._channel.settimeout(max(0.001, deadline - awake()))
        try:
            with channel_io.ending(self._channel):
                self._channel.sendall(framed(script, token))
        except TimeoutError:
            raise ChannelSilent from None
        stdout, stderr = _Frame(token), _Frame(token)
        while True:
            over = not self.alive
            drain(self._channel, stdout.feed, stderr.feed)
            if stdout.done and stderr.done:
                return Completed(
                    exit_code=int(stdout.word), stdout=stdout.content, stderr=stderr.content
                )
            if over:
                raise ChannelEnded(why_ended(self._channel))
            left = deadline - awake()
            if left <= 0:
                raise ChannelSilent
            self._wakeup.pause(min(left, _LOOK_SECONDS))


def framed(script: str, token: str) -> bytes:
    """Wrap the script in a subshell between unguessable marks on both of its outputs.

    The first mark excludes late bytes of an earlier script's background process.
    """
    return (
        f"printf '<{token}' >&2; printf '<{token}'\n"
        f"(eval {shlex.quote(script)}) </dev/null\n"
        f"printf '{token} %d>' $?; printf '{token} 0>' >&2\n"
    ).encode("utf-8", "surrogateescape")


class _Frame:
    """Bytes of one output up to its end mark."""

    def __init__(self, token: str) -> None:
        self._first = f"<{token}".encode()
        self._last = f"{token} ".encode()
        self._data = bytearray()
        self._searched = 0
        self.done = False
        self.content = b""
        self.word = b""
        """Content of the end mark: the exit code."""

    def feed(self, data: bytes) -> None:
        if len(self._data) + len(data) > MOST:
            raise TooMuch
        self._data += data
        begin = self._data.find(self._first) + len(self._first)
        if begin < len(self._first):
            return
        end = self._data.find(self._last, max(begin, self._searched))
        self._searched = max(0, len(self._data) - len(self._last))
        if end < 0:
            return
        self._searched = end
        close = self._data.find(b">", end)
        if close < 0:
            return
        self.word = bytes(self._data[end + len(self._last) : close])
        self.content = bytes(self._data[begin:end])
        self.done = True
