"""Prepares parts of a TensorFlow environment for a machine with a GPU and no network:
`make gpu-parts`. docs/internals/gpu.md says what to do with them."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from cloudtrain.away.desk_cluster import pinned_requirements  # noqa: E402
from cloudtrain.catalog import cuda, gpus  # noqa: E402
from cloudtrain.core.model import Accelerator  # noqa: E402
from tests.support import wheel_trial  # noqa: E402
from tools.gpu_parts import chunk, slim  # noqa: E402

FIRST = ("[!n]*", "n[!v]*", "nvidia_*")
LIBRARIES = ("cuda_runtime", "cuda_nvcc", "cuda_cupti", "cublas", "cudnn")
"""Packages of CUDA by the order in which a first kernel needs them."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--release", default=cuda.LIBRARIES[-1].patch, help="of TensorFlow")
    parser.add_argument("--gpus", default="H100:1", help="of that machine (H100:1)")
    parser.add_argument("--python", default="3.12", help="its Python, which must be here too")
    parser.add_argument("--part-mib", type=float, default=52, help="size of a part (52)")
    parser.add_argument("--preset", type=int, default=chunk.PRESET, help="of xz, 0 to 9 (2)")
    parser.add_argument("--out", type=Path, default=ROOT / "gpu-parts")
    parser.add_argument("--packages", type=Path, help="site-packages that are made already")
    asked = parser.parse_args(arguments)
    kind, _, count = asked.gpus.partition(":")
    gpu = gpus.gpu(kind)
    if gpu is None or asked.out.exists():
        parser.error(f"{asked.out} exists" if gpu else f"unknown GPU {kind}")
    architecture = 10 * gpu.capability[0] + gpu.capability[1]
    with tempfile.TemporaryDirectory(prefix="gpu-parts-") as folder:
        packages = asked.packages
        if packages is None:
            wanted = Accelerator(kind=kind, count=int(count or 1))
            made = wheel_trial.trial(asked.release, wanted, Path(folder), asked.python)
            packages = made.packages
        copied = slim.copy(packages, Path(folder, "packages"), architecture)
        print(
            f"{copied.size / 1e9:.1f} GB, {copied.blank / 1e9:.1f} GB of them code for other GPUs; "
            f"{copied.left_out / 1e9:.1f} GB left out",
            flush=True,
        )
        first = [*FIRST, *(f"nvidia/{name}/*" for name in LIBRARIES)]
        size = int(asked.part_mib * 2**20)
        index = chunk.pack(Path(folder, "packages"), asked.out, size, first, asked.preset)
        add_tools(Path(folder, "tools"), asked.out / "tools.tar.xz", asked.python)
    about = {"release": asked.release, "gpus": asked.gpus, "python": asked.python}
    (asked.out / "about.json").write_text(json.dumps(about))
    for glob in first:
        print(f"{glob} is complete with part {chunk.complete_with(index, glob):02}")
    print(f"{index.blocks[-1].part} parts in {asked.out}")
    return 0


def add_tools(folder: Path, archive: Path, python: str) -> None:
    """The product's own packages, and sshd with its libraries."""
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)),
            *("--no-compile", "--only-binary=:all:", f"--python-version={python}", "--no-deps"),
            *pinned_requirements(()),
        ],
        check=True,
    )
    ssh = folder / "ssh"
    (ssh / "lib").mkdir(parents=True)
    if sshd := shutil.which("sshd", path="/usr/sbin:/usr/local/sbin"):
        shutil.copy(sshd, ssh / "sshd")
        listed = subprocess.run(["ldd", sshd], capture_output=True, text=True, check=True).stdout
        for library in (line.split()[2] for line in listed.splitlines() if "=> /" in line):
            if "/libc.so" not in library:
                shutil.copy(library, ssh / "lib")
    subprocess.run(["tar", "-C", str(folder), "-cJf", str(archive), "."], check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
