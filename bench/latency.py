"""A TCP proxy that adds latency, as between a node and a store of its region or of another one.

    python -m bench.latency PORT SERVER 0.030

Listens on PORT and connects to SERVER. Each byte arrives half of the seconds later, in both
directions, and a connection's first byte all of them later still: the time that connecting takes.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tests.standins import stores

ON_THE_WAY = 32 << 20
"""Bytes of one direction of a connection before its sender has to wait."""


class Side(asyncio.Protocol):
    """One side of a connection; what it receives reaches `other` later."""

    def __init__(self, delay: float, first: float = 0.0, port: int | None = None) -> None:
        self._loop, self._delay, self._port = asyncio.get_running_loop(), delay, port
        self._not_before = self._loop.time() + first
        self._due = deque[tuple[float, bytes]]()
        self._size = 0
        self._tasks = set[asyncio.Task[object]]()
        self.other: Side | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self._port is not None:
            self._tasks.add(asyncio.ensure_future(self._connect(self._port)))

    async def _connect(self, port: int) -> None:
        _, other = await self._loop.create_connection(lambda: Side(self._delay), "127.0.0.1", port)
        other.other, self.other = self, other

    def data_received(self, data: bytes) -> None:
        at = max(self._loop.time(), self._not_before) + self._delay
        self._due.append((at, data))
        self._size += len(data)
        if self._size > ON_THE_WAY and self.transport is not None:
            self.transport.pause_reading()
        if len(self._due) == 1:
            self._loop.call_at(at, self._arrive)

    def _arrive(self) -> None:
        now, there = self._loop.time(), self.other and self.other.transport
        if there is None:  # not connected yet
            self._loop.call_later(self._delay, self._arrive)
            return
        while self._due and self._due[0][0] <= now:
            _, data = self._due.popleft()
            self._size -= len(data)
            if data:
                there.write(data)
            else:
                there.close()
        if self._size <= ON_THE_WAY and self.transport is not None:
            self.transport.resume_reading()
        if self._due:
            self._loop.call_at(self._due[0][0], self._arrive)

    def connection_lost(self, error: Exception | None) -> None:
        self.data_received(b"")


async def _listen(port: int, server: int, seconds: float) -> None:
    listener = await asyncio.get_running_loop().create_server(
        lambda: Side(seconds / 2, first=seconds, port=server), "127.0.0.1", port, backlog=1024
    )
    await listener.serve_forever()


@contextmanager
def delayed(store: stores.Store, seconds: float) -> Iterator[stores.Store]:
    """The same store behind the proxy."""
    (server,) = {
        found
        for text in (*store.environment.values(), store.endpoint)
        for found in re.findall(r"127\.0\.0\.1:(\d+)", text)
    }
    with stores.server(
        [sys.executable, "-m", "bench.latency", "PORT", server, str(seconds)]
    ) as port:

        def there(text: str) -> str:
            return text.replace(f"127.0.0.1:{server}", f"127.0.0.1:{port}")

        environment = {name: there(text) for name, text in store.environment.items()}
        yield replace(store, environment=environment, endpoint=there(store.endpoint))


if __name__ == "__main__":
    asyncio.run(_listen(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
