"""Reads from a socket ahead of a caller that asks for a few bytes at a time, as paramiko does."""

from __future__ import annotations

import socket

BUFFER_BYTES = 1 << 16


class ReadAhead:
    """Bytes of a socket, in one system call for all that are there."""

    def __init__(self, raw: socket.socket) -> None:
        self._raw = raw
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    @property
    def is_empty(self) -> bool:
        """True if the next `recv` asks the socket."""
        return self._start == self._end

    def recv(self, size: int) -> bytes:
        """Up to `size` bytes, b"" at the end. Raises what the socket's `recv` does."""
        if self.is_empty:
            self._end = self._raw.recv_into(self._buffer)
            self._start = 0
        end = min(self._start + size, self._end)
        data = self._view[self._start : end].tobytes()
        self._start = end
        return data
