"""What each TensorFlow release runs on: Pythons, wheels, and bounds for what it leaves open."""

from __future__ import annotations

import re
from typing import Literal

Build = Literal["cpu", "cuda"]
Release = tuple[int, int]

VERSION = re.compile(r"(\d+)\.(\d+)(\.\d+(\.?(post|rc)\d+)?)?")

# First and last Python with a wheel for Linux x86-64, by first release of a span.
# Source: PyPI's files of tensorflow and tensorflow-cpu, asked on 2026-11-21 with
# `pip index versions tensorflow-cpu --python-version 3.x --only-binary :all:`, x = 7 … 14.
_PYTHONS: dict[Release, tuple[str, str]] = {
    (1, 13): ("3.5", "3.7"),
    (2, 2): ("3.5", "3.8"),
    (2, 4): ("3.6", "3.8"),
    (2, 5): ("3.6", "3.9"),
    (2, 7): ("3.7", "3.9"),
    (2, 8): ("3.7", "3.10"),
    (2, 12): ("3.8", "3.11"),
    (2, 14): ("3.9", "3.11"),
    (2, 16): ("3.9", "3.12"),
    (2, 20): ("3.9", "3.13"),
    (2, 21): ("3.10", "3.13"),
}

# Newest versions to let in, where the release's own metadata names none or too new ones.
# 2.21: what this project trains with (2026-11-21). Before: what was current when the release
# was, as newer ones came after its last patch. protobuf 3.21 ended the generated code of
# releases before 2.12, NumPy 1.24 the aliases that those use, h5py 3 their loading of weights.
# setuptools 81 dropped pkg_resources, which TensorBoard before 2.21 imports.
_NEWEST: dict[Release, tuple[str, ...]] = {
    (1, 13): ("numpy<1.19", "protobuf<3.21", "h5py<3"),
    (2, 2): ("numpy<1.20", "protobuf<3.21", "h5py<3"),
    (2, 4): ("numpy<1.20", "protobuf<3.21", "h5py<3.2"),
    (2, 6): ("keras<2.7", "numpy<1.20", "protobuf<3.21", "h5py<3.2"),
    (2, 7): ("numpy<1.24", "protobuf<3.21", "h5py<3.9"),
    (2, 9): ("numpy<1.24", "protobuf<3.20", "h5py<3.9"),
    (2, 12): ("numpy<2", "protobuf<5", "h5py<3.12"),
    (2, 16): ("keras<3.4", "numpy<2", "protobuf<5", "h5py<3.12"),
    (2, 17): ("keras<3.6", "numpy<2", "protobuf<5", "h5py<3.12"),
    (2, 18): ("keras<3.9", "numpy<2.1", "protobuf<6", "h5py<3.13"),
    (2, 19): ("keras<3.11", "numpy<2.2", "protobuf<6", "h5py<3.14"),
    (2, 20): ("keras<3.13", "numpy<2.4", "protobuf<7", "h5py<3.15"),
    (2, 21): ("keras<=3.15.1", "numpy<=2.4.6", "protobuf<=7.36.2", "h5py<3.15"),
}
_OLD_SETUPTOOLS = "setuptools<81"


# What `tensorflow[and-cuda]==2.14.*` names, without its TensorRT, for which the index has no wheels
# (pip fails, 2026-11-21). CUDA 11.8's libraries serve what was built with 11.2 (TensorFlow 2.11)
# too, cuDNN 8.7 what was built with 8.1 and 8.6.
_CUDA_11 = (
    "nvidia-cublas-cu11==11.11.3.6",
    "nvidia-cuda-cupti-cu11==11.8.87",
    "nvidia-cuda-nvcc-cu11==11.8.89",
    "nvidia-cuda-runtime-cu11==11.8.89",
    "nvidia-cudnn-cu11==8.7.0.84",
    "nvidia-cufft-cu11==10.9.0.58",
    "nvidia-curand-cu11==10.3.0.86",
    "nvidia-cusolver-cu11==11.4.1.48",
    "nvidia-cusparse-cu11==11.7.5.86",
    "nvidia-nccl-cu11==2.16.5",
)

