"""Ports that a node reserves for its task, so that clusters on one machine do not collide.

A TCP port cannot be held for a program that will open it itself. A node's server holds the name of
an abstract Unix socket instead: unique among all that share the machine's ports (users, state
homes, but not network namespaces), and released with the process.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

LAST = 65_535
TIME_WAIT = "06"
SPARES = 3
"""Number of ports reserved in addition to the first, in case another program takes that one
meanwhile.
"""

APART = 1_000
"""Distance of spares from the first, to stay clear of other nodes' first ports."""


class ReservedPorts:
    """Reserved ports and the sockets that reserve them, until closed."""

    def __init__(self, first: int | None, before: Sequence[int] = ()) -> None:
        self._held: list[socket.socket] = []
        self.ports: list[int] = []
        if first is None:
            return
        busy = in_use()
        for start in (first, *(first + APART for _ in range(SPARES))):
            for port in chain(before, upwards(start)):
                if port not in busy and self._hold(port):
                    self.ports.append(port)
                    break

    def _hold(self, port: int) -> bool:
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            name.bind(f"\0cloudtrain-port-{port}")
        except OSError:
            name.close()
            return False
        self._held.append(name)
        return True

    def close(self) -> None:
        for name in self._held:
            name.close()


def upwards(start: int) -> Iterator[int]:
    """Ports from `start` to the last, then from the first unprivileged one."""
    yield from range(min(start, LAST), LAST + 1)
    yield from range(1024, start)


def in_use() -> frozenset[int]:
    """Local TCP ports in use, read from the kernel's tables. A port in TIME_WAIT counts as free."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = [line.split() for line in Path(table).read_text("ascii").splitlines()[1:]]
        except OSError:
            continue
        found |= {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] != TIME_WAIT}
    return frozenset(found)
