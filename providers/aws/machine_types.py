"""Machine types as EC2 reports them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from cloudtrain import catalog
from cloudtrain.catalog.gpus import canonical_name, is_same_accelerator
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import if_told
from cloudtrain.core.model import Accelerator, NodePlan, Plan
from cloudtrain.core.protocols import MachineFacts
from cloudtrain.providers.aws import requests, xml
from cloudtrain.providers.aws.client import Ec2Client
from cloudtrain.providers.aws.reservations import has_blocks
from cloudtrain.providers.aws.xml import Tree


@dataclass(frozen=True, kw_only=True)
class Ec2MachineType:
    name: str
    vcpus: int
    memory_gib: float
    gpu: str
    """EC2's name of the GPU, such as `T4` or `A10G`; "" without a GPU."""
    gpus: int
    maker: str
    """Maker of the GPUs."""
    architectures: tuple[str, ...]
    spot: bool
    close: bool
    """True if this type can join a placement group that puts its members close together."""
    scratch_gb: int | None = None
    """Size of its instance store; None if not reported."""
    efa_cards: tuple[int, ...] = ()
    """Network cards that support an Elastic Fabric Adapter."""
    fast: bool = False
    """True if a placement group speeds up the network: an Elastic Fabric Adapter, or at least 100
    Gbit/s."""

    @property
    def arm(self) -> bool:
        return bool(self.architectures) and "x86_64" not in self.architectures

    @property
    def accelerator(self) -> Accelerator | None:
        return Accelerator(kind=canonical_name(self.gpu), count=self.gpus) if self.gpu else None

    def mismatch(self, node: NodePlan) -> str | None:
        """Reason for which this node cannot have this type; None if it can."""
        wanted = node.accelerator
        if self.arm:
            return f"{self.name} is an ARM machine, but cloudtrain's images are x86-64"
        if node.spot and not self.spot:
            return f"{self.name} is not sold as spot"
        has = f"{self.gpu}:{self.gpus}" if self.gpus else "no accelerator"
        if wanted is None:
            news = self.gpus and catalog.is_unknown_machine("aws", self.name)
            return f"{self.name} has {has}, but no accelerator is requested" if news else None
        if not is_same_accelerator(self.gpu, wanted.kind) or wanted.count != self.gpus:
            return f"{self.name} has {has}, not {wanted}"
        return None


def machine_types(
    ec2: Ec2Client, region: str, names: Iterable[str]
) -> Mapping[str, Ec2MachineType]:
    """The machine types of `names` that the region has, by name; each is described once."""
    wanted = dict.fromkeys(names)
    missing = [name for name in wanted if (region, name) not in ec2.described]
    if missing:
        asked = requests.filters(instance_type=sorted(missing))
        for each in ec2.pages(region, "DescribeInstanceTypes", "instanceTypeSet", asked):
            ec2.described[region, xml.text(each, "instanceType")] = each
    found = (ec2.described.get((region, name)) for name in wanted)
    return {each.name: each for each in (_machine_type(tree) for tree in found if tree is not None)}


def facts(ec2: Ec2Client, regions: Iterable[str], names: Iterable[str]) -> tuple[MachineFacts, ...]:
    """The facts of each machine type, from a region that has described it before, or else from the
    first that has it. `regions` is read only for others.

    Types whose GPUs are not NVIDIA's are treated as unknown."""
    found: dict[str, Ec2MachineType] = {}
    for (_, name), tree in list(ec2.described.items()):
        found.setdefault(name, _machine_type(tree))
    wanted = list(dict.fromkeys(names))
    found = {name: found[name] for name in wanted if name in found}
    for region in regions if len(found) < len(wanted) else ():
        missing = [name for name in wanted if name not in found]
        found.update(machine_types(ec2, region, missing) if missing else {})
    return tuple(
        MachineFacts(
            name=each.name,
            vcpus=each.vcpus,
            memory_gib=each.memory_gib,
            accelerator=each.accelerator,
            arm=each.arm,
            scratch_gb=each.scratch_gb,
        )
        for each in found.values()
        if each.maker in ("", "NVIDIA")
    )


