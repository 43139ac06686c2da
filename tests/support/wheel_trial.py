"""Tries a TensorFlow release's real CUDA wheels against a pretended driver, on this machine.

    python -m tests.support.wheel_trial [2.21] [--gpus T4:1] [--python 3.12] [--folder DIR]
        [--driver 535] [--keep]

The steps are those of a rented node: the environment (3 GB of downloads, 6 GB of disk, minutes),
the driver's check and the GPUs'. Then TensorFlow lists its GPUs, and the line for the table of
docs/playbooks.md is printed. What it cannot show is that a kernel computes: no driver is here.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from cloudtrain.catalog import cuda
from cloudtrain.core.errors import StepFailed
from cloudtrain.core.model import Accelerator, ClusterConfig, NodeGroup, Setup
from cloudtrain.playbooks import gpu_check, nvidia, tensorflow
from cloudtrain.playbooks.apply import apply
from tests.support import pretended_driver
from tests.support.nodes_here import HereTransport, Remembered, node
from tests.support.prepared import users_pip_config

NEEDS_GB = 10

LISTS = """\
import json, os, platform
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
from importlib.metadata import distributions
found = {each.metadata["Name"]: each.version for each in distributions()}
libraries = {name.rpartition("-")[0][7:]: version for name, version in found.items()
             if name.startswith("nvidia-")}
gpus = tf.config.list_physical_devices("GPU")
details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
names = ["%s %d.%d" % (each["device_name"], *each["compute_capability"]) for each in details]
code = tf.sysconfig.get_build_info()["cuda_compute_capabilities"]
print(json.dumps({"tensorflow": tf.__version__, "python": platform.python_version(),
                  "gpus": names, "code": code, "libraries": libraries}))
"""


class Told(Remembered):
    """A stage that shows its lines, with the seconds since it began."""

    def __init__(self) -> None:
        super().__init__()
        self.began = time.monotonic()

    def node(self, name: str, text: str) -> None:
        super().node(name, text)
        print(f"{time.monotonic() - self.began:6.0f} s  {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class Trial:
    tensorflow: str
    python: str
    gpus: tuple[str, ...]
    """As TensorFlow names them: `NVIDIA T4 7.5`."""
    code: tuple[str, ...]
    """The device code in the wheels: `sm_80`, `compute_90`."""
    libraries: dict[str, str]
    packages: Path
    """The environment's `site-packages`."""
    gigabytes: float
    seconds: float

    def row(self) -> str:
        cells = (
            self.tensorflow,
            self.python,
            self.libraries["cuda-runtime"],
            self.libraries["cudnn"],
            ", ".join(self.gpus) or "none",
            f"{self.gigabytes:.1f} GB",
        )
        return f"| {' | '.join(cells)} |"


def trial(
    version: str,
    gpus: Accelerator,
    folder: Path,
    python: str = "auto",
    branch: int = pretended_driver.NEWEST,
) -> Trial:
    """`python`: its version, as in `setup.python`; `branch`: of the driver. Raises StepFailed where
    a step does not hold, OSError for a disk that is too small."""
    free = shutil.disk_usage(folder).free / 1000**3
    if free < NEEDS_GB:
        raise OSError(f"{free:.1f} GB are free in {folder}, a trial needs {NEEDS_GB} GB")
    began, stage = time.monotonic(), Told()
    config = ClusterConfig(
        name="trial",
        provider="gcp",
        strategy="mirrored",
        nodes={"chief": NodeGroup(accelerator=gpus)},
        setup=Setup(tensorflow=version, python=python),
    )
    here = node("trial-chief0", cache=str(folder / "cache"))
    environ = _environ(folder)
    apply(
        lambda one: tensorflow.steps(config, one),
        [here],
        HereTransport(folder / "homes", environ),
        stage,
    )
    environment = Path(str(tensorflow.bin_folder(config, here))).parent
    (packages,) = environment.glob("lib/python3*/site-packages")
    with _driver(folder / "driver", gpus, packages, environ, branch) as there:
        transport = HereTransport(folder / "homes", there)
        both = (nvidia.steps, gpu_check.steps)
        apply(
            lambda one: [s for steps in both for s in steps(config, one)], [here], transport, stage
        )
        found = _listed(environment / "bin/python", there)
    return Trial(
        tensorflow=found["tensorflow"],
        python=found["python"],
        gpus=tuple(found["gpus"]),
        code=tuple(found["code"]),
        libraries=found["libraries"],
        packages=packages,
        gigabytes=_size(environment),
        seconds=time.monotonic() - began,
    )


def _environ(folder: Path) -> dict[str, str]:
    """Nothing of the machine is changed: apt and sudo fail, by name."""
    guard = folder / "guard"
    guard.mkdir()
    for name in ("apt-get", "sudo", "modprobe", "apt-mark"):
        text = f"#!/bin/sh\necho '{name}: a trial changes nothing of this machine' >&2\nexit 100\n"
        (guard / name).write_text(text)
        (guard / name).chmod(0o755)
    environ = {"PATH": f"{guard}:{os.environ['PATH']}", "LD_LIBRARY_PATH": ""}
    if pip_config := users_pip_config():
        environ["PIP_CONFIG_FILE"] = pip_config
    return environ


@contextmanager
def _driver(
    folder: Path, gpus: Accelerator, packages: Path, environ: dict[str, str], branch: int
) -> Iterator[dict[str, str]]:
    """The variables that it is found by; the playbooks' root is its machine."""
    driver = pretended_driver.make(folder, gpus, packages, branch)
    with patch.object(nvidia, "ROOT", str(driver.root)):
        yield {
            **environ,
            "PATH": f"{driver.tools}:{environ['PATH']}",
            "LD_LIBRARY_PATH": str(driver.libraries),
        }


def _listed(python: Path, environ: dict[str, str]) -> dict[str, Any]:
    asked = [str(python), "-I", "-c", LISTS]
    done = subprocess.run(asked, env={**os.environ, **environ}, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"TensorFlow did not list its GPUs:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _size(folder: Path) -> float:
    """GB on the disk."""
    blocks = (each.lstat().st_blocks for each in folder.rglob("*"))
    return sum(blocks) * 512 / 1000**3


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    newest = cuda.LIBRARIES[-1].patch
    parser.add_argument("version", nargs="?", default=newest, help=f"a release ({newest})")
    parser.add_argument("--gpus", default="T4:1", help="what the driver pretends: V100:2")
    parser.add_argument("--python", default="auto", help="its version (the newest)")
    branch = pretended_driver.NEWEST
    parser.add_argument("--driver", type=int, default=branch, help=f"its branch ({branch})")
    parser.add_argument("--folder", help="where the environment is made: 10 GB must be free")
    parser.add_argument("--keep", action="store_true", help="leave the environment there")
    asked = parser.parse_args(arguments)
    kind, _, count = asked.gpus.partition(":")
    folder = Path(tempfile.mkdtemp(prefix="wheel-trial-", dir=asked.folder))
    try:
        wanted = Accelerator(kind=kind, count=int(count or 1))
        made = trial(asked.version, wanted, folder, asked.python, asked.driver)
    except (StepFailed, OSError) as error:
        print(f"{error}", file=sys.stderr)
        return 1
    finally:
        if asked.keep:
            print(f"the environment is in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder)
    print(f"in {made.seconds:.0f} s; device code: {', '.join(made.code)}", file=sys.stderr)
    print(made.row())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
