"""How each cloud sells its GPU machines, and which it no longer sells.

One row for each family that is not simply sold on demand and as spot, each with its source and the
date on which that was read; docs/machines.md shows them (docs/generate.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from typing import Literal

from cloudtrain.catalogue import table

Market = Literal["on-demand", "spot", "flex-start", "reservation"]

EVERYWHERE: tuple[Market, ...] = ("on-demand", "spot")
WAITED_FOR: tuple[Market, ...] = ("spot", "flex-start", "reservation")
_READ = date(2026, 11, 22)


@dataclass(frozen=True, kw_only=True)
class Family:
    cloud: str
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
    read: date = _READ

    def gone(self, day: date) -> bool:
        return not self.markets or (self.retired is not None and day >= self.retired)

    @property
    def equivalent(self) -> str:
        """`Standard_NC4as_T4_v3 (T4:1)`"""
        has = _built_in(self.cloud, self.instead)
        return f"{self.instead} ({has})" if has else self.instead


_AWS_OLD = "https://aws.amazon.com/ec2/previous-generation/"
_GRID = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/install-nvidia-driver.html"
_AZURE = "https://learn.microsoft.com/azure/virtual-machines/sizes/retirement"
_NCV3 = "https://learn.microsoft.com/azure/virtual-machines/ncv3-nc6s-nc12s-nc24s-retirement"
_NV = "https://learn.microsoft.com/azure/virtual-machines/sizes/gpu-accelerated"
_GCP = "https://cloud.google.com/compute/docs/accelerator-optimized-machines"
_AMD = "it has GPUs of AMD, and TensorFlow's wheels use those of NVIDIA alone"

FAMILIES = (
    Family(
        cloud="aws",
        machines=r"p2\..*",
        shown="p2",
        kind="K80",
        markets=(),
        instead="g4dn.xlarge",
        source=_AWS_OLD,
    ),
    Family(
        cloud="aws",
        machines=r"g2\..*",
        shown="g2",
        kind="K520",
        markets=(),
        instead="g4dn.xlarge",
        source=_AWS_OLD,
    ),
    Family(
        cloud="aws",
        machines=r"g3s?\..*",
        shown="g3, g3s",
        kind="M60",
        markets=(),
        instead="g4dn.xlarge",
        source=_AWS_OLD,
    ),
    Family(
        cloud="aws",
        machines=r"g4ad\..*",
        shown="g4ad",
        kind="V520",
        unfit=_AMD,
        instead="g4dn.xlarge",
        source="https://aws.amazon.com/ec2/instance-types/g4/",
    ),
    Family(
        cloud="aws",
        machines=r"g5g\..*",
        shown="g5g",
        kind="T4G",
        arm=True,
        instead="g4dn.xlarge",
        source="https://aws.amazon.com/ec2/instance-types/g5g/",
    ),
    Family(
        cloud="aws",
        machines=r"g(r)?6f\..*",
        shown="g6f, gr6f",
        kind="L4",
        unfit="it has a share of one L4, which needs NVIDIA's GRID driver",
        instead="g6.xlarge",
        source=_GRID,
    ),
    Family(
        cloud="aws",
        machines=r"(u-)?p6e-gb[23]00.*",
        shown="p6e-gb200, p6e-gb300",
        kind="GB200",
        markets=("reservation",),
        arm=True,
        instead="p5en.48xlarge",
        source="https://aws.amazon.com/ec2/instance-types/p6/",
    ),
    Family(
        cloud="azure",
        machines=r"Standard_NC\d+r?(_Promo)?",
        shown="NC, NC_Promo",
        kind="K80",
        retired=date(2023, 8, 31),
        instead="Standard_NC4as_T4_v3",
        source=_AZURE,
    ),
    Family(
        cloud="azure",
        machines=r"Standard_NC\d+r?s_v2(_Promo)?",
        shown="NCv2",
        kind="P100",
        retired=date(2023, 8, 31),
        instead="Standard_NC4as_T4_v3",
        source=_AZURE,
    ),
    Family(
        cloud="azure",
        machines=r"Standard_NC24rs_v3",
        shown="NC24rs_v3",
        kind="V100",
        retired=date(2025, 3, 31),
        instead="Standard_NC24ads_A100_v4",
        source=_AZURE,
    ),
    Family(
        cloud="azure",
        machines=r"Standard_NC(6|12|24)s_v3",
        shown="NC6s_v3, NC12s_v3, NC24s_v3",
        kind="V100",
        retired=date(2025, 9, 30),
        instead="Standard_NC24ads_A100_v4",
        source=_NCV3,
    ),
    Family(
        cloud="azure",
        machines=r"Standard_ND\d+r?s",
        shown="ND (v1)",
        kind="P40",
        retired=date(2023, 8, 31),
        instead="Standard_NC24ads_A100_v4",
        source=_AZURE,
    ),
    Family(
        cloud="azure",
        machines=r"Standard_ND40rs_v2",
        shown="NDv2",
        kind="V100-32GB",
        retired=date(2025, 9, 30),
        instead="Standard_ND96asr_v4",
        source=_AZURE,
    ),
    Family(
        cloud="azure",
        machines=r"Standard_NV\d+(s_v2)?(_Promo)?",
        shown="NV, NVv2",
        kind="M60",
        retired=date(2023, 8, 31),
        instead="Standard_NC4as_T4_v3",
        source=_AZURE,
    ),
    Family(
        cloud="azure",
        machines=r"Standard_NV\d+s_v3",
        shown="NVv3",
        kind="M60",
        retired=date(2026, 9, 30),
        instead="Standard_NC4as_T4_v3",
        source=_AZURE,
    ),
    Family(
        cloud="azure",
        machines=r"Standard_NV\d+as_v4",
        shown="NVv4",
        kind="MI25",
        retired=date(2026, 9, 30),
        instead="Standard_NC4as_T4_v3",
        unfit=_AMD,
        source=_AZURE,
    ),
    Family(
        cloud="azure",
        machines=r"Standard_NV\d+a(m)?ds_A10_v5",
        shown="NVads_A10_v5",
        kind="A10",
        unfit="Azure's A10 are shares of one, which need NVIDIA's GRID driver",
        instead="Standard_NC4as_T4_v3",
        source=f"{_NV}/nvadsa10v5-series",
    ),
    Family(
        cloud="azure",
        machines=r"Standard_N[GV]\d+\w*_(V620|V710)_v\d",
        shown="NGads_V620_v1, NVads_V710_v5",
        kind="V620, V710",
        unfit=_AMD,
        instead="Standard_NC4as_T4_v3",
        source=_NV,
    ),
    Family(
        cloud="azure",
        machines=r"Standard_ND\w*_MI3\w*",
        shown="ND_MI300X_v5",
        kind="MI300X",
        unfit=_AMD,
        instead="Standard_ND96isr_H200_v5",
        source=_NV,
    ),
    Family(
        cloud="azure",
        machines=r"Standard_NP\d+s",
        shown="NP",
        kind="FPGA",
        unfit="it has an FPGA, not a GPU",
        instead="Standard_NC4as_T4_v3",
        source=_NV,
    ),
    Family(
        cloud="azure",
        machines=r"Standard_ND\w*GB[23]00\w*",
        shown="ND_GB200_v6, ND_GB300_v6",
        kind="GB200",
        arm=True,
        instead="Standard_ND96isr_H200_v5",
        source=_NV,
    ),
    Family(
        cloud="gcp",
        machines="",
        shown="n1 with K80",
        kind="K80",
        markets=(),
        instead="T4",
        source="https://cloud.google.com/compute/docs/eol/k80-eol",
    ),
    Family(
        cloud="gcp",
        machines=r"a3-highgpu-[124]g",
        shown="a3-highgpu-1g, -2g, -4g",
        kind="H100",
        markets=("spot", "flex-start"),
        source=_GCP,
    ),
    Family(
        cloud="gcp",
        machines=r"a3-ultragpu-.*",
        shown="a3-ultragpu",
        kind="H200",
        markets=WAITED_FOR,
        source=_GCP,
    ),
    Family(
        cloud="gcp",
        machines=r"a4-.*",
        shown="a4",
        kind="B200",
        markets=WAITED_FOR,
        source=_GCP,
    ),
    Family(
        cloud="gcp",
        machines=r"a4x-.*",
        shown="a4x",
        kind="GB200",
        markets=("reservation",),
        arm=True,
        instead="a3-ultragpu-8g",
        source=_GCP,
    ),
)

GPU_NAMES = {
    # What the machines with GPUs are called: of those that this version does not know, too.
    "aws": r"(u-)?(g|gr|p)\d[\w-]*\..+",
    "gcp": r"(a[2-9]\d?x?|g[2-9]\d?)-.+",
    "azure": r"Standard_N.+",
}
_VENDORS = {"aws": "Amazon", "azure": "Microsoft", "gcp": "Google"}


def today() -> date:
    return date.today()


def named_for_gpus(cloud: str, machine: str) -> bool:
    return re.fullmatch(GPU_NAMES[cloud], machine, re.IGNORECASE) is not None


def family(cloud: str, machine: str) -> Family | None:
    for row in FAMILIES:
        if row.cloud == cloud and re.fullmatch(row.machines, machine, re.IGNORECASE):
            return row
    return None


def refusal(cloud: str, machine: str, *, spot: bool, own_image: bool = False) -> str | None:
    """Reason why no such machine can be rented, with an alternative; None if nothing is known
    against it.
    """
    row = family(cloud, machine)
    if row is None:
        return None
    if row.gone(today()):
        since = f"; its end was on {row.retired}" if row.retired else ""
        text = f"{machine} is retired: no more are made; today's equivalent is {row.equivalent}"
        return f"{text}{since}"
    instead = f"; take {row.equivalent}" if row.instead else ""
    if row.arm:
        return f"{machine} is an ARM machine, and cloudtrain's images are x86-64{instead}"
    if row.unfit and not own_image:
        return f"{machine} cannot be used: {row.unfit}{instead}"
    market = "spot" if spot else "on-demand"
    return None if market in row.markets else _not_sold(row, machine, market)


def _not_sold(row: Family, machine: str, market: str) -> str:
    words = " or ".join(filter(None, [", ".join(row.markets[:-1]), row.markets[-1]]))
    text = f"{_VENDORS[row.cloud]} does not sell {machine} {market.replace('-', ' ')}: only {words}"
    if "spot" in row.markets:
        return f"{text}; `spot: true`"
    return f"{text}, which this version does not use; take {row.equivalent}"


def ending(cloud: str, machine: str) -> str | None:
    """The vendor's announcement of this machine's retirement, if that is still to come."""
    row = family(cloud, machine)
    if row is None or row.retired is None or row.gone(today()):
        return None
    return f"{_VENDORS[cloud]} retires it on {row.retired}; {row.equivalent} is today's equivalent"


def sells(cloud: str, machine: str, *, spot: bool | None = None) -> bool:
    """True if the machine is sold on that market, or on any market if `spot` is None."""
    row = family(cloud, machine)
    if row is None:
        return True
    if row.gone(today()) or row.arm or row.unfit:
        return False
    return spot is None or ("spot" if spot else "on-demand") in row.markets


def retired_kind(cloud: str, kind: str) -> str | None:
    """Replacement of an accelerator that this cloud no longer rents."""
    rows = [row for row in FAMILIES if row.cloud == cloud and row.kind == kind]
    gone = [row for row in rows if row.gone(today())]
    if not rows or len(gone) < len(rows):
        return None
    has = _built_in(cloud, gone[-1].instead)
    return has.partition(":")[0] if has else gone[-1].instead


def unfit_kind(cloud: str, kind: str) -> str | None:
    """Reason why this cloud's machines with that accelerator cannot be used."""
    rows = [row for row in FAMILIES if row.cloud == cloud and row.kind == kind and row.unfit]
    return f"{rows[0].unfit}; take {rows[0].equivalent}" if rows else None


def _built_in(cloud: str, machine: str) -> str:
    rows = table.packaged(cloud).by_name.get(machine.lower(), ())
    return next((str(row.accelerator) for row in rows if row.accelerator), "")
