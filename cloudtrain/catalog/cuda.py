"""CUDA toolkit, oldest driver and libraries of each TensorFlow release.

One row each, with its source and the date on which that was read; docs/machines.md shows them
(tools/generate_docs.py). Compute capabilities of the GPUs are in gpus.py."""

from __future__ import annotations

import re
from datetime import date
from functools import cache
from pathlib import Path

from cloudtrain.catalog import gpus
from cloudtrain.catalog.gpus import Release
from cloudtrain.core.dataclass import dataclass

_READ = date(2026, 11, 22)


@dataclass(frozen=True)
class Toolkit:
    """Valid from this release until the next row's."""

    since: Release
    cuda: str
    driver: str
    """Oldest driver that supports it, where nothing is compiled from PTX: `oldest_driver`."""
    source: str
    read: date = _READ


# The oldest driver: docs.nvidia.com/cuda/cuda-toolkit-release-notes, and for any 11.x and 12.x
# docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html.
_TESTED = "https://www.tensorflow.org/install/source#gpu"
TOOLKITS = (
    Toolkit((1, 13), "10.0", "410.48", _TESTED),
    Toolkit((2, 1), "10.1", "418.39", _TESTED),
    Toolkit((2, 4), "11.0", "450.80.02", _TESTED),
    Toolkit((2, 5), "11.2", "450.80.02", _TESTED),
    Toolkit((2, 12), "11.8", "450.80.02", _TESTED),
    Toolkit((2, 15), "12.2", "525.60.13", _TESTED),
    Toolkit((2, 16), "12.3", "525.60.13", _TESTED),
    Toolkit((2, 18), "12.5", "525.60.13", _TESTED),
)

PTX = {
    "6.3": ("10.0", 410),
    "6.4": ("10.1", 418),
    "6.5": ("10.2", 440),
    "7.0": ("11.0", 450),
    "7.1": ("11.1", 455),
    "7.2": ("11.2", 460),
    "7.3": ("11.3", 465),
    "7.4": ("11.4", 470),
    "7.5": ("11.5", 495),
    "7.6": ("11.6", 510),
    "7.7": ("11.7", 515),
    "7.8": ("11.8", 520),
    "8.0": ("12.0", 525),
    "8.1": ("12.1", 530),
    "8.2": ("12.2", 535),
    "8.3": ("12.3", 545),
    "8.4": ("12.4", 550),
    "8.5": ("12.5", 555),
    "8.6": ("12.7", 565),
    "8.7": ("12.8", 570),
    "8.8": ("12.9", 575),
    "9.0": ("13.0", 580),
}
"""PTX version → CUDA and the first branch of drivers that know it, of those that were released:
docs.nvidia.com/cuda/parallel-thread-execution, "PTX ISA release history" (read 2026-11-27).
Minor version compatibility does not cover it: a driver refuses PTX of a newer compiler with
CUDA_ERROR_UNSUPPORTED_PTX_VERSION (docs.nvidia.com/cuda/cuda-driver-api, CUresult 222). What
TensorFlow 2.18 then says: https://github.com/CY-CHENYUE/ComfyUI-Molmo/issues/26."""


@dataclass(frozen=True, kw_only=True)
class GpuCode:
    """GPU code of one release for one compute capability, as read out of its wheel."""

    kernels: int
    """Containers, each of the kernels of one source file."""
    compiled: int
    """Those without machine code for it, which the driver compiles at first use."""
    absent: int
    """Those that cannot be compiled for it either."""
    ptx: str
    """The newest PTX among those that are compiled; empty if none is."""
    target: str
    """What that is for: `sm_90a`."""


@dataclass(frozen=True)
class Libraries:
    """CUDA packages of one release, each with its exact version."""

    release: Release
    patch: str
    """The release's last patch when this was read."""
    packages: tuple[str, ...]
    """Requirement lines."""
    source: str
    read: date = _READ


def _set(suffix: str, versions: str) -> tuple[str, ...]:
    pairs = (each.split("=") for each in versions.split())
    return tuple(f"nvidia-{name}-{suffix}=={version}" for name, version in pairs)


