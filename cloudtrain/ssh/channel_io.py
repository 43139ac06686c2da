"""Runs one command over one channel, with its input and both outputs side by side."""

from __future__ import annotations

import contextlib
import os
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator

import paramiko

from cloudtrain.core.moments import awake
from cloudtrain.core.protocols import Completed
from cloudtrain.ssh.connection import BROKEN, exit_code, start, why_ended

Handler = Callable[[bytes], None]

_PIECE_BYTES = 32000
_TAKE_BYTES = 1 << 24
_FEEDER_GRACE = 2.0
"""Seconds to wait for an iterable that is busy when the command ends without reading it."""


class ChannelSilent(Exception):
    """No byte in either direction for the allowed time."""


class ChannelEnded(Exception):
    """The channel ended without an exit code; `str()` has the reason."""


def pump_channel(
    channel: paramiko.Channel,
    line: str,
    *,
    stdin: bytes | Iterable[bytes],
    on_stdout: Handler | None,
    on_stderr: Handler | None,
    timeout: float | None,
) -> Completed:
    """Run the command; handlers run in this thread. Raises ChannelSilent, ChannelEnded, TooMuch,
    and what a handler or `stdin` raises."""
    wakeup = Wakeup(channel)
    stdout, keep_out = up_to_most()
    stderr, keep_err = up_to_most()
    with ending(channel):
        start(channel, line)
    feeder = Feeder(channel, stdin, wakeup, ends=True)
    try:
        while True:
            # Checked before the pipes are drained: later bytes wake us again.
            over = bool(channel.eof_received or channel.closed)
            drain(channel, on_stdout or keep_out, on_stderr or keep_err)
            if over:
                break
            wakeup.wait(timeout)
        wakeup.wait_for(channel.status_event, timeout)
        if feeder.error is not None:
            raise feeder.error
        code = exit_code(channel)
        if code is None:
            raise ChannelEnded(why_ended(channel))
        return Completed(exit_code=code, stdout=bytes(stdout), stderr=bytes(stderr))
    finally:
        close(channel)
        feeder.join()


MOST = 64 << 20
"""Maximum bytes of an output that has no handler."""


class TooMuch(Exception):
    """The answer is larger than the limit."""


def up_to_most() -> tuple[bytearray, Handler]:
    data = bytearray()

    def take(piece: bytes) -> None:
        if len(data) + len(piece) > MOST:
            raise TooMuch
        data.extend(piece)

    return data, take


def drain(channel: paramiko.Channel, on_stdout: Handler, on_stderr: Handler) -> None:
    """Read everything that is available now. Raises ChannelEnded, and what a handler raises."""
    while channel.recv_ready():
        with ending(channel):  # it tells the node that there is room for more
            data = channel.recv(_TAKE_BYTES)
        on_stdout(data)
    while channel.recv_stderr_ready():
        with ending(channel):
            data = channel.recv_stderr(_TAKE_BYTES)
        on_stderr(data)


@contextlib.contextmanager
def ending(channel: paramiko.Channel) -> Iterator[None]:
    """Raise ChannelEnded for what paramiko raises if the connection breaks under a message; its
    reading thread, which then ends the channel, may not have noticed yet."""
    try:
        yield
    except TimeoutError:
        raise
    except EOFError:
        raise ChannelEnded("the connection was closed") from None
    except BROKEN:
        raise ChannelEnded(why_ended(channel)) from None


def close(channel: paramiko.Channel) -> None:
    with contextlib.suppress(*BROKEN):
        channel.close()


class Wakeup:
    """One event for both outputs of a channel and its end; records when a byte last moved."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._event = threading.Event()
        self.touch()
        channel.in_buffer.set_event(self)  # type: ignore[arg-type]
        channel.in_stderr_buffer.set_event(self)  # type: ignore[arg-type]

    def set(self) -> None:
        self.touch()
        self._event.set()

    def clear(self) -> None:
        """Do nothing when paramiko finds a pipe empty: bytes in the other must still wake us."""

    def touch(self) -> None:
        self._last = awake()

    def wait(self, timeout: float | None) -> None:
        """Wait for bytes. Raises ChannelSilent once nothing has moved for `timeout` seconds."""
        self.wait_for(self._event, timeout)
        self._event.clear()

    def pause(self, seconds: float) -> None:
        """Wait until something arrives, for at most `seconds`."""
        if self._event.wait(seconds):
            self._event.clear()

    def wait_for(self, event: threading.Event, timeout: float | None) -> None:
        while not event.wait(None if timeout is None else self._left(timeout)):
            if timeout is not None and self._left(timeout) <= 0:
                raise ChannelSilent

    def _left(self, timeout: float) -> float:
        return max(0.0, self._last + timeout - awake())


class Feeder:
    """Sends `stdin` from a thread of its own, so that outputs never wait for it, and `ends` it."""

    def __init__(
        self,
        channel: paramiko.Channel,
        stdin: bytes | Iterable[bytes],
        wakeup: Wakeup,
        *,
        ends: bool = False,
    ) -> None:
        self.error: BaseException | None = None
        self._channel, self._wakeup, self._ends = channel, wakeup, ends
        self._thread: threading.Thread | None = None
        self._is_whole = False
        if stdin == b"":
            self._end()
            return
        chunks = (stdin,) if isinstance(stdin, bytes) else stdin
        self._thread = threading.Thread(target=self._feed, args=(chunks,), daemon=True)
        self._thread.start()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join(_FEEDER_GRACE)

    def is_done(self, seconds: float) -> bool:
        """True if all is sent, now or within so many seconds."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self._is_whole

    def _end(self) -> None:
        if self._ends:
            with contextlib.suppress(*BROKEN):
                self._channel.shutdown_write()

    def _feed(self, chunks: Iterable[bytes]) -> None:
        try:
            for chunk in chunks:
                if not self._send(chunk):
                    return
        except BaseException as error:  # noqa: BLE001 - raised again in the caller
            self.error = error
            close(self._channel)
        else:
            self._is_whole = True
            self._end()

    def _send(self, chunk: bytes) -> bool:
        """Send bytes; False if the command reads no more, which its exit code explains."""
        view = memoryview(chunk)
        for at in range(0, len(view), _PIECE_BYTES):
            try:
                self._channel.sendall(view[at : at + _PIECE_BYTES].tobytes())
            except BROKEN:
                return False
            self._wakeup.touch()
        return True


# ── A shell that stays open on a node: each short script is one round trip, no new channel ────
_LOOK_SECONDS = 0.5
"""Seconds between looks: no event arrives if a child holds the outputs of a killed shell."""


class StaleShell(Exception):
    """The shell was closed before the script was sent: retrying is safe."""


class ControlShell:
    """Runs one script at a time; `alive` until it ends, or a script is left incomplete."""

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
        StaleShell if it is safe to use another shell."""
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
        close(self._channel)

    def _ask(self, script: str, deadline: float) -> Completed:
        token = os.urandom(16).hex()
        self._channel.settimeout(max(0.001, deadline - awake()))
        try:
            with ending(self._channel):
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
    """Wrap the script in a subshell between unguessable marks on both of its outputs. The first
    mark excludes late bytes of an earlier script's background process."""
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
