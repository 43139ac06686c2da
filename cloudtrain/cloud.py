"""Facts about each provider that are needed before it is opened.

They are `FACTS` in `providers/<name>/facts.py`, which imports no SDK and no libcloud, so that
`--help`, `plan` and the config reader stay fast. `providers/__init__.py` names the providers.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Literal

Market = Literal["on-demand", "spot", "flex-start", "reservation"]

EVERYWHERE: tuple[Market, ...] = ("on-demand", "spot")
WAITED_FOR: tuple[Market, ...] = ("spot", "flex-start", "reservation")


@dataclass(frozen=True, kw_only=True)
class Family:
    """Machines that are not simply sold on demand and as spot; with the source and the date on
    which it was read."""

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
    """How a node asks its metadata service: an HTTP GET of `address` + `path`."""

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
    """How a node queries for its preemption notice.

    A notice is JSON with `event_type` among its `Events` for this node, or, without `event_type`, a
    text that fully matches the pattern `answer`.
    """

    answer: str = ""
    event_type: str = ""
    seconds: float
    """From the notice to the node's end."""


@dataclass(frozen=True, kw_only=True)
class TokenQuery(MetadataQuery):
    """How a node gets a token of its identity: the JSON answer has it under `key`."""

    key: str
    listed: bool = False
    """The answer of `path` is a name; the JSON is below it."""
    scopes_path: str = ""
    """Path at which a GET lists the scopes of the token, which must include `scope`."""
    scope: str = ""


@dataclass(frozen=True, kw_only=True)
class NodeIdentity:
    """What `identity:` takes on a cloud, with its source."""

    word: str
    """In words, with its article: `the name or ARN of an instance profile`."""
    example: str
    pattern: str
    """Pattern of the value, without regard to case. Equal groups mean the same identity."""
    token: TokenQuery
    source: str

    def accepts(self, value: str) -> bool:
        return re.fullmatch(self.pattern, value, re.IGNORECASE) is not None

    def same(self, one: str | None, other: str | None) -> bool:
        """True if both name the same identity; None and "" name none."""
        if not one or not other:
            return not one and not other
        return self._key(one) == self._key(other)

    def _key(self, value: str) -> tuple[str, ...]:
        found = re.fullmatch(self.pattern, value, re.IGNORECASE)
        return tuple(each.lower() for each in found.groups() if each) if found else (value,)


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """What an expired node leaves behind, billed until `down`: its disk and address."""

    disks: tuple[tuple[int, float], ...]
    """(GiB, $ a month): price of a disk up to that size; ascending."""
    address: float
    """$ a month."""
    source: str


@dataclass(frozen=True, kw_only=True)
class Egress:
    """$ for each GB that leaves a store of the cloud; within one region it is free.

    List prices of the first paid tier in North America and Europe: an estimate.
    """

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
    """A provider that rents machines over an account and an API.

    Patterns are matched against the whole name; those of machines without regard to case.
    """

    title: str
    vendor: str
    project_word: str
    """The cloud's word for what `project:` names."""
    project_variable: str
    """Environment variable that is the default of `project:`."""
    store_scheme: str
    """URI scheme of its own artifact store."""
    bucket_schemes: tuple[str, ...] = ()
    """URI schemes under which scripts name buckets of this cloud."""
    identity: NodeIdentity | None = None
    """None: nodes cannot get an identity."""
    machines: Path
    """Dated table of its machine types and prices, written by tools/catalog.py."""
    gpuhunt: str = ""
    """Its name in gpuhunt's catalog, the source of newer prices; "": not in it."""
    default_machine: str
    """Machine type of a node with neither `machine` nor `accelerator`: 4 vCPUs, 16 GiB."""
    gpu_machines: str
    """Pattern of the machines with GPUs, including those that the table lacks."""
    attaches: str = ""
    """Prefix of the machines to which accelerators are attached; "": they are built in."""
    families: tuple[Family, ...] = ()
    first_region: str
    """Region in which prices are compared if there is no placement."""
    zone: str
    """Pattern of its zones; the first group is the region."""
    region: str = ""
    """Pattern of its regions, including those that the table lacks; "": none."""
    region_likeness: float
    """Minimum similarity (0 to 1) to a known region's name for a "did you mean"."""
    preemption: Preemption | None = None
    """None: nodes get no notice before a preemption."""
    fixed_end: str = ""
    """Why the expiry of a running node cannot be changed; "": it can."""
    stopped_keeps_address: bool = False
    """Whether a stopped node's public address is billed."""
    leftover: Leftover | None = None
    """None: an expired node leaves nothing behind."""
    egress: Egress | None = None
    """None: not known."""
    disk_gb: int = 0
    """Size in GB of a root disk without `disk_gb`, 0 if not known; images may make it larger."""
    gpu_disk_gb: int = 0
    """The same of a node with GPUs."""
    scratch_machines: str = ""
    """Pattern of the machines that may have local disks of their own, which their images or
    playbooks/local_disks mount."""
    infiniband: str = ""
    """Pattern of the machines whose InfiniBand does not connect single VMs."""
    no_driver: Mapping[str, str] = field(default_factory=dict)
    """Accelerators that the data centre driver does not support: kind → why."""
    tpus: tuple[TpuFamily, ...] = ()
    """Its TPUs; empty: none."""
    tpu_end: str = ""
    """Why a TPU does not end by itself at `limits.max_lifetime`; "": it does."""

    def region_of(self, place: str) -> str:
        """Region of a zone; a region is returned unchanged."""
        found = re.fullmatch(self.zone, place)
        return found[1] if found else place


def providers() -> tuple[ProviderFacts, ...]:
    """All providers, clouds first."""
    names: tuple[str, ...] = importlib.import_module("cloudtrain.providers").NAMES
    return tuple(_row(name) for name in names)


def clouds() -> tuple[Cloud, ...]:
    return tuple(row for row in providers() if isinstance(row, Cloud))


def facts_of(provider: str) -> ProviderFacts:
    """Facts of a provider; empty ones for an unknown name (a record of another version)."""
    return next((row for row in providers() if row.name == provider), ProviderFacts(name=provider))


def cloud_of(provider: str | None) -> Cloud | None:
    """The cloud of that name; None if it is no cloud."""
    return next((cloud for cloud in clouds() if cloud.name == provider), None)


def is_cloud(provider: str | None) -> bool:
    return cloud_of(provider) is not None


def _row(name: str) -> ProviderFacts:
    row = importlib.import_module(f"cloudtrain.providers.{name}.facts").FACTS
    assert isinstance(row, ProviderFacts)
    return row