# CUDA 11.8's libraries also serve builds with 11.2 (TensorFlow 2.11), cuDNN 8.7 builds with 8.1
# and 8.6. The extra of 2.14 also names TensorRT, which has no wheels on the index.
_CUDA_11_8 = _set(
    "cu11",
    "cublas=11.11.3.6 cuda-cupti=11.8.87 cuda-nvcc=11.8.89 cuda-runtime=11.8.89 cudnn=8.7.0.84 "
    "cufft=10.9.0.58 curand=10.3.0.86 cusolver=11.4.1.48 cusparse=11.7.5.86 nccl=2.16.5",
)
_CUDA_12_2 = _set(
    "cu12",
    "cublas=12.2.5.6 cuda-cupti=12.2.142 cuda-nvcc=12.2.140 cuda-nvrtc=12.2.140 "
    "cuda-runtime=12.2.140 cudnn=8.9.4.25 cufft=11.0.8.103 curand=10.3.3.141 "
    "cusolver=11.5.2.141 cusparse=12.1.2.141 nccl=2.16.5 nvjitlink=12.2.140",
)
_CUDA_12_3 = _set(
    "cu12",
    "cublas=12.3.4.1 cuda-cupti=12.3.101 cuda-nvcc=12.3.107 cuda-nvrtc=12.3.107 "
    "cuda-runtime=12.3.101 cudnn=8.9.7.29 cufft=11.0.12.1 curand=10.3.4.107 "
    "cusolver=11.5.4.101 cusparse=12.2.0.103 nccl=2.19.3 nvjitlink=12.3.101",
)
_CUDA_12_5 = (
    "cublas=12.5.3.2 cuda-cupti=12.5.82 cuda-nvcc=12.5.82 cuda-nvrtc=12.5.82 "
    "cuda-runtime=12.5.82 cudnn=9.3.0.75 cufft=11.2.3.61 curand=10.3.6.82 "
    "cusolver=11.6.3.83 cusparse=12.5.1.3 nccl={nccl} nvjitlink=12.5.82"
)
# CUDA 12.9.1 with the libraries of AWS's TensorFlow 2.21 containers for T4, A10G and L4: with cuDNN
# 9.5.1 `fit` of a Conv2D fails there ("Autotuner could not find any supported configs").
_CUDA_12_9 = _set(
    "cu12",
    "cublas=12.9.1.4 cuda-cupti=12.9.79 cuda-nvcc=12.9.86 cuda-nvrtc=12.9.86 "
    "cuda-runtime=12.9.79 cudnn=9.24.0.43 cufft=11.4.1.4 curand=10.3.10.19 "
    "cusolver=11.7.5.82 cusparse=12.5.10.65 nccl=2.30.7 nvjitlink=12.9.86",
)

_EXTRA_14 = "`tensorflow[and-cuda]==2.14.1` on PyPI, without its TensorRT"
_EXTRA = "`tensorflow[and-cuda]` on PyPI names exactly these"
_AWS = "https://github.com/aws/deep-learning-containers/pull/6418"
LIBRARIES = (
    Libraries((2, 11), "2.11.1", _CUDA_11_8, _EXTRA_14),
    Libraries((2, 12), "2.12.1", _CUDA_11_8, _EXTRA_14),
    Libraries((2, 13), "2.13.1", _CUDA_11_8, _EXTRA_14),
    Libraries((2, 14), "2.14.1", _CUDA_11_8, _EXTRA_14),
    Libraries((2, 15), "2.15.1", _CUDA_12_2, _EXTRA),
    Libraries((2, 16), "2.16.2", _CUDA_12_3, _EXTRA),
    Libraries((2, 17), "2.17.1", _CUDA_12_3, _EXTRA),
    Libraries((2, 18), "2.18.1", _set("cu12", _CUDA_12_5.format(nccl="2.21.5")), _EXTRA),
    Libraries((2, 19), "2.19.1", _set("cu12", _CUDA_12_5.format(nccl="2.23.4")), _EXTRA),
    Libraries((2, 20), "2.20.0", _CUDA_12_9, _AWS),
    Libraries((2, 21), "2.21.0", _CUDA_12_9, _AWS),
)


@dataclass(frozen=True)
class Driver:
    """Ubuntu package of NVIDIA's driver, from this architecture on."""

    since: str
    branch: int
    open: bool
    """Its open kernel modules; else the proprietary ones."""
    source: str
    read: date = _READ


# 580 is the newest of Ubuntu's server branches that serves every kind from Pascal to Blackwell.
# https://packages.ubuntu.com/source/noble/libs/nvidia-graphics-drivers-580-server
DRIVERS = (
    Driver(
        "Pascal",
        580,
        False,
        "https://forums.developer.nvidia.com/t/unix-graphics-feature-deprecation-schedule/60588",
    ),
    Driver(
        "Turing",
        580,
        True,
        "https://developer.nvidia.com/blog/nvidia-transitions-fully-towards-open-source-gpu-kernel-modules/",
    ),
)

CUDNN = "nvidia-cudnn-cu12"
CUDNN_BEFORE_TURING = f"{CUDNN}<9.11"
CUDNN_BEFORE_TURING_PIN = f"{CUDNN}==9.10.2.21"
"""cuDNN 9.11 and later have no device code for Pascal and Volta: programs crash in the first
convolution. https://github.com/conda-forge/tensorflow-feedstock/pull/457 (read 2026-11-22)"""
_RANGES_SINCE: Release = (2, 20)
"""Earlier wheels pin each library's exact version, with a cuDNN before 9.11."""