# CUDA by first release: tensorflow.org/install/source#gpu. The oldest driver that serves it:
# docs.nvidia.com/cuda/cuda-toolkit-release-notes, and for any 11.x and 12.x
# docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html.
_DRIVERS: dict[Release, tuple[str, str]] = {
    (1, 13): ("10.0", "410.48"),
    (2, 1): ("10.1", "418.39"),
    (2, 4): ("11.0", "450.80.02"),
    (2, 5): ("11.2", "450.80.02"),
    (2, 12): ("11.8", "450.80.02"),
    (2, 15): ("12.2", "525.60.13"),
    (2, 16): ("12.3", "525.60.13"),
    (2, 18): ("12.5", "525.60.13"),
}

HOROVOD = "0.28.1"
"""The last release there is."""

HOROVOD_BUILDS: tuple[Release, Release] = ((2, 13), (2, 18))
"""First and last TensorFlow that it builds with, unpatched."""

HOROVOD_TENSORFLOW = "2.15.1"
"""The last TensorFlow whose own Keras it trains with; from 2.16 on that is tf_keras."""

HOROVOD_PYTHON = "3.11"
"""The last Python that has distutils, which its launcher imports."""

HOROVOD_NEEDS = ("cloudpickle", "packaging", "psutil", "pyyaml", "setuptools", "wheel")
"""What it imports, and what its setup.py would otherwise fetch by itself while it is built."""


def release(version: str) -> Release:
    """`"2.21.0"` → (2, 21). Raises ValueError for what is no version."""
    found = VERSION.fullmatch(version)
    if not found:
        raise ValueError(f"{version!r} is not a TensorFlow version like 2.21 or 2.21.0")
    return int(found[1]), int(found[2])


def minor(version: str) -> str:
    return "{}.{}".format(*release(version))


def pythons(version: str) -> tuple[str, str]:
    """First and last Python that the release has wheels for; a newer release is taken like the
    newest one known."""
    spans = [span for first, span in _PYTHONS.items() if first <= release(version)]
    return spans[-1] if spans else next(iter(_PYTHONS.values()))


def cuda(version: str) -> tuple[str, str]:
    """The CUDA that the release is built with, and the oldest NVIDIA driver that serves it."""
    known = [both for first, both in _DRIVERS.items() if first <= release(version)]
    return known[-1] if known else next(iter(_DRIVERS.values()))


def pinned(package: str, version: str) -> str:
    """`2.21` is any patch of it, `2.21.0` that one alone."""
    return f"{package}=={version}.*" if version.count(".") == 1 else f"{package}=={version}"


def tensorflow(version: str, build: Build) -> tuple[str, ...]:
    """Requirement lines for the release itself.

    tensorflow-cpu has wheels for x86-64 alone, and none of them before 2.1; elsewhere (ARM,
    macOS) `tensorflow` itself is a CPU build. The extra `and-cuda` can be had since 2.15; before
    2.11 the index has no CUDA that fits. Since 2.21 TensorBoard is no dependency any more, but
    without it `tf.summary.scalar` raises, which `tf.keras.callbacks.TensorBoard` calls.
    """
    number = release(version)
    board = (pinned("tensorboard", minor(version)),) if number >= (2, 21) else ()
    if build == "cuda":
        name = "tensorflow[and-cuda]" if number >= (2, 15) else "tensorflow"
        libraries = _CUDA_11 if (2, 11) <= number < (2, 15) else ()
        return (pinned(name, version), *libraries, *board)
    if number < (2, 1):
        return (pinned("tensorflow", version), *board)
    x86 = "platform_machine == 'x86_64' and sys_platform == 'linux'"
    other = "platform_machine != 'x86_64' or sys_platform != 'linux'"
    return (
        f"{pinned('tensorflow-cpu', version)} ; {x86}",
        f"{pinned('tensorflow', version)} ; {other}",
        *board,
    )


def constraints(version: str) -> tuple[str, ...]:
    """Bounds on what the release leaves open, and the release again for whoever depends on it."""
    known = [newest for first, newest in _NEWEST.items() if first <= release(version)]
    latest = max(_NEWEST)
    bounds = known[-1] if known and release(version) <= latest else ()
    old = (_OLD_SETUPTOOLS,) if release(version) < (2, 21) else ()
    return (pinned("tensorflow", version), *bounds, *old)
