"""Runs on the machine with the GPU, in the root of a checkout, with the Python of the environment:

    python3 -m tools.gpu_parts.there STAGE…

    tools     unpack the product's own packages and sshd
    take NN   put part NN of the environment in its place
    facts     what this machine is: every command that the product asks a GPU node (read-only)
    mixed     the proof as soon as TensorFlow's own part is there: what this machine has of CUDA, of
              whatever version, stands for the libraries that have not arrived
    whole     the proof with the libraries that the product pins, once everything is there
    train     `cloudtrain check`, `check --gpu`, `up`, `train`, `status` and `down` on this machine
    failures  what the product says if something is wrong; nothing on the machine is changed

Figures are lines `FIGURE name value`; logs are in $OUT. With GPUS=0 all of it runs on the CPU.
Nothing of the machine is changed: a guard in PATH has nvidia-smi answer questions alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tools.gpu_parts import chunk
from tools.gpu_parts.machine import (
    BASE,
    GPUS,
    LIBRARIES,
    OUT,
    PACKAGES,
    PARTS,
    PRODUCT,
    ROOT,
    environment,
    figure,
    guard,
    said,
    variables,
)


def main(words: Sequence[str]) -> int:
    OUT.mkdir(parents=True, exist_ok=True)
    os.environ["PATH"] = f"{guard()}:{os.environ['PATH']}"
    os.environ["PYTHONPATH"] = f"{ROOT}:{PRODUCT}"
    sys.path.append(str(PRODUCT))
    from tools.gpu_parts import product

    stages: Mapping[str, Callable[[], None]] = {
        **{"tools": tools, "facts": facts, "mixed": mixed, "whole": whole, "failures": failures},
        "train": product.train,
    }
    todo = list(words)
    while todo:
        stage = todo.pop(0)
        began = time.monotonic()
        print(f"── {stage}", flush=True)
        if stage == "take":
            take(todo.pop(0))
        else:
            stages[stage]()
        print(f"── {stage}: {time.monotonic() - began:.1f} s", flush=True)
    return 0


def tools() -> None:
    with tarfile.open(PARTS / "tools.tar.xz") as archive:
        archive.extractall(PRODUCT, filter="data")


def take(number: str) -> None:
    wrong = chunk.unpack(PARTS / number, PACKAGES)
    parts, _ = chunk.missing(PACKAGES)
    print(f"still to come: parts {parts}" if parts else "everything is there", *wrong)


FACTS = """\
nvidia-smi
nvidia-smi --query-gpu=driver_version,persistence_mode,mig.mode.current --format=csv
nvidia-smi --query-gpu=fabric.state,fabric.status --format=csv
nvidia-smi topo -m
cat /sys/module/nvidia/version /proc/driver/nvidia/version
ldconfig -p | grep -E 'libcuda.so|libnvidia-ml|ptxjit|libnvrtc|libcudart'
lsmod | grep -i nvidia; ls -la /dev/nvidia*
uname -a; head -n 3 /etc/os-release; nproc; free -g; df -h / /tmp | cat
systemctl is-active nvidia-fabricmanager nvidia-persistenced
"""


def facts() -> None:
    from cloudtrain.core import ship
    from cloudtrain.playbooks import nvidia

    for line in FACTS.splitlines():
        print(f"$ {line}\n{said('/bin/sh', '-c', line)}")
    for name, text in (("driver", nvidia._LOOK + nvidia._THERE), ("mode", nvidia._PERSISTENT)):
        print(f"the step's own check of {name}:", said("/bin/sh", "-c", text, "sh", "", "1", "0"))
    asked = [sys.executable, "-c", ship.text("gpu_facts.py"), '{"python": ""}']
    print("check --gpu reads:", said(*asked))


# ── the environment, and the proof in it ─────────────────────────────────────


def mixed() -> None:
    """What has arrived in part is taken from this machine, by the name that TensorFlow wants."""
    _, lacking = chunk.missing(PACKAGES)
    roots = [Path(each) for each in (*sys.path, os.environ.get("MIXED_ROOT", "")) if each]
    there = {path.name: path for root in roots for path in root.glob("nvidia/**/lib*.so.*")}
    folder = BASE / "mixed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for wanted, found in replacements(lacking, there).items():
        if found:
            (folder / wanted).symlink_to(found)
        else:
            print(f"neither arrived nor on this machine: {wanted}")
    places = sorted({str(path.parent) for path in there.values()})
    LIBRARIES.write_text(":".join([str(folder), *places]))
    prove("mixed")


def replacements(lacking: Sequence[str], there: Mapping[str, Path]) -> dict[str, Path | None]:
    """For each library that lacks bytes that of this machine, of another CUDA if it has no other.
    cuDNN's parts go together."""
    names = {Path(path).name for path in lacking if ".so" in path}
    if any(name.startswith("libcudnn") for name in names):
        names |= {name for name in there if name.startswith("libcudnn")}

    def other(name: str) -> Path | None:
        stem = f"{name.partition('.so')[0]}.so."
        return next((path for own, path in there.items() if own.startswith(stem)), None)

    return {name: there.get(name) or other(name) for name in sorted(names)}