def toolkit(version: str) -> Toolkit:
    """The toolkit of this release; a release newer than the table gets the newest row."""
    known = [row for row in TOOLKITS if row.since <= _release(version)]
    return known[-1] if known else TOOLKITS[0]


@cache
def _codes() -> dict[gpus.Capability, dict[Release, GpuCode]]:
    """By capability, then by release in rising order."""
    found: dict[gpus.Capability, dict[Release, GpuCode]] = {}
    lines = Path(__file__).with_name("gpu_code.csv").read_text("utf-8").splitlines()[2:]
    for version, capability, kernels, compiled, absent, ptx, target in (
        line.split(",") for line in reversed(lines)
    ):
        counts = {"kernels": int(kernels), "compiled": int(compiled), "absent": int(absent)}
        code = GpuCode(**counts, ptx=ptx, target=target)
        found.setdefault(_release(capability), {})[_release(version)] = code
    return found


def code(version: str, kind: str) -> GpuCode | None:
    """The GPU code of this release for this GPU, or of the last release before it that was read;
    None if the tables lack the GPU, or for a release before them."""
    row = gpus.gpu(kind)
    known = _codes().get(row.capability, {}) if row else {}
    return next((known[each] for each in reversed(known) if each <= _release(version)), None)


def oldest_driver(version: str, kind: str) -> str:
    """The oldest driver with which this release computes on this GPU."""
    plain, found = toolkit(version).driver, code(version, kind)
    branch = PTX[found.ptx][1] if found and found.ptx else 0
    return str(branch) if (branch,) > parts(plain)[:1] else plain


def needed(kind: str) -> dict[str, tuple[str, str]]:
    """CUDA version that the driver must have, and the first driver with it, by release, for the
    releases with PTX for this GPU; the newest release last."""
    row = gpus.gpu(kind)
    codes = _codes().get(row.capability, {}) if row else {}
    return {
        "{}.{}".format(*release): (PTX[found.ptx][0], str(PTX[found.ptx][1]))
        for release, found in codes.items()
        if found.ptx and not found.absent
    }


def newest_release(kind: str, driver: str) -> str | None:
    """The newest release that computes on this GPU with this driver: `2.16`."""
    row = gpus.gpu(kind)
    for number in reversed(_codes().get(row.capability, {}) if row else {}):
        version = "{}.{}".format(*number)
        is_old = parts(oldest_driver(version, kind)) > parts(driver)
        if gpus.fit(kind, version) in ("own", "older") and not is_old:
            return version
    return None


def too_old(version: str, kind: str, driver: str) -> tuple[str, str] | None:
    """The problem with this driver for this release on this GPU, and a hint; None if nothing."""
    oldest = oldest_driver(version, kind)
    if parts(driver) >= parts(oldest):
        return None
    fits = newest_release(kind, driver)
    older = f', or set `setup.tensorflow: "{fits}"`' if fits else ""
    text = f"driver {driver}: TensorFlow {version} needs {oldest} or newer on {kind}"
    return text, f"install driver {oldest} or newer{older}"


def parts(version: str) -> tuple[int, ...]:
    """The numbers of a driver's version or CUDA's, to be compared."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def driver(kind: str) -> Driver:
    """The driver for this kind of GPU; an unknown GPU counts as a newer one."""
    return DRIVERS[0] if gpus.is_older(kind, "Turing") else DRIVERS[-1]


def libraries(version: str) -> tuple[str, ...]:
    """The release's CUDA packages; empty before 2.11 (not on the index) and after the newest
    row."""
    found = (row.packages for row in LIBRARIES if row.release == _release(version))
    return next(found, ())


def pins(version: str, kind: str) -> tuple[str, ...]:
    """Exact CUDA packages for this kind of GPU, for releases whose own requirements are ranges."""
    if _release(version) < _RANGES_SINCE:
        return ()
    old = bool(bounds(version, kind))
    return tuple(
        CUDNN_BEFORE_TURING_PIN if old and line.startswith(f"{CUDNN}==") else line
        for line in libraries(version)
    )


def bounds(version: str, kind: str) -> tuple[str, ...]:
    """Version bounds that these GPUs need even if the user's packages require other CUDA
    libraries."""
    old = _release(version) >= _RANGES_SINCE and gpus.is_older(kind, "Turing")
    return (CUDNN_BEFORE_TURING,) if old else ()


def caution(version: str, kind: str) -> str | None:
    """One line if the installed libraries are not known to train on this GPU."""
    if _release(version) < (2, 21) or not bounds(version, kind):
        return None
    return (
        f"TensorFlow {version} on {kind} gets cuDNN 9.10, the last one that supports it; it is not "
        'known whether convolutions train with it: tensorflow: "2.19" is the safe choice'
    )


def _release(version: str) -> Release:
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise ValueError(f"{version!r} is not a TensorFlow version like 2.21 or 2.21.0")
    return int(found[1]), int(found[2])
