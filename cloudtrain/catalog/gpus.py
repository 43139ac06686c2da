"""GPU generations, and the TensorFlow releases that have code for them.

One row each, with its source and the date on which that was read; docs/machines.md shows them
(tools/generate_docs.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from typing import Literal

from cloudtrain.core.model import canonical_name

Capability = tuple[int, int]
"""CUDA's compute capability: (8, 9)."""
Release = tuple[int, int]

_NVIDIA = "https://developer.nvidia.com/cuda-gpus"
_LEGACY = "https://developer.nvidia.com/cuda-legacy-gpus"
_READ = date(2026, 11, 22)


@dataclass(frozen=True, kw_only=True)
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


GPUS = (
    Gpu(kind="K520", architecture="Kepler", capability=(3, 0), memory_gb=4, source=_LEGACY),
    Gpu(kind="K80", architecture="Kepler", capability=(3, 7), memory_gb=12, source=_LEGACY),
    Gpu(kind="M60", architecture="Maxwell", capability=(5, 2), memory_gb=8, source=_LEGACY),
    Gpu(kind="P100", architecture="Pascal", capability=(6, 0), memory_gb=16, source=_LEGACY),
    Gpu(kind="P4", architecture="Pascal", capability=(6, 1), memory_gb=8, source=_LEGACY),
    Gpu(kind="P40", architecture="Pascal", capability=(6, 1), memory_gb=24, source=_LEGACY),
    Gpu(kind="V100", architecture="Volta", capability=(7, 0), memory_gb=16, source=_LEGACY),
    Gpu(kind="V100-32GB", architecture="Volta", capability=(7, 0), memory_gb=32, source=_LEGACY),
    Gpu(kind="T4", architecture="Turing", capability=(7, 5), memory_gb=16),
    Gpu(
        kind="T4G",
        architecture="Turing",
        capability=(7, 5),
        memory_gb=16,
        source="https://aws.amazon.com/ec2/instance-types/g5g/",
    ),
    Gpu(kind="A100", architecture="Ampere", capability=(8, 0), memory_gb=40),
    Gpu(kind="A100-80GB", architecture="Ampere", capability=(8, 0), memory_gb=80),
    Gpu(kind="A10", architecture="Ampere", capability=(8, 6), memory_gb=24),
    Gpu(
        kind="A10G",
        architecture="Ampere",
        capability=(8, 6),
        memory_gb=24,
        source="https://aws.amazon.com/ec2/instance-types/g5/",
    ),
    Gpu(kind="L4", architecture="Ada", capability=(8, 9), memory_gb=24),
    Gpu(kind="L40S", architecture="Ada", capability=(8, 9), memory_gb=48),
    Gpu(kind="H100", architecture="Hopper", capability=(9, 0), memory_gb=80),
    Gpu(kind="H200", architecture="Hopper", capability=(9, 0), memory_gb=141),
    Gpu(kind="GH200", architecture="Hopper", capability=(9, 0), memory_gb=96),
    Gpu(kind="B200", architecture="Blackwell", capability=(10, 0), memory_gb=180),
    Gpu(kind="GB200", architecture="Blackwell", capability=(10, 0), memory_gb=186),
    Gpu(kind="B300", architecture="Blackwell", capability=(10, 3), memory_gb=270),
    Gpu(kind="GB300", architecture="Blackwell", capability=(10, 3), memory_gb=270),
    Gpu(kind="RTXPRO4500", architecture="Blackwell", capability=(12, 0), memory_gb=32),
    Gpu(kind="RTXPRO6000", architecture="Blackwell", capability=(12, 0), memory_gb=96),
)
"""Every kind that a supported cloud rents or has rented; oldest first."""

_BY_KIND = {row.kind: row for row in GPUS}


@dataclass(frozen=True, kw_only=True)
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
    DeviceCode(
        since=(2, 4),
        binary=((3, 5), (5, 0), (6, 0), (7, 0), (7, 5), (8, 0)),
        ptx=(8, 0),
        source=_BAZELRC,
    ),
    DeviceCode(
        since=(2, 11),
        binary=((3, 5), (5, 0), (6, 0), (7, 0), (7, 5), (8, 0)),
        ptx=(8, 0),
        source=_WHEELS,
    ),
    DeviceCode(
        since=(2, 15),
        binary=((5, 0), (6, 0), (7, 0), (7, 5), (8, 0)),
        ptx=(8, 0),
        source=_WHEELS,
    ),
    DeviceCode(
        since=(2, 16),
        binary=((5, 0), (6, 0), (7, 0), (8, 0), (9, 0)),
        ptx=(9, 0),
        source=_WHEELS,
    ),
    DeviceCode(
        since=(2, 17),
        binary=((6, 0), (7, 0), (8, 0), (8, 9), (9, 0)),
        ptx=(9, 0),
        source=_WHEELS,
    ),
)
NEWEST: Release = (2, 21)
"""The last release that the rows above are known to hold for."""

FIRST_WITHOUT: Capability = (10, 0)
"""No release's PTX runs on this capability or later: `CUDA_ERROR_INVALID_PTX`, then
`CUDA_ERROR_INVALID_HANDLE` in any op. https://github.com/tensorflow/tensorflow/issues/89272,
…/97387, …/101746, …/111958; https://github.com/tensorflow/tensorflow/issues/112272 names NVIDIA's
containers as the way (read 2026-11-22)."""

Fit = Literal["own", "older", "ptx", "none"]


def gpu(kind: str) -> Gpu | None:
    """Return the row of this accelerator under any of its names; None if the table lacks it."""
    return _BY_KIND.get(canonical_name(kind))


def is_older(kind: str, architecture: str) -> bool:
    """True if the GPU is of an earlier generation: `is_older("V100", "Turing")`. False if not
    known.
    """
    row = gpu(kind)
    first = next(each.capability for each in GPUS if each.architecture == architecture)
    return row is not None and row.capability < first


def fit(kind: str, version: str) -> Fit | None:
    """Fit of this TensorFlow release for these GPUs; None if not known.

    `own`: has code for this GPU. `older`: runs, but a later release has code for this GPU. `ptx`:
    everything is compiled for the GPU at first use. `none`: cannot run.
    """
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
