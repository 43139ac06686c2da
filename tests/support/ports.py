"""Ports that no other test takes: each worker of pytest-xdist has its own, given in turn."""

from __future__ import annotations

import itertools
import os
import socket
import time

FIRST, WIDTH, WORKERS = 10_000, 2_200, 10
"""All below 32768, from where Linux takes ports for connections (ip(7), ip_local_port_range): one
of those may be in use before the test that saw it free has a server there."""
GIVEN = 1_000
"""The rest of a worker's range is for spares: providers/local/fork_server.py, APART."""

_turn = itertools.count(time.monotonic_ns() // 1000)


def free_ports(count: int) -> int:
    """The first of `count` consecutive ports, at most 16, that are free on every address."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    low, places = FIRST + worker % WORKERS * WIDTH, GIVEN // 16
    for _ in range(places):
        first = low + next(_turn) % places * 16
        if all(is_free(port) for port in range(first, first + count)):
            return first
    raise AssertionError("no free ports")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