def whole() -> None:
    parts, _ = chunk.missing(PACKAGES)
    if parts:
        raise SystemExit(f"parts are missing: {parts}")
    LIBRARIES.unlink(missing_ok=True)
    prove("whole")


def prove(how: str) -> None:
    """What the product's own check and proof say: the first time, and the second."""
    from cloudtrain.core import ship

    python = str(environment())
    for count in (GPUS, GPUS + 1):
        seen = (python, "-I", "-c", ship.text("gpus_seen.py"), str(count), "{}")
        print(f"gpus_seen {count}:", said(*seen, env=variables()))
    for which in ("cold", "warm"):
        work(python, how, which, ship.text("compute_work.py"))


def work(python: str, how: str, which: str, text: str) -> None:
    """compute_work, with the second of each line that it says."""
    order = json.dumps({"part": "node", "gpus": GPUS, "tf_config": "", "bytes": 64 << 20})
    began, log = time.monotonic(), OUT / f"work-{how}-{which}.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [python, "-I", "-c", text, order],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=variables(),
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        limit = threading.Timer(300, lambda: os.killpg(process.pid, signal.SIGKILL))
        limit.start()
        process.stdin.write(b"go\n")
        process.stdin.flush()
        for line in process.stdout:
            print(f"{time.monotonic() - began:7.1f} s  {line.decode().strip()}", flush=True)
            if "tflops" in (fact := json.loads(line)):
                figure(f"tflops_{how}_{which}", fact["tflops"])
        code = process.wait()
        limit.cancel()
    figure(f"proof_{how}_{which}", f"exit code {code} in {time.monotonic() - began:.1f} s")
    errors = log.read_text(errors="replace").splitlines()
    worst = [line[:300] for line in errors if re.match(r"[EF]\d{4} |\S+ \S+: [EF] ", line)]
    print("\n".join(worst[-12:]))


# ── what the product says if something is wrong ──────────────────────────────

PROGRAMS = {
    "out of memory": "import tensorflow as tf\nx = [tf.zeros([1 << 30]) for _ in range(200)]",
    "no ptxas": (
        "import os\nos.environ.update(XLA_FLAGS='--xla_gpu_cuda_data_dir=/nowhere', PATH='/bin')\n"
        "import tensorflow as tf\n"
        "f = tf.function(lambda x: tf.sin(x) @ x, jit_compile=True, autograph=False)\n"
        "print(f(tf.ones([64, 64]))[0, 0])"
    ),
    "a GPU that is not there": (
        "import tensorflow as tf\nwith tf.device('GPU:9'):\n  print(tf.ones([1]) + 1)"
    ),
    "a fork": (
        "import os, tensorflow as tf\nprint(tf.ones([2]) + 1)\n"
        "if os.fork() == 0:\n  print(tf.ones([2]) + 2); os._exit(0)\nraise SystemExit(os.wait()[1])"
    ),
}


def failures() -> None:
    from cloudtrain.core import ship
    from cloudtrain.diagnosis.hints import hint_for

    python = str(environment())
    for name, more in {
        "CUDA_VISIBLE_DEVICES hides it": {"CUDA_VISIBLE_DEVICES": ""},
        "another libcudnn": {"LD_LIBRARY_PATH": str(no_library("libcudnn.so.9"))},
        "no libcusolver": {"LD_LIBRARY_PATH": str(no_library("libcusolver.so.11"))},
    }.items():
        seen = (python, "-I", "-c", ship.text("gpus_seen.py"), str(GPUS or 1), "{}")
        print(f"{name}:", said(*seen, env={**os.environ, **more}))
    for name, program in PROGRAMS.items() if GPUS else ():
        text = said(python, "-I", "-c", program, seconds=150, env=variables())
        print(f"{name}: {text[-300:]}\n   hint: {hint_for('exit', text.encode())}", flush=True)


def no_library(name: str) -> Path:
    folder = BASE / f"no-{name}"
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"not a library")
    return folder


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
