"""Finds the address from which the nodes' SSH port is opened: the caller's own and no other."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from urllib.parse import urlsplit

from cloudtrain.errors import UsageError
from cloudtrain.model import ClusterConfig

SERVICES = ("https://checkip.amazonaws.com/", "https://api.ipify.org/")
"""Each answers with the address that it sees, in plain text."""

SECONDS = 10.0


def caller_cidr(
    config: ClusterConfig, endpoint: str | None, *, services: Sequence[str] = SERVICES
) -> str:
    """`network.ssh_from`, or for `auto` the address under which the nodes will see us.

    `endpoint` is a custom compute endpoint: an emulator or a private one sees the address of our
    connection to it. Raises UsageError, never widens.
    """
    if config.network.ssh_from != "auto":
        return config.network.ssh_from
    if endpoint is not None:
        return _alone(_address_towards(endpoint))
    if config.network.private:
        raise UsageError(
            "nodes without a public address are reached from an address that is not known here",
            hint="say it in the config: `network.ssh_from: 10.0.0.0/8`",
        )
    for service in services:
        with contextlib.suppress(OSError, HTTPException, ValueError):
            return _alone(_address_seen_by(service))
    raise UsageError(
        "the public address of this machine could not be found out: neither of "
        f"{', '.join(services)} told it",
        hint="say it in the config: `network.ssh_from: ADDRESS/32`",
    )


def _address_towards(endpoint: str) -> str:
    """Our address by the kernel's choice of a route; connecting a datagram socket sends nothing."""
    place = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
    try:
        host, port = place.hostname or "", place.port or 443
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except (OSError, ValueError) as error:
        raise UsageError(
            f"there is no route to the endpoint {endpoint}: {error}",
            hint="`endpoints.compute`, or `network.ssh_from` for the address of this machine",
        ) from error


def _address_seen_by(service: str) -> str:
    """Our public address, requested without a proxy, as SSH uses none. ValueError for an address
    that is not public.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(service, timeout=SECONDS) as answer:
        text = answer.read(100).decode("ascii", "replace").strip()
    if not ipaddress.ip_address(text).is_global:
        raise ValueError(f"{text} is no public address")
    return str(text)


def _alone(address: str) -> str:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return f"{parsed}/{parsed.max_prefixlen}"
