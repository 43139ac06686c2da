"""GPUs: names, generations, the TensorFlow releases that have code for them, and NVIDIA's own
figures, next to which a run's proof shows its own.

One row each, with its source and the date on which that was read; docs/machines.md shows them
(tools/generate_docs.py)."""

from __future__ import annotations

import re
from datetime import date
from typing import Literal

from cloudtrain.core.dataclass import dataclass

Capability = tuple[int, int]
"""CUDA's compute capability: (8, 9)."""
Release = tuple[int, int]

_NVIDIA = "https://developer.nvidia.com/cuda-gpus"
_LEGACY = "https://developer.nvidia.com/cuda-legacy-gpus"
_EC2 = "https://aws.amazon.com/ec2/instance-types"
_READ = date(2026, 11, 22)

# Rates: the documents (`source`) were read as others quote them:
# github.com/winston-zhang-orz/gpu-specs, github.com/kentjliu/acml-project1,
# glennklockwood.com/garden/processors. A10G: quotes of its sheet say 70 twice and 125, the A10's,
# once. K80, P100 and P4 have the rate of PCIe 3.0 x16. Of V100, A100, H100 and H200: the form that
# clouds rent most, SXM.
_RATES_READ = date(2026, 11, 23)
_PRODUCTS = "https://www.nvidia.com/en-us/data-center"
_SHEETS = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center"
_K80 = f"{_SHEETS}/tesla-product-literature/Tesla-K80-BoardSpec-07317-001-v05.pdf"
_P100 = f"{_SHEETS}/tesla-p100/pdf/nvidia-tesla-p100-PCIe-datasheet.pdf"
_P4 = (
    "https://images.nvidia.com/content/pdf/tesla/184457-Tesla-P4-Datasheet-NV-Final-Letter-Web.pdf"
)
_VOLTA = (
    "https://images.nvidia.com/content/technologies/volta/pdf/"
    "volta-v100-datasheet-update-us-1165301-r5.pdf"
)
_T4 = f"{_SHEETS}/tesla-t4/t4-tensor-core-datasheet-951643.pdf"
_A100 = f"{_SHEETS}/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
_A10G = (
    "https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf"
)


@dataclass(frozen=True)
class GpuRate:
    """Figures that a GPU reaches, by NVIDIA."""

    tflops: float
    """TFLOP/s of a product of float16 matrices, added up in float32, without sparsity. Before Volta
    it is computed in float32."""
    link: float
    """GB/s to another GPU of the machine, in one direction: NVLink, else PCIe."""
    source: str
    read: date = _RATES_READ


@dataclass(frozen=True)
class Gpu:
    kind: str
    architecture: str
    capability: Capability
    memory_gb: int
    """GB of each GPU. Sources: `KNOWN_NVIDIA_GPUS` of gpuhunt 0.1.34; for T4G, EC2's
    DescribeInstanceTypes as moto has it; for K520, K80, M60, P4 and P40 NVIDIA's data sheets,
    divided by the GPUs of a board (2026-11-24)."""
    source: str = _NVIDIA
    read: date = _READ
    rate: GpuRate | None = None
    """None if no released TensorFlow runs on it, or the figures were not found."""


