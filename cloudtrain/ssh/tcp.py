"""TCP connection tuned for SSH: small packets are sent at once, and a dead peer is noticed."""

from __future__ import annotations

import contextlib
import socket

DEAD_AFTER_MS = 5000
"""Milliseconds after which unacknowledged bytes end the connection (TCP_USER_TIMEOUT)."""

_POLL_SECONDS = 1.0
BUFFER_BYTES = 1 << 16

# Linux has all of these; options that another system lacks are skipped.
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)
_OPTIONS = (
    (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 2),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", DEAD_AFTER_MS),
)


def connect(address: str, port: int, timeout: float) -> TunedSocket:
    """Connect. Raises OSError (TimeoutError after `timeout` seconds)."""
    return TunedSocket(socket.create_connection((address, port), timeout))


class BufferedSocket:
    """The socket methods that paramiko and Fabric call. paramiko reads each packet in three pieces:
    a buffer here makes one system call of them."""

    def __init__(self, raw: socket.socket) -> None:
        raw.settimeout(_POLL_SECONDS)
        self._raw = raw
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._closed = False

    def recv(self, size: int) -> bytes:
        """Up to `size` bytes, b"" at the end. Raises what the socket's `recv` does."""
        if self._start == self._end:
            self._end = self._raw.recv_into(self._buffer)
            self._start = 0
            self._filled()
        end = min(self._start + size, self._end)
        data = self._view[self._start : end].tobytes()
        self._start = end
        return data

    def _filled(self) -> None:
        """Called when the buffer was filled."""

    def send(self, data: bytes) -> int:
        return self._raw.send(data)

    def close(self) -> None:
        """Close, and wake a reader in another thread at once."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):
            self._raw.shutdown(socket.SHUT_RDWR)
        self._release()

    def _release(self) -> None:
        self._raw.close()

    def settimeout(self, _: float | None) -> None:
        """Do nothing: paramiko asks for ten wake-ups a second, which only its timers need."""

    def gettimeout(self) -> float | None:
        return self._raw.gettimeout()

    def fileno(self) -> int:
        return self._raw.fileno()


class TunedSocket(BufferedSocket):
    """A tuned TCP socket. paramiko sets no option at all: with Nagle's algorithm against delayed
    acknowledgements a connect and a command wait for timers on every round trip."""

    def __init__(self, raw: socket.socket) -> None:
        for level, name, value in _OPTIONS:
            option = getattr(socket, name, None)
            if option is not None:
                raw.setsockopt(level, option, value)
        super().__init__(raw)

    def _filled(self) -> None:
        if _QUICKACK is not None:
            # Linux falls back to delayed acknowledgements by itself: set it again each time.
            with contextlib.suppress(OSError):
                self._raw.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)

    def getpeername(self) -> tuple[str, int]:
        address: tuple[str, int] = self._raw.getpeername()
        return address
