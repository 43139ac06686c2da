"""Listening address of a local node, in 127.0.0.0/8, derived from the cluster's name."""

from __future__ import annotations

import hashlib

PORTS = (2222, 22022, 0)
"""Ports in order of preference; 0 lets the kernel choose."""

ALL = 254 * 256 * 254
"""Number of addresses: 127.1.0.1 to 127.254.255.254. 127.0 is left to the machine's own services
(127.0.0.1, 127.0.0.53).
"""


def places(seed: str, number: int) -> list[tuple[str, int]]:
    """Choices of (address, port) for node `number`; the later ones are used if the first are
    taken.
    """
    start = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big") + number
    candidates = [address(start + step * 1013) for step in range(8)]
    return [(candidate, port) for port in PORTS for candidate in candidates]


def address(number: int) -> str:
    number %= ALL
    return f"127.{1 + number // (256 * 254)}.{number // 254 % 256}.{1 + number % 254}"
