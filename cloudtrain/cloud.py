"""What there is to know of each provider before it is opened: one row of facts, its own.

A row is `FACTS` in `providers/<name>/facts.py`, which imports no SDK and no libcloud, so that
`--help`, `plan` and the config reader stay quick. `providers/__init__.py` names the providers.
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
    """Machines that are not simply sold on demand and as spot; with a source and the day on which
    that was read."""

    machines: str
    """A pattern of the machine types; empty for a GPU that was attached to machines still made."""
    shown: str
    kind: str
    markets: tuple[Market, ...] = EVERYWHERE
    retired: date | None = None
    """The day from which no more are made. None with no markets: long ago."""
    instead: str = ""
    """Today's equivalent: a machine type, or an accelerator."""
    unfit: str = ""
    """Why cloudtrain cannot use it with an image of the cloud's own."""
    arm: bool = False
    source: str
    read: date

    def gone(self, day: date) -> bool:
        return not self.markets or (self.retired is not None and day >= self.retired)


@dataclass(frozen=True, kw_only=True)
class Preemption:
    """How a node asks whether its cloud takes it back: an HTTP GET of `address` + `path`.

    Yes is JSON with `event_type` among its `Events` for this node, or, without `event_type`, a text
    that matches the pattern `answer` as a whole.
    """

    address: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    token_path: str = ""
    """Where a PUT with `token_headers` gives a token first, which goes along in `token_header`."""
    token_headers: Mapping[str, str] = field(default_factory=dict)
    token_header: str = ""
    answer: str = ""
    event_type: str = ""
    source: str


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """What a node that has ended by itself leaves, billed until `down`: its disk and address."""

    disks: tuple[tuple[int, float], ...]
    """GiB up to which a disk is billed so, $ a month; ascending."""
    address: float
    """$ a month."""
    source: str


@dataclass(frozen=True, kw_only=True)
class ProviderFacts:
    """Of any provider. One that is neither on this machine nor of `hosts:` makes a bill."""

    name: str
    """In the config, and of the module in providers/."""
    packages: tuple[str, ...] = ()
    """What it imports when it is opened; the extra of its name in pyproject.toml brings them."""
    on_this_machine: bool = False
    """All nodes of all clusters share this machine, its disk and its ports."""
    takes_hosts: bool = False
    """Its machines are those of the config's `hosts:`, and there are no others."""

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
    """What `project:` names there."""
    project_variable: str
    """Of the environment: where a config without `project:` takes it from."""
    store_scheme: str
    """Of the URIs of its own artifact store."""
    machines: Path
    """The dated table of its machine types and prices, written by tools/catalog.py."""
    gpuhunt: str = ""
    """Its name in gpuhunt's catalog, from which newer prices come; "": it is not in there."""
    default_machine: str
    """For a node that names neither machine nor accelerator: 4 vCPUs, 16 GiB."""
    gpu_machines: str
    """A pattern of the machines with GPUs, also of those that the table does not know."""
    attaches: str = ""
    """How the machines begin to which accelerators are attached; "": they are built in."""
    families: tuple[Family, ...] = ()
    first_region: str
    """Where prices are compared while no placement says otherwise."""
    zone: str
    """A pattern of its zones; the first group is the region."""
    region: str = ""
    """A pattern of its regions, also of those that the table does not know; "": there is none."""
    region_likeness: float
    """0 to 1: so much of a known region's name must be there for it to have been meant."""
    preemption: Preemption | None = None
    """None: a node is not told before it is taken."""
    fixed_end: str = ""
    """Why a node that runs keeps the end that it was made with; "": the end can be moved."""
    stopped_keeps_address: bool = False
    """Whether a stopped node's public address is billed."""
    leftover: Leftover | None = None
    """None: nothing is left of a node that has ended by itself."""
    infiniband: str = ""
    """A pattern of the machines whose InfiniBand stays unconnected between single VMs."""
    no_driver: Mapping[str, str] = field(default_factory=dict)
    """Accelerators that the data centre driver does not support: kind → why."""
    tpus: bool = False

    def region_of(self, place: str) -> str:
        """Of a zone; a region is its own."""
        found = re.fullmatch(self.zone, place)
        return found[1] if found else place


def providers() -> tuple[ProviderFacts, ...]:
    """All of them, clouds first."""
    names: tuple[str, ...] = importlib.import_module("cloudtrain.providers").NAMES
    return tuple(_row(name) for name in names)


def clouds() -> tuple[Cloud, ...]:
    return tuple(row for row in providers() if isinstance(row, Cloud))


def facts_of(provider: str) -> ProviderFacts:
    """Of a name that no provider has (a record of another version), that nothing is known."""
    return next((row for row in providers() if row.name == provider), ProviderFacts(name=provider))


def cloud_of(provider: str | None) -> Cloud | None:
    """None where it is no cloud."""
    return next((cloud for cloud in clouds() if cloud.name == provider), None)


def is_cloud(provider: str | None) -> bool:
    return cloud_of(provider) is not None


def _row(name: str) -> ProviderFacts:
    row = importlib.import_module(f"cloudtrain.providers.{name}.facts").FACTS
    assert isinstance(row, ProviderFacts)
    return row
