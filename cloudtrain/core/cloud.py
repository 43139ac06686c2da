"""Facts about each provider that are needed before it is opened.

They are `FACTS` in `providers/<name>/facts.py`, which imports no SDK and no libcloud, so that
`--help`, `plan` and the config reader stay fast. `providers/__init__.py` names the providers."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from types import ModuleType

from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.model import ClusterConfig, Market, Provisioning
from cloudtrain.core.store_kinds import kind_of

EVERYWHERE: tuple[Market, ...] = ("on-demand", "spot")
EVERY_WAY: tuple[Market, ...] = (*EVERYWHERE, "flex-start", "reservation")


@dataclass(frozen=True, kw_only=True)
class Family:
    """Machines that are not simply sold on demand and as spot, with the source and its date."""

    machines: str
    """Pattern of the machine types; empty for a GPU that was attached to machines still on sale."""
    shown: str
    kind: str
    markets: tuple[Market, ...] = EVERYWHERE
    retired: date | None = None
    """First day on which they are no longer offered. None with no markets: long ago."""
    instead: str = ""
    """Current equivalent: a machine type, or an accelerator."""
    unfit: str = ""
    """Why cloudtrain cannot use it with the cloud's own images."""
    arm: bool = False
    source: str
    read: date

    def gone(self, day: date) -> bool:
        return not self.markets or (self.retired is not None and day >= self.retired)


@dataclass(frozen=True, kw_only=True)
class TpuFamily:
    """One generation of TPUs. Its types are named `<prefix>-<size>`; a type is a slice of one or
    several hosts, which is created and deleted as a whole."""

    prefix: str
    cores_per_chip: int
    """What a type's size counts for each chip: 2 if it counts TensorCores, 1 if it counts chips."""
    one_host: int
    """Most chips of a slice with a single host."""
    per_host: int = 4
    """Chips of each host of a larger slice."""
    most: int
    """Chips of the largest slice."""
    zones: tuple[str, ...]
    prices: Mapping[str, tuple[float, float | None]]
    """Region → $ per chip and hour, on demand and as spot (None: not known)."""
    priced: date
    """Day of the prices, or a day on which they already were so."""
    runtime: str
    """Software version of its hosts with nothing but the driver (`image: auto`)."""
    source: str
    read: date


@dataclass(frozen=True, kw_only=True)
class MetadataQuery:
    """Query of a node to its metadata service: an HTTP GET of `address` + `path`."""

    address: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    token_path: str = ""
    """Path at which a PUT with `token_headers` returns a token, to be sent as `token_header`."""
    token_headers: Mapping[str, str] = field(default_factory=dict)
    token_header: str = ""
    source: str


@dataclass(frozen=True, kw_only=True)
class Preemption(MetadataQuery):
    """Query of a node for its preemption notice. A notice is JSON with `event_type` among its
    `Events` for this node, or, without `event_type`, a text that fully matches the pattern
    `answer`.

    Not asked for, as none is a sure end of a spot node (read 2026-11-23): Google's graceful
    shutdown (https://cloud.google.com/compute/docs/instances/graceful-shutdown-overview) and notice
    of maintenance (https://cloud.google.com/compute/docs/gpus/gpu-host-maintenance), AWS'
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html, and Azure's
    https://learn.microsoft.com/azure/virtual-machine-scale-sets/virtual-machine-scale-sets-terminate-notification
    """

    answer: str = ""
    event_type: str = ""
    seconds: float
    """From the notice to the node's end."""


@dataclass(frozen=True, kw_only=True)
class TokenQuery(MetadataQuery):
    """Query of a node for a token of its identity: the JSON answer has the token under `key`."""

    key: str
    listed: bool = False
    """The answer of `path` is a name; the JSON is below it."""
    scopes_path: str = ""
    """Path at which a GET lists the scopes of the token, which must include `scope`."""
    scope: str = ""


@dataclass(frozen=True, kw_only=True)
class ResourceName:
    """Form of a value that names one of the account's own resources on a cloud."""

    word: str
    """In words, with its article: `the name or ARN of an instance profile`."""
    example: str
    pattern: str
    """Pattern of the value, without regard to case. Equal groups mean the same resource."""
    source: str

    def accepts(self, value: str) -> bool:
        return re.fullmatch(self.pattern, value, re.IGNORECASE) is not None

    def same(self, one: str | None, other: str | None) -> bool:
        """True if both name the same resource; None and "" name none."""
        if not one or not other:
            return not one and not other
        return self._key(one) == self._key(other)

    def _key(self, value: str) -> tuple[str, ...]:
        found = re.fullmatch(self.pattern, value, re.IGNORECASE)
        return tuple(each.lower() for each in found.groups() if each) if found else (value,)


