"""TensorFlow releases: supported Pythons, wheels, and bounds for their open requirements.

A new release is a row of `_NEWEST`, of `_PYTHONS` if it supports others, and the value of `READ`.
`test_a_release_is_known_everywhere` lists its other places; names that it has or lacks are in
script/releases.py, strategies in training/strategies.py."""

from __future__ import annotations

import re
from datetime import date
from typing import Literal

from cloudtrain.catalog import cuda

Build = Literal["cpu", "cuda", "tpus"]
Release = tuple[int, int]

VERSION = re.compile(r"(\d+)\.(\d+)(\.\d+(\.?(post|rc)\d+)?)?")

READ = date(2026, 11, 21)
"""Day on which the tables below were read."""

# First and last Python with a wheel for Linux x86-64, by first release of a span.
# Source: PyPI's files of tensorflow and tensorflow-cpu, queried on 2026-11-21 with
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

# Newest versions to allow, where the release's own metadata sets no limit or one too high.
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
ANY_NEWER = ("3.10", "3.17")
"""Pythons that may have wheels of a release that is newer than the tables."""
FOR_TPUS: tuple[Release, Release] = ((2, 19), (2, 20))
"""First and last release whose build for TPUs installs from PyPI alone: `tensorflow-tpu` 2.19.1
requires libtpu 0.0.10, 2.20.0 libtpu~=0.0.14 (queried on 2026-11-22). Those of 2.16 to 2.18 require
versions of libtpu that PyPI lacks, and there is none of 2.21. None was run on a TPU."""


def release(version: str) -> Release:
    """Parse `"2.21.0"` as (2, 21). Raises ValueError for an invalid version."""
    found = VERSION.fullmatch(version)
    if not found:
        raise ValueError(f"{version!r} is not a TensorFlow version like 2.21 or 2.21.0")
    return int(found[1]), int(found[2])


def newest() -> str:
    """The newest release of the tables, `2.21`."""
    return "{}.{}".format(*max(_NEWEST))


def is_newer(version: str) -> bool:
    """True if the release is newer than the tables: then the package index is asked on the node."""
    return release(version) > max(_NEWEST)


def unknown(version: str) -> str | None:
    """Message for a release that never existed; None for one of the tables and for newer ones."""
    if is_newer(version):
        return None
    number = release(version)
    oldest, last_of_1 = min(_NEWEST), 15
    if number < oldest or (number[0] == 1 and number[1] > last_of_1):
        releases = f"1.13 to 1.15 and 2.0 to {newest()}"
        return f"unknown TensorFlow {version}; {releases} are known"
    return None


def minor(version: str) -> str:
    return "{}.{}".format(*release(version))


def pythons(version: str) -> tuple[str, str]:
    """First and last Python with wheels of the release; a wide range for newer releases."""
    if is_newer(version):
        return ANY_NEWER
    spans = [span for first, span in _PYTHONS.items() if first <= release(version)]
    return spans[-1] if spans else next(iter(_PYTHONS.values()))


def pinned(package: str, version: str) -> str:
    """Requirement for a version: `2.21` means any patch of it, `2.21.0` only that one."""
    return f"{package}=={version}.*" if version.count(".") == 1 else f"{package}=={version}"


def tensorflow(version: str, build: Build) -> tuple[str, ...]:
    """Requirement lines for the release itself.

    tensorflow-cpu has wheels only for x86-64, and none before 2.1; elsewhere (ARM, macOS)
    `tensorflow` itself is a CPU build. The extra `and-cuda` exists since 2.15; before 2.11 the
    index has no matching CUDA. Since 2.21 TensorBoard is no longer a dependency, but without it
    `tf.summary.scalar`, which `tf.keras.callbacks.TensorBoard` calls, raises."""
    number = release(version)
    if build == "tpus":
        return (pinned("tensorflow-tpu", version),)
    board = (pinned("tensorboard", minor(version)),) if number >= (2, 21) else ()
    if build == "cuda":
        name = "tensorflow[and-cuda]" if number >= (2, 15) else with_cuda(version)
        libraries = cuda.libraries(version) if number < (2, 15) else ()
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


def with_cuda(version: str) -> str:
    """The package with GPU code: 2.0 and earlier have one of its own, `tensorflow` of 1.15.5 has no
    kernel for GPUs (catalog/gpu_code.csv). https://www.tensorflow.org/install/pip#older-versions"""
    return "tensorflow" if release(version) >= (2, 1) else "tensorflow-gpu"


def constraints(version: str) -> tuple[str, ...]:
    """Bounds for requirements that the release leaves open, and the release itself for packages
    that depend on it. CUDA's are in catalog/cuda.py."""
    known = [newest for first, newest in _NEWEST.items() if first <= release(version)]
    bounds = known[-1] if known and not is_newer(version) else ()
    old = ("setuptools<81",) if release(version) < (2, 21) else ()
    return (pinned("tensorflow", version), *bounds, *old)
