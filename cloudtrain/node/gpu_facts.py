"""Reports what a machine says of its GPUs, for checks/host_gpus.py; changes nothing.

Run as text by the machine's own Python, with one JSON object. Answers with one, in which what
could not be found out is null.
"""

import ctypes
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

GROUPS = (
    ("name", "driver_version", "memory.total", "memory.used", "persistence_mode", "compute_mode"),
    ("compute_cap",),
    ("mig.mode.current",),
    ("fabric.state", "fabric.status"),
    ("ecc.errors.uncorrected.volatile.total",),
    ("retired_pages.pending",),
    ("remapped_rows.pending", "remapped_rows.failure"),
)
"""Fields of `nvidia-smi --query-gpu`, by the drivers that know them: one that is not known fails
the whole question. https://docs.nvidia.com/deploy/nvidia-smi (manual)."""
WARNS = 14
"""Exit code of nvidia-smi if a GPU's infoROM is corrupted, which computes all the same:
https://github.com/NVIDIA/gpu-operator/issues/285"""
SECONDS = 20
PROOF_SECONDS = 40
ALL_SECONDS = 52
"""Of the minute after which a machine counts as one that does not answer (retry.HOST_ANSWER)."""
WSL = "/usr/lib/wsl/lib"


def main() -> None:
    until = time.monotonic() + ALL_SECONDS
    order = json.loads(sys.argv[1])
    os.environ["PATH"] = os.environ.get("PATH", "") + os.pathsep + WSL
    gpus, problem = queried()
    found = {
        "gpus": gpus,
        "problem": problem,
        "cuda": cuda_of_driver(),
        "processes": processes(),
        "modules": modules(),
        "xids": xids(),
        "proof": proof(order, until) if gpus else None,
    }
    print(json.dumps(found))


def said(*command: str) -> "tuple[int, str]":
    """Exit code and output of a command; -1 if there is no such command or it does not end."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
        )
    except FileNotFoundError:
        return -1, command[0] + ": command not found"
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace").strip()


def fields_of(fields: "tuple[str, ...]") -> "tuple[tuple[str, ...], int, str]":
    asked = "--query-gpu=" + ",".join(fields)
    return (fields, *said("nvidia-smi", asked, "--format=csv,noheader,nounits"))


def queried() -> "tuple[list[dict[str, str]], str | None]":
    """Each GPU's fields, and what nvidia-smi says if it lists none."""
    gpus = []  # type: list[dict[str, str]]
    with ThreadPoolExecutor(len(GROUPS)) as side_by_side:  # the first use of a GPU takes seconds
        answers = list(side_by_side.map(fields_of, GROUPS))
    for fields, code, text in answers:
        rows = [line.split(", ") for line in text.splitlines()]
        rows = [row for row in rows if len(row) == len(fields) and "WARNING:" not in row[0]]
        if not gpus:
            if code not in (0, WARNS) or not rows:
                return [], " ".join(text.split())[:500] or "nvidia-smi lists no GPU"
            gpus = [{} for _ in rows]
        if code in (0, WARNS) and len(rows) == len(gpus):
            for number, row in enumerate(rows):
                gpus[number].update({field: row[place] for place, field in enumerate(fields)})
    return gpus, None


def cuda_of_driver() -> "list[int] | None":
    """CUDA version of the driver's library, as programs here load it."""
    version = ctypes.c_int()
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return [version.value // 1000, version.value % 1000 // 10] if version.value else None


def processes() -> "list[list[str]] | None":
    """Process id, program and MiB of each process that computes on a GPU."""
    code, text = said(
        "nvidia-smi",
        "--query-compute-apps=pid,process_name,used_memory",
        "--format=csv,noheader,nounits",
    )
    rows = [line.split(", ") for line in text.splitlines()]
    return [row for row in rows if len(row) == 3] if code in (0, WARNS) else None


def modules() -> "dict[str, bool] | None":
    """Tell whether NVIDIA's kernel modules are loaded, or will be at first use; null where the
    kernel does not show them (WSL 2, gVisor)."""
    if not os.path.isdir("/sys/module/nvidia"):
        return None
    uvm = os.path.isdir("/sys/module/nvidia_uvm") or os.path.exists("/dev/nvidia-uvm")
    return {"nvidia_uvm": uvm, "at_first_use": shutil.which("nvidia-modprobe") is not None}


def xids() -> "list[str] | None":
    """The driver's errors since the machine booted; null if this user may not read them."""
    found = None  # type: list[str] | None
    for command in (["dmesg"], ["journalctl", "-k", "-b", "--no-pager", "-q"]):
        code, text = said(*command)
        if code == 0 and text:
            found = re.findall(r"NVRM: (Xid .*)", text)[-20:]
            if "Linux version" in text[:100000]:  # else the beginning is overwritten
                break
    return found


def proof(order: "dict[str, Any]", until: float) -> "dict[str, Any] | None":
    """The answer of compute_work; null without an environment."""
    python = os.path.join(os.path.expanduser("~"), order["python"]) if order["python"] else ""
    if not os.access(python, os.X_OK):
        return None
    work = subprocess.Popen(
        [python, "-I", "-c", order["work"], json.dumps({"part": "node", "gpus": order["gpus"]})],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    facts = {"phase": "start"}  # type: dict[str, Any]
    until = min(until, time.monotonic() + PROOF_SECONDS)
    try:
        os.write(work.stdin.fileno(), b"go\n")  # type: ignore[union-attr]
        for line in lines(work.stdout.fileno(), until):  # type: ignore[union-attr]
            facts.update(json.loads(line.decode()))
            if "done" in facts or "failed" in facts:
                break
    except (OSError, ValueError):
        pass
    finally:
        try:
            os.killpg(work.pid, signal.SIGKILL)
        except OSError:
            pass
        work.wait()
    return facts


def lines(descriptor: int, until: float) -> "Any":
    """Lines that are written to it, until its end or that moment."""
    rest = b""
    while select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0]:
        data = os.read(descriptor, 65536)
        if not data:
            return
        *whole, rest = (rest + data).split(b"\n")
        yield from whole


if __name__ == "__main__":
    main()