@dataclass(frozen=True, kw_only=True)
class ProxyFault:
    """Failure of a command of `network.ssh_proxy`: what it writes to stderr, and what to do."""

    written: str
    """Pattern in what it has written, without regard to case."""
    hint: str
    lasting: bool = True
    """Whether it fails alike until somebody has done that."""


@dataclass(frozen=True, kw_only=True)
class SshService:
    """A cloud's own service that connects to the SSH port of nodes without a public address."""

    field: str
    """Its field in `network.ssh_proxy`."""
    programs: Mapping[str, str]
    """Programs that must be installed → where they are to be had."""
    versions: tuple[str, ...]
    """Command that prints a version, or fails if a part of the program is missing."""
    faults: tuple[ProxyFault, ...]
    source: str


@dataclass(frozen=True, kw_only=True)
class NodeIdentity(ResourceName):
    """Values that `identity:` takes."""

    token: TokenQuery


@dataclass(frozen=True, kw_only=True)
class TagRules:
    """Rules of a cloud for `tags:`, with their source."""

    name: str
    """Pattern of a tag's name."""
    value: str
    """Pattern of a tag's value."""
    words: str
    """Both patterns in words, after "must have"."""
    most: int
    """Maximum number of the user's own tags: the cloud's limit less those of cloudtrain."""
    reserved: tuple[str, ...] = ()
    """Beginnings of names that the cloud keeps for itself, in lower case."""
    taken: tuple[str, ...] = ()
    """Names of tags that cloudtrain sets itself."""
    ignores_case: bool = False
    """True if names that differ only in case are the same tag."""
    source: str


@dataclass(frozen=True, kw_only=True)
class ReservationName(ResourceName):
    """Values that `reservation:` or `capacity_block:` takes. Two of them name the same one if the
    named groups that both have are equal: a longer form adds groups."""

    def same(self, one: str | None, other: str | None) -> bool:
        parts = [re.fullmatch(self.pattern, value or "", re.IGNORECASE) for value in (one, other)]
        if parts[0] is None or parts[1] is None:
            return one == other
        mine, theirs = parts[0].groupdict(), parts[1].groupdict()
        return all(
            mine[name].lower() == theirs[name].lower()
            for name in mine
            if mine[name] is not None and theirs[name] is not None
        )


@dataclass(frozen=True, kw_only=True)
class DiskPrice:
    """List price of one kind of disk that nodes get, in the cloud's `first_region`."""

    kind: str
    machines: str = ".*"
    """Pattern of the machine types whose nodes get it."""
    gpus: bool | None = None
    """Only with (True) or without (False) GPUs; None: both."""
    per_gb: float = 0.0
    """$ for each GB and month."""
    fixed: float = 0.0
    """$ a month for each disk besides, such as for throughput."""
    steps: tuple[tuple[int, float], ...] = ()
    """(GiB, $ a month): price of a disk up to that size, ascending; instead of `per_gb`."""

    def serves(self, machine: str, *, gpus: bool) -> bool:
        right = self.gpus is None or self.gpus == gpus
        return right and re.fullmatch(self.machines, machine, re.IGNORECASE) is not None

    def per_month(self, gb: int) -> float | None:
        """$ a month in the first region; None for a disk larger than the steps."""
        if not self.steps:
            return self.per_gb * gb + self.fixed
        return next((price for size, price in self.steps if gb <= size), None)


@dataclass(frozen=True, kw_only=True)
class NodeParts:
    """Prices of what is billed beside a node's machine: its root disk and its public address."""

    disks: tuple[DiskPrice, ...]
    """The first that serves a machine counts."""
    address: float
    """$ an hour of a public IPv4 address that is in use."""
    regions: Mapping[str, float]
    """Region → its disk prices as a multiple of those of the first region."""
    elsewhere: float
    """The same for all other regions: an upper bound."""
    gpu_disk_gb: int = 0
    """GB of a disk with GPUs without `disk_gb`, at most; 0: the cloud's `gpu_disk_gb`."""
    source: str
    read: date