def uses_placement_group(ec2: Ec2Client, region: str, plan: Plan) -> bool:
    """True if the nodes are placed in a placement group of ours.

    Capacity Blocks support none, and their instances are close together by themselves:
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/cr-groups-launch.html"""
    return not has_blocks(plan) and stands_close(ec2, region, plan)


def stands_close(ec2: Ec2Client, region: str, plan: Plan) -> bool:
    """True if the nodes are to be close together: depends on `network.close`, and requires that all
    have the same type.

    Groups of mixed types lack capacity more often:
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/placement-strategies.html"""
    names = {node.machine for node in plan.nodes if node.machine}
    close = plan.config.network.close
    if len(plan.nodes) < 2 or len(names) > 1 or close == "off":
        return False
    # The group only speeds up training: not worth a failed `up`.
    known = if_told(lambda: machine_types(ec2, region, names), {})
    return names <= known.keys() and all(
        known[name].close and (close == "on" or known[name].fast) for name in names
    )


def efa_cards(ec2: Ec2Client, region: str, plan: Plan) -> tuple[int, ...]:
    """The network cards of each node that are to get an Elastic Fabric Adapter.

    Only for NCCL, so for nodes with GPUs; they all have the same type (`uses_placement_group`).
    EC2 gives a public address to a node with a single network interface only: then it is that of
    card 0, if any ("The associatePublicIPAddress parameter cannot be specified when launching with
    multiple network interfaces", its refusal)."""
    names = {node.machine for node in plan.nodes if node.machine and node.accelerator}
    known = if_told(lambda: machine_types(ec2, region, names) if names else {}, {})
    cards = next((each.efa_cards for each in known.values()), ())
    return cards if plan.config.network.private else tuple(card for card in cards if card == 0)


def _efa_cards(network: Tree) -> tuple[int, ...]:
    """All cards but, with fewer adapters than cards, the first (p6-b300).

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html"""
    if xml.text(network, "efaSupported") != "true":
        return ()
    cards = max(xml.number(network, "maximumNetworkCards"), 1)
    most = xml.number(xml.part(network, "efaInfo"), "maximumEfaInterfaces") or 1
    return tuple(range(cards))[-most:]


def _machine_type(found: Tree) -> Ec2MachineType:
    gpus = xml.items(xml.part(found, "gpuInfo"), "gpus")
    groups = xml.items(xml.part(found, "placementGroupInfo"), "supportedStrategies")
    return Ec2MachineType(
        name=xml.text(found, "instanceType"),
        vcpus=xml.number(xml.part(found, "vCpuInfo"), "defaultVCpus"),
        memory_gib=xml.number(xml.part(found, "memoryInfo"), "sizeInMiB") / 1024,
        gpu=xml.text(gpus[0], "name") if gpus else "",
        maker=xml.text(gpus[0], "manufacturer") if gpus else "",
        gpus=sum(xml.number(gpu, "count") for gpu in gpus),
        architectures=tuple(xml.items(xml.part(found, "processorInfo"), "supportedArchitectures")),
        scratch_gb=_scratch_gb(found),
        spot="spot" in xml.items(found, "supportedUsageClasses"),
        close="cluster" in groups,
        efa_cards=_efa_cards(xml.part(found, "networkInfo")),
        fast=_fast(xml.part(found, "networkInfo")),
    )


def _scratch_gb(found: Tree) -> int | None:
    """Only types that support instance storage have InstanceStorageInfo:
    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceTypeInfo.html"""
    if not xml.text(found, "instanceStorageSupported"):
        return None
    return xml.number(xml.part(found, "instanceStorageInfo"), "totalSizeInGB")


def _fast(network: Tree) -> bool:
    """True for 100 Gbit/s or more, of `Up to 10 Gigabit`, `4x 100 Gigabit` and the like."""
    performance = xml.text(network, "networkPerformance")
    speeds = [] if performance.startswith("Up to") else re.findall(r"(\d+) Gigabit", performance)
    efa = xml.text(network, "efaSupported") == "true"
    return efa or any(int(speed) >= 100 for speed in speeds)
