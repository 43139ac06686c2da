"""Writes cloudtrain/catalog/gpu_code.csv: `make gpu-code`.

What GPU code the wheels of each TensorFlow release have, for each compute capability that a cloud
rents: kernels with machine code, kernels that the driver must compile from PTX, and the newest PTX
among these, which the driver must know. Fetches the wheels of all releases of docs/versions.json,
one at a time (0.2 to 0.6 GB each, 6 GB in all), and keeps none.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from cloudtrain.catalog import gpus  # noqa: E402
from cloudtrain.playbooks import tensorflow_releases  # noqa: E402
from tools import fatbin  # noqa: E402

TABLE = ROOT / "cloudtrain" / "catalog" / "gpu_code.csv"
HEAD = ("tensorflow", "capability", "kernels", "compiled", "absent", "ptx", "target")
LIBRARY = re.compile(r"\.so(\.\d+)*$")
SMALLEST = 1_000_000
"""Bytes: a smaller library has no kernels."""
TARGET = re.compile(r"sm_(\d+)([af]?)$")


@dataclass(frozen=True)
class Kernels:
    """One container: kernels of one source file, for every architecture of the build."""

    machine_code: tuple[gpus.Capability, ...]
    ptx: tuple[tuple[str, tuple[int, int]], ...]
    """Target and version of the language: (`sm_90a`, (8, 5))."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("releases", nargs="*", help="2.21.0 …; those of docs/versions.json")
    wanted = parser.parse_args(arguments).releases or releases()
    rows: list[list[str]] = []
    for version in wanted:
        with tempfile.TemporaryDirectory(prefix="gpu-code-") as folder:
            found = list(kernels(fetched(version, Path(folder))))
        rows += table(version, found)
        print(f"{version}: {len(found)} containers", file=sys.stderr, flush=True)
    text = as_csv(rows)
    if wanted == releases():
        TABLE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


def releases() -> list[str]:
    """Patches that docs/versions.md names, the newest first."""
    results = json.loads((ROOT / "docs" / "versions.json").read_text("utf-8"))
    found = {str(each["versions"]["tensorflow"]) for each in results.values() if each["versions"]}
    return sorted(found, key=lambda version: [int(part) for part in version.split(".")])[::-1]


def fetched(version: str, folder: Path) -> Path:
    """Its wheel for Linux on x86-64. Raises CalledProcessError with pip's own words on stderr."""
    _, newest = tensorflow_releases.pythons(version)
    platforms = [f"--platform=manylinux{each}_x86_64" for each in ("2010", "2014", "_2_27")]
    asked = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    asked += ["--only-binary=:all:", f"--python-version={newest}", *platforms]
    subprocess.run([*asked, f"{tensorflow_releases.with_cuda(version)}=={version}"], check=True)
    return next(folder.glob("*.whl"))


def kernels(wheel: Path) -> Iterator[Kernels]:
    """Containers of all libraries in the wheel."""
    with zipfile.ZipFile(wheel) as packed:
        for member in packed.infolist():
            if LIBRARY.search(member.filename) and member.file_size > SMALLEST:
                yield from in_library(packed.read(member))


def in_library(data: bytes) -> Iterator[Kernels]:
    """Its containers; not those of PTX alone: these are parts of NCCL, whose machine code is linked
    into a container of its own, and empty files."""
    for entries in fatbin.containers(data):
        code = [each for each in entries if each.kind == fatbin.MACHINE_CODE]
        ptx = [each for each in entries if each.kind == fatbin.PTX]
        if code:
            yield Kernels(
                tuple((each.architecture // 10, each.architecture % 10) for each in code),
                tuple((each.target(data), each.version) for each in ptx),
            )


def table(version: str, found: Sequence[Kernels]) -> Iterator[list[str]]:
    """A row for each capability of the table of GPUs."""
    for capability in sorted({gpu.capability for gpu in gpus.GPUS}):
        without = [each for each in found if not has_code(each.machine_code, capability)]
        usable = [ptx for each in without if (ptx := compiled(each, capability))]
        newest = max(usable, key=lambda ptx: ptx[1], default=None)
        cells = ["{}.{}".format(*newest[1]), newest[0]] if newest else ["", ""]
        counts = (len(found), len(usable), len(without) - len(usable))
        yield [version, "{}.{}".format(*capability), *map(str, counts), *cells]


def has_code(code: Iterable[gpus.Capability], capability: gpus.Capability) -> bool:
    """Machine code runs on later capabilities of the same major number."""
    return any(each[0] == capability[0] and each <= capability for each in code)


def compiled(each: Kernels, capability: gpus.Capability) -> tuple[str, tuple[int, int]] | None:
    """The PTX that a driver takes for it. That for `sm_90a` runs on 9.0 alone.
    https://docs.nvidia.com/cuda/parallel-thread-execution/#ptx-module-directives-target"""
    found = {}
    for target, version in each.ptx:
        if of := TARGET.match(target):
            its = int(of[1]) // 10, int(of[1]) % 10
            if its == capability or (its < capability and not of[2]):
                found[its] = (target, version)
    return found[max(found)] if found else None


def as_csv(rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    text.write(f"# {date.today()} written by tools/gpu_code.py from the wheels on PyPI\n")
    out = csv.writer(text, lineterminator="\n")
    out.writerow(HEAD)
    out.writerows(rows)
    return text.getvalue()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