@dataclass(frozen=True, kw_only=True)
class Egress:
    """$ for each GB that leaves a store of the cloud; within one region it is free. List prices of
    the first paid tier in North America and Europe: an estimate."""

    regions: float
    """To another region of the cloud."""
    internet: float
    """To anywhere else."""
    areas: Mapping[str, str] = field(default_factory=dict)
    """Locations of buckets that cover several regions: location → pattern of those regions."""
    source: str


@dataclass(frozen=True, kw_only=True)
class ProviderFacts:
    """Facts about any provider. Only those that are neither on this machine nor `hosts:` bill."""

    name: str
    """Name in the config, and of the module in providers/."""
    packages: tuple[str, ...] = ()
    """Packages that it imports when opened; the extra of its name in pyproject.toml has them."""
    on_this_machine: bool = False
    """All nodes of all clusters share this machine, its disk and its ports."""
    takes_hosts: bool = False
    """Its machines are exactly those of the config's `hosts:`."""

    @property
    def free(self) -> bool:
        return self.on_this_machine or self.takes_hosts


@dataclass(frozen=True, kw_only=True)
class Cloud(ProviderFacts):
    """A provider that rents machines over an account and an API. Patterns are matched against the
    whole name; those of machines without regard to case."""

    # ── An account, and who may do what ──

    title: str
    vendor: str
    project_word: str
    """The cloud's word for what `project:` names."""
    project_variable: str
    """Environment variable that is the default of `project:`."""
    project_is_local: bool = False
    """Whether `project:` names something on this machine, which another one does not have."""
    store_scheme: str
    """URI scheme of its own artifact store."""
    identity: NodeIdentity | None = None
    """None: nodes cannot get an identity."""
    resource_group: ResourceName | None = None
    """What `resource_group:` takes; None: the cloud has no such groups."""
    disk_key: ResourceName | None = None
    """What `disk_key:` takes; `{region}` in a value is the region of the node."""
    tags: TagRules | None = None
    """None: its resources have no tags."""
    address_variables: tuple[str, ...] = ()
    """Environment variables with addresses of its services, without credentials, for a desk."""
    desk_variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of a desk itself."""
    credential_hosts: tuple[str, ...] = ()
    """Hosts of its own that get credentials without a question; `.example.com` is also all below
    it. No customer of the cloud can have a machine under one of these names."""
    signs_by_host: bool = False
    """True if credentials only sign requests, and a signature holds for the host that it was made
    for: another host learns nothing that it could use elsewhere."""

    # ── Networks ──

    vpc: ResourceName | None = None
    """What `network.vpc` takes; None: `network.subnet` names the subnet itself."""
    firewall: ResourceName | None = None
    """What `network.firewall` takes for an existing one."""
    most_firewalls: int = 1
    """Maximum number of these on a node."""
    firewalls_of_subnets: bool = False
    """True if the rules of a network or subnet can hold for nodes to which nothing is attached."""
    ssh_proxy: SshService | None = None
    """Its own service for nodes without a public address."""
    os_login: bool = False
    """Whether `network.os_login` is for it."""
    infiniband: str = ""
    """Pattern of the machines whose InfiniBand does not connect single VMs."""

    # ── Places and machines ──

    zone: str
    """Pattern of its zones; the first group is the region."""
    zone_names: str = ""
    """Pattern of the zones that there may be, narrower than what is read of the cloud; "": any."""
    region: str = ""
    """Pattern of its regions, including those that the table lacks; "": none."""
    region_likeness: float
    """Minimum similarity (0 to 1) to a known region's name for a "did you mean"."""
    first_region: str
    """Region in which prices are compared if there is no placement."""
    machines: Path
    """Dated table of its machine types and prices, written by tools/catalog.py."""
    gpuhunt: str = ""
    """Its name in gpuhunt's catalog, the source of newer prices; "": not in it."""
    default_machine: str
    """Machine type of a node with neither `machine` nor `accelerator`: 4 vCPUs, 16 GiB."""
    desk_machine: str
    """Machine type that attends to `run --away`: 2 vCPUs and at least 4 GiB, for this program, SSH
    to all nodes and what is uploaded through it."""
    gpu_machines: str
    """Pattern of the machines with GPUs, including those that the table lacks."""
    attaches: str = ""
    """Prefix of the machines to which accelerators are attached; "": they are built in."""
    families: tuple[Family, ...] = ()
    tpus: tuple[TpuFamily, ...] = ()
    """Its TPUs; empty: none."""
    markets: tuple[Market, ...] = EVERYWHERE
    """Values of `provisioning:` that its driver can request."""
    usual_markets: tuple[Market, ...] = EVERYWHERE
    """How machines without GPUs are sold, and those with GPUs that no row of `families` names."""
    run_times: Mapping[Market, tuple[float, float]] = field(default_factory=dict)
    """Seconds between which `limits.max_lifetime` must be for machines of that market."""
    reservations: Mapping[Market, ReservationName] = field(default_factory=dict)
    """Names of its reservations, by the market that needs one; without a row any text is taken."""
    preemption: Preemption | None = None
    """None: nodes get no notice before a preemption."""
    no_driver: Mapping[str, str] = field(default_factory=dict)
    """Accelerators that the data centre driver does not support: kind → why."""
    disk_gb: int = 0
    """Size in GB of a root disk without `disk_gb`, 0 if not known; images may make it larger."""
    gpu_disk_gb: int = 0
    """The same of a node with GPUs."""
    scratch_machines: str = ""
    """Pattern of machines that may have local disks: images or playbooks/base mount them."""

    # ── Money and ends ──

    parts: NodeParts
    """Prices of disks and addresses."""
    keeps_parts: bool = False
    """Whether an expired node's disk and address stay, billed until `down`."""
    stopped_keeps_address: bool = False
    """Whether a stopped node's public address is billed."""
    egress: Egress | None = None
    """None: not known."""
    end_takes: float
    """Seconds at most from a node's expiry until nothing of its machine is billed any more."""
    soonest_end: float = 60.0
    """Least seconds between now and an expiry that the cloud can hold."""
    shutdown_leaves: str | None = None
    """What is still billed of a machine that shuts itself down, "" for nothing; None: all of it, so
    that no node can end itself."""
    fixed_end: str = ""
    """Why the expiry of a running node cannot be changed; "": it can."""
    tpu_end: str = ""
    """Why a TPU does not end by itself at `limits.max_lifetime`; "": it does."""

    @property
    def bucket_schemes(self) -> tuple[str, ...]:
        """URI schemes under which scripts name buckets of this cloud."""
        kind = kind_of(f"{self.store_scheme}://")
        return kind.bucket_schemes if kind else ()

    def same_purchase(self, one: Provisioning, other: Provisioning) -> bool:
        """True if both buy in the same way, however the reservation is spelled."""
        if one.market != other.market or one.market not in self.reservations:
            return one == other
        return self.reservations[one.market].same(one.name, other.name)

    @functools.cached_property
    def family_of(self) -> dict[str, Family | None]:
        """Families of the machine types that were asked for (`availability.family`)."""
        return {}

    def region_of(self, zone: str) -> str:
        """Region of a zone; a region is returned unchanged."""
        found = re.fullmatch(self.zone, zone)
        return found[1] if found else zone


