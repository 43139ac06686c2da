"""Tells a machine without a network before the first request to a host: libraries would retry it
for minutes, each in its own words."""

from __future__ import annotations

import errno
import ipaddress
import socket
import threading
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from cloudtrain.core.retry import CLOCK, Clock, Retry

TRIES = Retry(pause=0.5, tries=2)
HINT = "check this machine's connection (VPN, proxy, DNS), then run it again"
_UNRESOLVED = "no network: cannot resolve {}"
_NO_SUCH_NAME = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
_NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN)

_reached: set[str] = set()
_lock = threading.Lock()


def no_network(url: str, *, made_up: bool = False, clock: Clock = CLOCK) -> str | None:
    """Reason for which the host of this URL, or the proxy for it, cannot be reached: its name does
    not resolve, or there is no route. None once it could be reached: a later interruption is
    retried as any other.

    `made_up`: the name is made of a user's words, and a name that nobody has proves no lack of a
    network. Sends nothing to the host. Takes two tries.
    """
    host, port = _next_hop(url)
    if not host or host in _reached or _is_here(host):
        return None
    try:
        TRIES.call(lambda: _look(host, port), on=OSError, clock=clock)
    except OSError as error:
        if error.errno in _NO_SUCH_NAME:
            return None if made_up else f"no network, or no such name: cannot resolve {host}"
        resolved = not isinstance(error, socket.gaierror)
        return f"no network: {host}: {error.strerror}" if resolved else _UNRESOLVED.format(host)
    with _lock:
        _reached.add(host)
    return None


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _next_hop(url: str) -> tuple[str, int]:
    """Host and port that requests for the URL are sent to."""
    parts = urlsplit(url)
    proxy = getproxies().get(parts.scheme) or getproxies().get("all")
    if proxy and parts.hostname and not proxy_bypass(parts.netloc):
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        if parts.scheme.startswith("socks"):
            return "", 0  # it may resolve names that are unknown here, and so may its own name
    try:
        return parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)
    except ValueError:
        return "", 0


def _look(host: str, port: int) -> None:
    failure: OSError | None = None
    for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)  # chooses a route, and sends nothing
            return
        except OSError as error:
            failure = error
    if failure is not None and failure.errno in _NO_ROUTE:
        raise failure