GPUS = (
    Gpu("K520", "Kepler", (3, 0), 4, _LEGACY),
    Gpu("K80", "Kepler", (3, 7), 12, _LEGACY, rate=GpuRate(4.4, 16, _K80)),
    Gpu("M60", "Maxwell", (5, 2), 8, _LEGACY),
    Gpu("P100", "Pascal", (6, 0), 16, _LEGACY, rate=GpuRate(9.3, 16, _P100)),
    Gpu("P4", "Pascal", (6, 1), 8, _LEGACY, rate=GpuRate(5.5, 16, _P4)),
    Gpu("P40", "Pascal", (6, 1), 24, _LEGACY),
    Gpu("V100", "Volta", (7, 0), 16, _LEGACY, rate=GpuRate(125, 150, _VOLTA)),
    Gpu("V100-32GB", "Volta", (7, 0), 32, _LEGACY, rate=GpuRate(125, 150, _VOLTA)),
    Gpu("T4", "Turing", (7, 5), 16, rate=GpuRate(65, 16, _T4)),
    Gpu("T4G", "Turing", (7, 5), 16, f"{_EC2}/g5g/"),
    Gpu("A100", "Ampere", (8, 0), 40, rate=GpuRate(312, 300, _A100)),
    Gpu("A100-80GB", "Ampere", (8, 0), 80, rate=GpuRate(312, 300, _A100)),
    Gpu("A10", "Ampere", (8, 6), 24, rate=GpuRate(125, 32, f"{_SHEETS}/a10/pdf/a10-datasheet.pdf")),
    Gpu("A10G", "Ampere", (8, 6), 24, f"{_EC2}/g5/", rate=GpuRate(70, 32, _A10G)),
    Gpu("L4", "Ada", (8, 9), 24, rate=GpuRate(121, 32, f"{_PRODUCTS}/l4/")),
    Gpu("L40S", "Ada", (8, 9), 48, rate=GpuRate(362, 32, f"{_PRODUCTS}/l40s/")),
    Gpu("H100", "Hopper", (9, 0), 80, rate=GpuRate(989, 450, f"{_PRODUCTS}/h100/")),
    Gpu("H200", "Hopper", (9, 0), 141, rate=GpuRate(989, 450, f"{_PRODUCTS}/h200/")),
    Gpu(
        "GH200",
        "Hopper",
        (9, 0),
        96,
        rate=GpuRate(989, 450, f"{_PRODUCTS}/grace-hopper-superchip/"),
    ),
    Gpu("B200", "Blackwell", (10, 0), 180),
    Gpu("GB200", "Blackwell", (10, 0), 186),
    Gpu("B300", "Blackwell", (10, 3), 270),
    Gpu("GB300", "Blackwell", (10, 3), 270),
    Gpu("RTXPRO4500", "Blackwell", (12, 0), 32),
    Gpu("RTXPRO6000", "Blackwell", (12, 0), 96),
)
"""Every kind that a supported cloud rents or has rented; oldest first."""

_BY_KIND = {row.kind: row for row in GPUS}


def canonical_name(kind: str) -> str:
    """One spelling for each accelerator: `nvidia-tesla-t4`, `t4` and `T4` are T4. A100 and
    V100 are the small ones (40 and 16 GB), the others A100-80GB and V100-32GB."""
    plain = re.sub(r"[ _]+", "-", kind.strip()).upper()
    plain = re.sub(r"^(NVIDIA-)?(TESLA-)?", "", plain)
    plain = re.sub(r"-(SXM\d?|NVL|MEGA|PCIE|AC|GRID)\b", "", plain)
    workstation = re.match(r"RTX-?PRO-?(?:SERVER-?)?(\d{4})(?!\d)", plain)
    if workstation:
        return f"RTXPRO{workstation[1]}"
    plain = re.sub(r"^(A10)-(\d+)(Q|C|GB?)$", r"\1", plain)
    plain = re.sub(r"^(A100|V100|H100|H200|[BG]+[23]00)-?([1-9]\d{1,2})(GB?)?$", r"\1-\2GB", plain)
    plain = re.sub(r"^(H100|H200|GH200|G?B200|G?B300)-\d+GB$", r"\1", plain)
    return {"A100-40GB": "A100", "V100-16GB": "V100"}.get(plain, plain)


def is_same_accelerator(reported: str, wanted: str) -> bool:
    """True if a cloud's own name may mean this kind: EC2 uses A100 for both sizes of memory."""
    one, other = canonical_name(reported), canonical_name(wanted)
    plain = {re.sub(r"[^A-Z0-9]", "", name) for name in (one, other)}
    return len(plain) == 1 or other.startswith(f"{one}-")