def providers() -> tuple[ProviderFacts, ...]:
    """All providers, clouds first."""
    names: tuple[str, ...] = _module("cloudtrain.providers").NAMES
    return tuple(_row(name) for name in names)


def clouds() -> tuple[Cloud, ...]:
    return tuple(row for row in providers() if isinstance(row, Cloud))


def facts_of(provider: str) -> ProviderFacts:
    """Facts of a provider; empty ones for an unknown name (a record of another version)."""
    known = provider in _module("cloudtrain.providers").NAMES
    return _row(provider) if known else ProviderFacts(name=provider)


def cloud_of(provider: str | None) -> Cloud | None:
    """The cloud of that name; None if it is no cloud."""
    row = facts_of(provider or "")
    return row if isinstance(row, Cloud) else None


def served_folder(config: ClusterConfig) -> str | None:
    """Name of the shared folder that a rented node serves from its disk, if there is one."""
    shared = config.shared
    return shared.folder if shared and not shared.path and is_cloud(config.provider) else None


def is_cloud(provider: str | None) -> bool:
    return cloud_of(provider) is not None


def _row(name: str) -> ProviderFacts:
    row = _module(f"cloudtrain.providers.{name}.facts").FACTS
    assert isinstance(row, ProviderFacts)
    return row


@functools.cache
def _module(name: str) -> ModuleType:
    """`gpus` asks for each offer's cloud, and import_module takes as long as all the rest."""
    return importlib.import_module(name)
