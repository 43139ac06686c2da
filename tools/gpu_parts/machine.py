"""What both sides of the work on the machine with the GPU use: folders, variables, commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = Path(os.environ.get("GPU_PARTS") or ROOT / "gpu-parts")
BASE = Path(os.environ.get("GPU_BASE") or "/tmp/cloudtrain-gpu")
OUT = Path(os.environ.get("OUT") or BASE / "out")
PACKAGES, VENV, PRODUCT = BASE / "packages", BASE / "venv", BASE / "product"
GPUS = int(os.environ.get("GPUS", "1"))
LIBRARIES = BASE / "libraries"
"""Where `mixed` keeps the LD_LIBRARY_PATH that stands for what has not arrived."""
GUARD = """\
#!/bin/sh
for word in "$@"; do
    case $word in
        -L | -q | -x | -i | [0-9]* | topo | -m | --query-*=* | --format=*) ;;
        *) echo "nvidia-smi $*: not on a machine of somebody else's" >&2; exit 99;;
    esac
done
exec {real} "$@"
"""


def figure(name: str, value: object) -> None:
    print(f"FIGURE {name} {value}", flush=True)


def said(*command: str, seconds: float = 60, env: Mapping[str, str] | None = None) -> str:
    """Output of a command, with its exit code if that is not 0."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            env=dict(env or os.environ),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"({error})"
    text = done.stdout.decode("utf-8", "replace").rstrip()
    return text + (f"\n(exit code {done.returncode})" if done.returncode else "")


def guard() -> Path:
    """A folder for PATH whose nvidia-smi only asks."""
    folder = BASE / "guard"
    real = shutil.which("nvidia-smi")
    if real and not (folder / "nvidia-smi").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "nvidia-smi").write_text(GUARD.format(real=real))
        (folder / "nvidia-smi").chmod(0o755)
    return folder


def environment() -> Path:
    """Its Python: a virtual environment with the packages that were carried."""
    python = VENV / "bin/python"
    if not python.exists():
        own = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
        subprocess.run([own, "-m", "venv", "--without-pip", str(VENV)], check=True)
        (packages,) = VENV.glob("lib/python3*/site-packages")
        shutil.rmtree(packages)
        packages.symlink_to(PACKAGES)
    return python


def variables() -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if LIBRARIES.exists():
        found["LD_LIBRARY_PATH"] = LIBRARIES.read_text()
    return found if GPUS else {**found, "CUDA_VISIBLE_DEVICES": "-1"}