@dataclass(frozen=True)
class DeviceCode:
    """Device code in the CUDA wheels, from this release until the next row's."""

    since: Release
    binary: tuple[Capability, ...]
    """Runs without compilation on this capability, and on later ones of the same major number."""
    ptx: Capability
    """Compiled by the driver for any newer GPU."""
    source: str
    read: date = _READ


_WHEELS = "`tensorflow.sysconfig.get_build_info()` of the wheels on PyPI"
_BAZELRC = "`TF_CUDA_COMPUTE_CAPABILITIES` of release_gpu in TensorFlow's .bazelrc"
DEVICE_CODE = (
    DeviceCode((2, 4), ((3, 5), (5, 0), (6, 0), (7, 0), (7, 5), (8, 0)), (8, 0), _BAZELRC),
    DeviceCode((2, 11), ((3, 5), (5, 0), (6, 0), (7, 0), (7, 5), (8, 0)), (8, 0), _WHEELS),
    DeviceCode((2, 15), ((5, 0), (6, 0), (7, 0), (7, 5), (8, 0)), (8, 0), _WHEELS),
    DeviceCode((2, 16), ((5, 0), (6, 0), (7, 0), (8, 0), (9, 0)), (9, 0), _WHEELS),
    DeviceCode((2, 17), ((6, 0), (7, 0), (8, 0), (8, 9), (9, 0)), (9, 0), _WHEELS),
)
NEWEST: Release = (2, 21)
"""The last release that the rows above are known to hold for."""

FIRST_WITHOUT: Capability = (10, 0)
"""No release computes on this capability or later. Up to 2.20 the PTX is for sm_90a alone
(gpu_code.csv): `CUDA_ERROR_INVALID_PTX`, then `CUDA_ERROR_INVALID_HANDLE` in any op.
https://github.com/tensorflow/tensorflow/issues/89272, …/97387, …/101746. That of 2.21 can be
compiled, but XLA stops the program (…/111958). …/112272 names NVIDIA's containers as the way (read
2026-11-27)."""

Fit = Literal["own", "older", "ptx", "none"]


def gpu(kind: str) -> Gpu | None:
    """The row of this accelerator under any of its names; None if the table lacks it."""
    return _BY_KIND.get(canonical_name(kind))


def is_older(kind: str, architecture: str) -> bool:
    """True if the GPU is of an earlier generation: `is_older("V100", "Turing")`. False if not
    known."""
    row = gpu(kind)
    first = next(each.capability for each in GPUS if each.architecture == architecture)
    return row is not None and row.capability < first


def fit(kind: str, version: str) -> Fit | None:
    """Fit of this TensorFlow release for these GPUs; None if not known. `own`: has code for this
    GPU. `older`: runs, but a later release has code for this GPU. `ptx`: everything is compiled for
    the GPU at first use. `none`: cannot run."""
    row, found = gpu(kind), re.match(r"(\d+)\.(\d+)", version)
    if row is None or found is None:
        return None
    number = (int(found[1]), int(found[2]))
    if number > NEWEST:
        return None
    if row.capability >= FIRST_WITHOUT:
        return "none"
    codes = [code for code in DEVICE_CODE if code.since <= number]
    if not codes:
        return None
    runs = [c for c in codes[-1].binary if c[0] == row.capability[0] and c <= row.capability]
    if not runs:
        return "ptx" if codes[-1].ptx < row.capability else "none"
    later = (code for code in DEVICE_CODE if code.since > number)
    missing = row.capability not in runs and any(row.capability in code.binary for code in later)
    return "older" if missing else "own"


def first_release(kind: str, fits: Fit) -> str | None:
    """First release with this fit on these GPUs: `2.17`."""
    for code in DEVICE_CODE:
        text = f"{code.since[0]}.{code.since[1]}"
        if fit(kind, text) == fits:
            return text
    return None


def rate(kind: str) -> GpuRate | None:
    """The rates of this accelerator under any of its names; None if the table lacks them."""
    row = gpu(kind)
    return row.rate if row else None
