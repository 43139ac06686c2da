"""Runs one command over one channel, handling its input and both outputs concurrently until it
ends.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator

import paramiko

from cloudtrain.core.awake import awake
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
    """Run the command; handlers run in this thread.

    Raises ChannelSilent, ChannelEnded, TooMuch, and what a handler or `stdin` raises.
    """
    wakeup = Wakeup(channel)
    stdout, keep_out = _up_to_most()
    stderr, keep_err = _up_to_most()
    with ending(channel):
        start(channel, line)
    feeder = _Feeder(channel, stdin, wakeup)
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


def _up_to_most() -> tuple[bytearray, Handler]:
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
    reading thread, which then ends the channel, may not have noticed yet.
    """
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
        """Hook that paramiko calls when a pipe is empty. Does nothing, as bytes in the other pipe
        must still wake us.
        """

    def touch(self) -> None:
        self._last = awake()

    def wait(self, timeout: float | None) -> None:
        """Wait for something to arrive. Raises ChannelSilent once nothing has moved for `timeout`
        seconds.
        """
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


class _Feeder:
    """Sends `stdin` and its end from a thread of its own, so that outputs never wait for it."""

    def __init__(
        self, channel: paramiko.Channel, stdin: bytes | Iterable[bytes], wakeup: Wakeup
    ) -> None:
        self.error: BaseException | None = None
        self._channel = channel
        self._wakeup = wakeup
        self._thread: threading.Thread | None = None
        if stdin == b"":
            with contextlib.suppress(*BROKEN):
                channel.shutdown_write()
            return
        chunks = (stdin,) if isinstance(stdin, bytes) else stdin
        self._thread = threading.Thread(target=self._feed, args=(chunks,), daemon=True)
        self._thread.start()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join(_FEEDER_GRACE)

    def _feed(self, chunks: Iterable[bytes]) -> None:
        try:
            for chunk in chunks:
                if not self._send(chunk):
                    return
        except BaseException as error:  # noqa: BLE001 - raised again in the caller
            self.error = error
            close(self._channel)
        else:
            with contextlib.suppress(*BROKEN):
                self._channel.shutdown_write()

    def _send(self, chunk: bytes) -> bool:
        """Send bytes; False if the command no longer reads its input. The command's exit code shows
        whether that is an error.
        """
        view = memoryview(chunk)
        for at in range(0, len(view), _PIECE_BYTES):
            try:
                self._channel.sendall(view[at : at + _PIECE_BYTES].tobytes())
            except BROKEN:
                return False
            self._wakeup.touch()
        return True
