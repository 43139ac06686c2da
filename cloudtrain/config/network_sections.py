"""Sections on addresses: the network, SSH proxies, services, hosts; and how each is read."""

from __future__ import annotations

import ipaddress
import re
import shlex
from typing import Annotated, Any

from cloudtrain.config import fields as kinds
from cloudtrain.config.fields import ONE_OR_LIST, InvalidValue, Reads, line, matching, text
from cloudtrain.config.section import (
    DOWN_FIRST,
    NEXT_RUN,
    REPLACE,
    Effect,
    Fact,
    Section,
    optional,
    required,
)
from cloudtrain.config.yaml_source import Items, Scalar
from cloudtrain.core import model
from cloudtrain.core.cloud import clouds
from cloudtrain.core.network import host_of, is_link_local
from cloudtrain.core.shell import PLACEHOLDER

_HOST = r"(?:[A-Za-z0-9_](?:[A-Za-z0-9._-]*)|\[[0-9A-Fa-f:.]+\])"
_USER = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_JUMP = rf"(?:{_USER}@)?{_HOST}(?::[1-9][0-9]{{0,4}})?"
_GROUP = r"[A-Za-z0-9_.()-]{1,90}"


def proxy_command(node: Any) -> str:
    value = line(node)
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise InvalidValue(f"is not a command line: {error}") from None
    if not words:
        raise InvalidValue("is empty")
    named = [name for word in words for name in PLACEHOLDER.findall(word)]
    if unknown := [name for name in named if name not in model.PROXY_PLACEHOLDERS]:
        known = ", ".join(f"{{{name}}}" for name in model.PROXY_PLACEHOLDERS)
        raise InvalidValue(f"has an unknown placeholder {{{unknown[0]}}}", f"known: {known}")
    return value


address = matching(
    r"[\w\[:][\w.:%\[\]-]*", "must be a host name, an alias of ~/.ssh/config or an address"
)
user = matching(r"\w[\w.@\\+-]*\$?", "must be a user name")
"""Also `DOMAIN\\user`, `user@domain` and a machine's account. Both become arguments of ssh."""
jump_hosts = matching(
    rf"{_JUMP}(?:,{_JUMP})*", "must be [user@]host[:port], several separated by commas"
)
bastion = matching(
    rf"(?i:/subscriptions/[0-9A-Za-z-]+/resourceGroups/{_GROUP}/providers/Microsoft\.Network/"
    rf"bastionHosts/|{_GROUP}/)[A-Za-z0-9_.-]{{1,80}}",
    "must be GROUP/NAME of a Bastion, or its resource ID",
)


def firewall(node: Any) -> tuple[str, ...] | None:
    """`own`, `existing`, or one or several names."""
    if isinstance(node, Items):
        if not node:
            raise InvalidValue("lists none: `existing` attaches none")
        return tuple(line(each) for each in node)
    value = line(node)
    if value in ("own", "existing"):
        return None if value == "own" else ()
    return (value,)


def caller(node: Any) -> str:
    value = text(node)
    if value in ("auto", "none"):
        return value
    try:
        return str(ipaddress.ip_network(value, strict=False))
    except ValueError:
        raise InvalidValue(
            "must be auto, none, or an address or range such as 203.0.113.7/32"
        ) from None


def url(node: Any) -> str:
    """Address of a service that gets credentials."""
    value = line(node)
    try:
        host = host_of(value)
    except ValueError as error:
        raise InvalidValue(str(error)) from None
    if is_link_local(host.name):
        raise InvalidValue("is a metadata service, which is no service of a cloud's API")
    return value


def proxy(node: Any) -> str:
    """URL of a proxy. Every process on a node can read it, so it has no credentials."""
    value = line(node)
    if "@" in value:
        raise InvalidValue("contains a user: every process on a node could read the password")
    if not re.fullmatch(r"https?://([\w.-]+|\[[0-9a-fA-F:]+\]):[0-9]{1,5}/?", value):
        raise InvalidValue("must be http://HOST:PORT")
    return value.rstrip("/")


host_name = matching(r"[\w.:*/-]+", "must be a host, a domain such as .example.com, or an address")
"""A host, domain, address or range, as `no_proxy` has it."""


Address = Annotated[str, Reads(address, "host name or address", "string")]
User = Annotated[str, Reads(user, "user name", "string")]
JumpHosts = Annotated[str, Reads(jump_hosts, "[user@]host[:port]", "string")]
Bastion = Annotated[str, Reads(bastion, "GROUP/NAME | ID", "string")]
ProxyCommand = Annotated[str, Reads(proxy_command, "command line", "string")]
Firewall = Annotated[
    tuple[str, ...] | None, Reads(firewall, "own | existing | firewall, or a list", *ONE_OR_LIST)
]
Caller = Annotated[str, Reads(caller, "auto | none | address/bits", "string")]
Url = Annotated[str, Reads(url, "URL", "string")]
Proxy = Annotated[str, Reads(proxy, "http://HOST:PORT", "string")]
HostName = Annotated[str, Reads(host_name, "host", "string")]


# ── sections ─────────────────────────────────────────────────────────────────


