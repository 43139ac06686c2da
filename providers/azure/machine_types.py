"""Machine types of a region with their zones and cores; listed only once."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping

from cloudtrain import catalog
from cloudtrain.catalog import gpus
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.model import Accelerator, NodePlan
from cloudtrain.core.protocols import MachineFacts
from cloudtrain.providers.azure.client import ArmClient
from cloudtrain.providers.azure.listing import plain
from cloudtrain.providers.base.http import Tree


@dataclass(frozen=True, kw_only=True)
class Sku:
    name: str
    family: str
    """Name of the type's quota in `usages`: `standardNCASv3_T4Family`."""
    cores: int | None
    zones: frozenset[str]
    """Zones that this subscription may use: `{"1", "3"}`."""
    all_zones: frozenset[str]
    refused: str
    """Why this subscription may not use the type anywhere in the region; "" if it may."""
    fast: bool
    """True if the type supports accelerated networking."""
    gpus: int = 0
    memory_gib: float = 0.0
    arm: bool = False
    scratch_gb: int | None = None
    """Its temporary disk and its NVMe disks together; None if not reported."""
    spot: bool = True
    """False if the type is never sold as spot."""
    controllers: frozenset[str] = frozenset()
    """Disk controllers that the type boots from: `{"SCSI", "NVMe"}`; empty if not reported."""
    generations: frozenset[str] = frozenset()
    """Generations of images that the type boots: `{"V1", "V2"}`; empty if not reported."""

    def mismatch(self, node: NodePlan) -> str | None:
        """Reason for which this node cannot have this type; None if nothing that Azure reports
        contradicts it.

        Azure reports the number of GPUs, but shows their kind only in the type's name."""
        wanted = node.accelerator
        if self.arm:
            return f"{self.name} is an ARM machine, but cloudtrain's images are x86-64"
        unasked = wanted is None and catalog.is_unknown_machine("azure", self.name)
        if self.gpus and (unasked or (wanted is not None and wanted.count != self.gpus)):
            return f"{self.name} has {self.gpus} GPUs, not {wanted or 'none'}"
        return None

    def facts(self) -> MachineFacts:
        return MachineFacts(
            name=self.name,
            vcpus=self.cores or 0,
            memory_gib=self.memory_gib,
            accelerator=self.accelerator,
            arm=self.arm,
            scratch_gb=self.scratch_gb,
        )

    @property
    def nvme_only(self) -> bool:
        return self.controllers == {"NVMe"}

    @property
    def accelerator(self) -> Accelerator | None:
        """The type's accelerator; None if it has none or its name does not show the kind."""
        words = self.name.split("_")[2:]
        kinds = [row.kind for row in map(gpus.gpu, words) if row is not None]
        return Accelerator(kind=kinds[0], count=self.gpus) if kinds and self.gpus else None


class Skus:
    """Machine types that an endpoint lists, cached for the duration of a command."""

    def __init__(self, arm: ArmClient) -> None:
        self._arm = arm
        self._known: dict[str, Mapping[str, Sku] | None] = {}
        self._lock = threading.Lock()

    def of(self, region: str) -> Mapping[str, Sku] | None:
        """The machine types of a region by name in lower case; None if they are not listed."""
        with self._lock:
            if region not in self._known:
                path = f"{self._arm.path}/providers/Microsoft.Compute/skus"
                entries = self._arm.pages_if_told(path, **{"$filter": f"location eq '{region}'"})
                found = {sku.name.lower(): sku for sku in read(entries, region)}
                self._known[region] = found or None
            return self._known[region]

    def facts(self, regions: Iterable[str], names: Iterable[str]) -> tuple[MachineFacts, ...]:
        """The facts of each type, from the first region that has it, if its GPUs are known."""
        known = [self.of(region) or {} for region in dict.fromkeys(regions)]
        found = [next((k[n.lower()] for k in known if n.lower() in k), None) for n in names]
        return tuple(s.facts() for s in found if s is not None and (s.accelerator or not s.gpus))


def read(entries: Iterable[Tree], region: str) -> list[Sku]:
    """Parse a response of https://learn.microsoft.com/rest/api/compute/resource-skus/list"""
    return [
        _sku(entry, region)
        for entry in entries
        if str(entry.get("resourceType", "")).lower() == "virtualmachines"
        and region in {plain(str(place)) for place in entry.get("locations") or ()}
    ]


def _sku(entry: Tree, region: str) -> Sku:
    zones = {
        str(zone)
        for info in entry.get("locationInfo") or ()
        if plain(str(info.get("location", ""))) == region
        for zone in info.get("zones") or ()
    }
    restricted, refused = set(), ""
    for rule in entry.get("restrictions") or ():
        if str(rule.get("type", "")).lower() == "zone":
            restricted |= {str(z) for z in (rule.get("restrictionInfo") or {}).get("zones") or ()}
        else:
            refused = str(rule.get("reasonCode") or "restricted")
    capabilities = {
        str(c.get("name")): str(c.get("value")) for c in entry.get("capabilities") or ()
    }
    cores = capabilities.get("vCPUs", "")
    return Sku(
        name=str(entry.get("name", "")),
        family=str(entry.get("family") or ""),
        cores=int(cores) if cores.isdecimal() else None,
        zones=frozenset(zones - restricted),
        all_zones=frozenset(zones),
        refused=refused,
        fast=capabilities.get("AcceleratedNetworkingEnabled", "").lower() == "true",
        # A share, such as `0.33` of NV…ads_A10_v5, counts as one.
        gpus=math.ceil(_number(capabilities.get("GPUs", ""))),
        memory_gib=_number(capabilities.get("MemoryGB", "")),
        arm=capabilities.get("CpuArchitectureType", "").lower() == "arm64",
        scratch_gb=_scratch_gb(capabilities),
        spot=capabilities.get("LowPriorityCapable", "").lower() != "false",
        controllers=words_of(capabilities.get("DiskControllerTypes", "")),
        generations=words_of(capabilities.get("HyperVGenerations", "")),
    )


def _scratch_gb(capabilities: Mapping[str, str]) -> int | None:
    """MaxResourceVolumeMB is the temporary disk's size, in MiB: 884736 for Standard_E64s_v3
    (https://learn.microsoft.com/azure/virtual-machines/disks-enable-ultra-ssd), whose page says
    864 GiB. NvmeDiskSizeInMiB is that of all its NVMe disks (read in Azure/skewer)."""
    names = ("MaxResourceVolumeMB", "NvmeDiskSizeInMiB")
    sizes = [_number(capabilities[name]) for name in names if name in capabilities]
    return int(sum(sizes) * 2**20 // 10**9) if sizes else None


def words_of(text: str) -> frozenset[str]:
    """The parts of a list with commas."""
    return frozenset(filter(None, map(str.strip, text.split(","))))


def _number(text: str) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
