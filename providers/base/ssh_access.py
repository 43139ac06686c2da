"""Access to the VMs by SSH: from where, and through what `network.ssh_proxy` names."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import replace
from http.client import HTTPException
from urllib.parse import urlsplit

from cloudtrain.core.errors import UsageError
from cloudtrain.core.model import ClusterConfig, Network
from cloudtrain.core.partial_list import PartialList
from cloudtrain.providers.base.driver import Vm
from cloudtrain.ssh.ssh_proxy import anywhere


def with_proxies(
    machines: PartialList[Vm],
    network: Network,
    *,
    project: str,
    service: Callable[[Vm], tuple[str, ...]],
) -> PartialList[Vm]:
    """The VMs with the command that connects to each. `service`: that of the cloud's service."""
    proxy = network.ssh_proxy
    if proxy is None:
        return machines

    def proxied(machine: Vm) -> Vm:
        node = machine.node
        if not node.address:
            return machine
        values = {
            "address": node.address,
            "port": str(node.ssh_port),
            "name": node.name,
            "id": machine.id,
            "zone": machine.place.zone,
            "region": machine.place.region,
            "project": project,
        }
        words = anywhere(proxy, values) or service(machine)
        return replace(machine, node=replace(node, ssh_proxy=words))

    return PartialList(map(proxied, machines), machines.not_asked)


# ── Finds the caller's address, the only one for which the nodes' SSH port is opened ──────────


SERVICES = ("https://checkip.amazonaws.com/", "https://api.ipify.org/")
"""Services that return their caller's address as plain text."""

SECONDS = 10.0


def caller_cidr(
    config: ClusterConfig,
    endpoint: str | None,
    *,
    proxy: str = "",
    services: Sequence[str] = SERVICES,
) -> str:
    """`network.ssh_from`, or for `auto` the address that the nodes will see; "" to open nothing.

    `endpoint` is a custom compute endpoint, if any. With an emulator or a private cloud, the nodes
    see the address of our own interface on the route to it. `proxy`: the range from which the
    cloud's own `network.ssh_proxy` connects, "" if it needs no rule. With an existing
    `network.firewall` no rule is made: returns "". Raises UsageError; never falls back to a wider
    range."""
    if config.network.firewall is not None or config.network.ssh_from == "none":
        return ""
    if config.network.ssh_from != "auto":
        return config.network.ssh_from
    if config.network.ssh_proxy is not None:
        return proxy
    if endpoint is not None:
        return _as_cidr(_address_towards(endpoint))
    if config.network.private:
        raise UsageError(
            "cannot tell from which address this machine reaches nodes without a public address",
            hint="set it in the config: `network.ssh_from: 10.0.0.0/8`, or `network.ssh_proxy` if "
            "only another machine or service reaches them (docs/private-nodes.md)",
        )
    for service in services:
        with contextlib.suppress(OSError, HTTPException, ValueError):
            return _as_cidr(_address_seen_by(service))
    raise UsageError(
        f"the public address of this machine is unknown: no answer from {' or '.join(services)}",
        hint="set it in the config: `network.ssh_from: ADDRESS/32`",
    )


def _address_towards(endpoint: str) -> str:
    """Our address on the route to `endpoint`. Connecting a datagram socket sends nothing."""
    place = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
    try:
        host, port = place.hostname or "", place.port or 443
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except (OSError, ValueError) as error:
        raise UsageError(
            f"no route to the endpoint {endpoint}: {error}",
            hint="check `endpoints.compute`, or set `network.ssh_from` to this machine's address",
        ) from error


def _address_seen_by(service: str) -> str:
    """Our public address, asked for without a proxy, as SSH has none. Raises ValueError."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(service, timeout=SECONDS) as answer:
        text = answer.read(100).decode("ascii", "replace").strip()
    if not ipaddress.ip_address(text).is_global:
        raise ValueError(f"{text} is not a public address")
    return str(text)


def _as_cidr(address: str) -> str:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return f"{parsed}/{parsed.max_prefixlen}"