class SshProxySection(Section):
    """Proxy for SSH connections to the nodes: one of these. `ssh_proxy: iap` and
    `ssh_proxy: ssm` are short for `{iap: true}` and `{ssm: true}`."""

    of = model.SshProxy
    jump: JumpHosts | None
    """A jump host, as for `ssh -J`: `[user@]host[:port]`, several separated by commas. Your own
    OpenSSH config and agent log in there."""
    iap: kinds.Boolean | None
    """GCP: Identity-Aware Proxy, by `gcloud compute start-iap-tunnel`."""
    ssm: kinds.Boolean | None
    """AWS: Session Manager, by `aws ssm start-session`."""
    bastion: Bastion | None
    """Azure: a Bastion, by `az network bastion tunnel`: `GROUP/NAME` or its resource ID."""
    command: ProxyCommand | None
    """A command whose stdin and stdout are the connection, run without a shell. `{address}`,
    `{port}`, `{name}`, `{id}`, `{zone}`, `{region}` and `{project}` are filled in."""


def _ssh_proxy(node: Any) -> Any:
    """The short form: the name of a cloud's own service."""
    if not isinstance(node, Scalar) or kinds.is_null(node):
        return node
    name = kinds.text(node)
    if name not in ("iap", "ssm"):
        raise kinds.InvalidValue("must be iap, ssm, or a mapping such as {jump: user@host}")
    return SshProxySection(**{name: True})


SshProxy = Annotated[
    SshProxySection, kinds.Before(_ssh_proxy), kinds.Also("iap | ssm", enum=["iap", "ssm"])
]


class NetworkSection(Section):
    """Network of the nodes, and who can reach them over SSH."""

    of = model.Network
    change = REPLACE
    subnet: kinds.Line | None = optional(
        default="one cloud",
        fact=Fact(form="subnet {}", words={None: "cloudtrain's own choice of subnet"}),
    )
    """An existing subnet. Default: one is chosen or created."""
    vpc: kinds.Line | None = optional(
        default="one cloud",
        fact=Fact(form="vpc {}", words={None: "cloudtrain's own choice of network"}),
    )
    """Instead of `subnet`: an existing network, of which the subnet in each zone or region is used
    (aws: a VPC's ID; gcp: a network's name or path)."""
    firewall: Firewall | None = optional(
        default="one cloud",
        fact=Fact(form="firewall {}", words={None: "cloudtrain's own firewall"}, empty="existing"),
        text=(
            "`own`: cloudtrain creates firewall rules or a security group. Existing ones are used "
            "as they are, never changed or deleted. "
            + "; ".join(f"{each.name}: {each.firewall.word}" for each in clouds() if each.firewall)
            + ". `existing`: nothing is attached, the rules of the subnet hold (gcp, azure) "
            "([companies.md](companies.md#networks))."
        ),
    )
    http_proxy: Proxy | None = optional(
        default="clouds", fact=Fact(key="proxy", form="proxy {}", words={None: "no proxy"})
    )
    """Proxy by which the nodes reach the internet (apt, pip, uv, git, uploads, tasks), without a
    user in it ([companies.md](companies.md#proxies)). This machine uses its own `HTTPS_PROXY`."""
    no_proxy: tuple[HostName, ...] | None = optional(
        default="clouds", fact=Fact(words={"": "none"})
    )
    """Hosts, domains or addresses that nodes reach without `http_proxy`, besides each other,
    private addresses and the metadata service."""
    ssh_from: Caller | None = optional(
        Effect("live", "each `up` updates the firewall"), default="clouds"
    )
    """Source addresses that may use SSH: `auto` is the caller's own address/32, or what `ssh_proxy`
    connects from; `none` opens nothing."""
    ssh_proxy: SshProxy | None = optional(
        Effect("live", "`up` updates the firewall; other commands use what the last `up` had")
    )
    """What SSH goes through, for nodes without public addresses
    ([private-nodes.md](private-nodes.md)). Default: direct connections."""
    os_login: kinds.Boolean | None = optional(
        fact=Fact(words={True: "OS Login", False: "no OS Login"})
    )
    """GCP: create the nodes with OS Login enabled, as organizations may require."""
    private: kinds.Boolean | None = optional(
        default="clouds", fact=Fact(words={True: "no public address", False: "public address"})
    )
    """Create the nodes without public addresses."""
    close: kinds.Close | None = optional(
        Effect("live", "for nodes created from then on"), default="clouds"
    )
    """Place nodes close together, in a placement group: `auto` only for machines with a fast
    interconnect (100 Gbit/s or more), `on` wherever the cloud supports it, `off` never. If the
    group has no capacity, the same zone is tried without it."""


class EndpointsSection(Section):
    """Service addresses for sovereign clouds, private endpoints and S3-compatible stores."""

    of = model.Endpoints
    compute: Url | None = optional(DOWN_FIRST, default="one cloud")
    """Of the compute service."""
    storage: Url | None = optional(NEXT_RUN, default="one cloud")
    """Of the object storage service."""
    auth: Url | None = optional(Effect("live", "every command reads it"), default="one cloud")
    """Of the token service."""


class HostsItem(Section):
    """One existing machine, for `provider: hosts`."""

    of = model.Host
    below = "[]"
    change = Effect("down first", "more machines can be added")
    address: Address = required()
    """Host name or address for SSH from this machine."""
    role: kinds.Line = required()
    """Role of the machine; indexes follow the order of the list."""
    user: User | None
    """User to log in as."""
    key: kinds.Line | None = optional(Effect("live", "every command reads it"))
    """Private key file; relative paths start in this file's folder."""
    port: kinds.SshPort | None
    """SSH port."""
