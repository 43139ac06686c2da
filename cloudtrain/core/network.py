"""Hosts: whether this machine reaches any, and which of those in a config may get credentials.

A machine without a network is told before the first request to a host: libraries would retry it for
minutes, each in its own words."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import threading
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from cloudtrain.core.cloud import clouds
from cloudtrain.core.retry import CLOCK, Clock, Retry

TRIES = Retry(pause=0.5, tries=2)
HINT = "check this machine's connection (VPN, proxy, DNS), then run it again"
_UNRESOLVED = "no network: cannot resolve {}"
_NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN)

_reached: set[str] = set()
_lock = threading.Lock()


def no_network(url: str, *, made_up: bool = False, clock: Clock = CLOCK) -> str | None:
    """Reason for which the host of this URL, or the proxy for it, cannot be reached: its name does
    not resolve, or there is no route. None once it could be reached: a later interruption is
    retried as any other.

    `made_up`: the name is made of a user's words, and a name that nobody has proves no lack of a
    network. Sends nothing to the host. Takes two tries."""
    import socket  # which reading a config does not need

    host, port = _next_hop(url)
    if not host or host in _reached or is_loopback(host):
        return None
    try:
        TRIES.call(lambda: _look(host, port), on=OSError, clock=clock)
    except OSError as error:
        if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)):
            return None if made_up else f"no network, or no such name: cannot resolve {host}"
        resolved = not isinstance(error, socket.gaierror)
        return f"no network: {host}: {error.strerror}" if resolved else _UNRESOLVED.format(host)
    with _lock:
        _reached.add(host)
    return None


def _next_hop(url: str) -> tuple[str, int]:
    """Host and port that requests for the URL are sent to."""
    from urllib.request import getproxies, proxy_bypass  # ssl, which reading a config does not need

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
    import socket

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


# ── Hosts of service addresses, and whether they are of domains that may get credentials ──────
# What a URL's host is differs between parsers (`https://good\@evil/`, `http://2852039166/`), so
# only a plain form is read at all, of which every parser says the same.

_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[\w.~!$&'()*+,;=:@%/-]*)?",
    re.ASCII,
)
_HOST = re.compile(
    r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?", re.ASCII
)
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_PORTS = {"http": 80, "https": 443}

TRUST_VARIABLE = "CLOUDTRAIN_TRUST_ENDPOINT"
"""Hosts of the user's own, as `--trust-endpoint` takes them, with spaces between."""


class ServiceHost(NamedTuple):
    """`name` is in lower case, without a final dot or brackets; `port` 0 is any."""

    scheme: str
    name: str
    port: int

    def __str__(self) -> str:
        shown = f"[{self.name}]" if ":" in self.name else self.name
        return shown if self.port in (0, _PORTS.get(self.scheme)) else f"{shown}:{self.port}"


def host_of(url: str) -> ServiceHost:
    """The host of a service's URL. Raises ValueError, which says what is wrong with the URL."""
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ValueError("contains a user or password in the URL")
    found = _URL.fullmatch(url)
    if found is None:
        raise ValueError("must be http:// or https://, a host of ASCII letters, and a path at most")
    port = int(found["port"] or _PORTS[found["scheme"]])
    if not 0 < port < 65536:
        raise ValueError("has a port that is none")
    return ServiceHost(found["scheme"], _name(found["host"]), port)


def split_user(url: str) -> tuple[str, str]:
    """The user before the host, "" for none, and the URL without. An `@` of the path is no user's:
    Azure Artifacts has `https://pkgs.dev.azure.com/ORG/_packaging/FEED@VIEW/pypi/simple/`
    (learn.microsoft.com/azure/devops/artifacts, "feed views")."""
    scheme, mark, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    user, _, host = authority.rpartition("@")
    return user, scheme + mark + host + slash + path


def named_host(text: str) -> ServiceHost:
    """A host as `--trust-endpoint` takes it: HOST, or HOST:PORT for that port alone; `localhost` is
    every address of this machine's own. Raises ValueError."""
    found = _HOST.fullmatch(text)
    if found is None:
        raise ValueError("must be HOST or HOST:PORT")
    return ServiceHost("", _name(found["host"]), int(found["port"] or 0))


def _name(written: str) -> str:
    """The name in its plain form. Raises ValueError for neither a name nor a whole IP address."""
    name = written.lower()
    if name.startswith("["):
        return str(ipaddress.IPv6Address(name.strip("[]")))
    name = name.removesuffix(".")
    labels = name.split(".")
    # As browsers do: `127.1` and `0x7f000001` are addresses to some resolvers, names to others
    # (https://url.spec.whatwg.org/#ends-in-a-number-checker).
    if labels[-1].isdecimal() or re.fullmatch(r"0x[0-9a-f]*", labels[-1]):
        return str(ipaddress.IPv4Address(name))
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("has a host that is no name")
    return name


def is_loopback(name: str) -> bool:
    """True if requests to it stay on this machine."""
    address = _address(name)
    return name.lower() == "localhost" if address is None else address.is_loopback


def is_link_local(name: str) -> bool:
    """True for 169.254.0.0/16, fe80::/10 and Google's name: a machine's metadata service."""
    address = _address(name)
    return name == "metadata.google.internal" if address is None else address.is_link_local


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(name[1:-1] if name[:1] + name[-1:] == "[]" else name)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_below(name: str, domains: Iterable[str]) -> bool:
    """True if the host is one of the domains; with a dot before it, also if it is below one."""
    return any(
        name.endswith(domain) or name == domain[1:] if domain.startswith(".") else name == domain
        for domain in domains
    )


def is_of_the_user(
    host: ServiceHost, named: Collection[str] = (), environ: Mapping[str, str] = os.environ
) -> bool:
    """True if the user named the host: by `--trust-endpoint` (`named`), by TRUST_VARIABLE, or as
    the address of a cloud's service in the variables that the clouds' own tools read. Raises
    ValueError for one that is none."""
    own = [named_host(each) for each in (*named, *environ.get(TRUST_VARIABLE, "").split())]
    for variable in (name for cloud in clouds() for name in cloud.address_variables):
        try:
            own.append(host_of(environ.get(variable, "")))
        except ValueError:
            continue  # empty, or its own reader says what is wrong
    return any(
        (each.name == host.name or (each.name == "localhost" and is_loopback(host.name)))
        and each.port in (0, host.port)
        for each in own
    )
