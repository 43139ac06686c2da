"""Copies an environment's packages without the GPU code that one GPU does not run.

NVIDIA's libraries and TensorFlow have the same kernels for up to 13 architectures; the driver takes
the entry that fits its GPU by the entry's header. The payload of the others becomes zeros: no byte
moves, CPU code and headers stay, and zeros weigh nothing once packed. arXiv:2503.14226 does this to
whole frameworks, and they run; here no kernel has run so far.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from tools import fatbin

DROPPED = (
    *("clang/*", "*/libcurand.so*", "*/libcusolverMg.so*", "*/libnvrtc.alt.so*", "*/libnvblas*"),
    *("*/libnvrtc-builtins.alt.so*", "*/libnvperf_*", "*/libpcsamplingutil.so", "*/libnvvm.so*"),
    *("*/cicc", "*/include/*", "*/libcheckpoint.so", "*.a", "*/__pycache__/*", "*.pyc"),
    *("numpy/*/tests/*", "tensorboard_data_server/*"),
)
"""What no part of TensorFlow opens."""
LEAN = ("*/libcufft.so*",)
"""Libraries whose PTX is left out even where it is the newest: cuFFT's is 150 MB once packed."""
SMALLEST = 3_000_000
"""Bytes of a library that may have GPU code."""


@dataclass(frozen=True)
class Copied:
    size: int
    """Bytes of all files."""
    blank: int
    """Those that became zeros."""
    left_out: int


def copy(packages: Path, out: Path, architecture: int) -> Copied:
    """Copy to `out`, which must not exist; 90 for sm_90."""
    out.mkdir(parents=True)
    size = blank = left_out = 0
    for source in files(packages):
        inside = source.relative_to(packages)
        length = source.lstat().st_size
        if any(fnmatch(str(inside), each) for each in DROPPED):
            left_out += length
            continue
        target = out / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        size += length
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif ".so" in source.name and length > SMALLEST:
            data = bytearray(source.read_bytes())
            lean = any(fnmatch(str(inside), each) for each in LEAN)
            blank += blanked(data, architecture, lean=lean)
            target.write_bytes(data)
            shutil.copystat(source, target)
        else:
            shutil.copy2(source, target)
    for link in (each for each in files(out) if each.is_symlink() and not each.exists()):
        link.unlink()
    return Copied(size, blank, left_out)


def files(folder: Path) -> Iterator[Path]:
    """All files and links, links to folders too."""
    for place, folders, names in os.walk(folder):
        links = [each for each in folders if Path(place, each).is_symlink()]
        yield from (Path(place, each) for each in (*names, *links))


def blanked(data: bytearray, architecture: int, *, lean: bool) -> int:
    """Blank in place; returns the number of bytes. Of each container stay the machine code for the
    architecture, or else the newest PTX and LTO code that is not newer."""
    blank = 0
    for entries in list(fatbin.containers(data)):
        own = any(
            each.kind == fatbin.MACHINE_CODE and each.architecture == architecture
            for each in entries
        )
        newest = {
            kind: max(
                (
                    e.architecture
                    for e in entries
                    if e.kind == kind and e.architecture <= architecture
                ),
                default=None,
            )
            for kind in (fatbin.PTX, fatbin.LTO)
        }
        for each in entries:
            wanted = architecture if own or lean else newest.get(each.kind)
            stays = each.architecture == wanted
            if own or lean:
                stays = stays and each.kind == fatbin.MACHINE_CODE
            if not stays:
                data[each.start : each.end] = bytes(each.end - each.start)
                blank += each.end - each.start
    return blank
