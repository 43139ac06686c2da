"""`cloudtrain check --gpu`: what would keep GPUs of machines of your own from computing."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cloudtrain.catalog import cuda, gpus
from cloudtrain.cluster.session import open_provider
from cloudtrain.core import ship
from cloudtrain.core.errors import CloudtrainError, PreflightError, UsageError
from cloudtrain.core.model import Accelerator, ClusterConfig, Node
from cloudtrain.core.protocols import AsksMachines, Finding
from cloudtrain.playbooks import nvidia, tensorflow

Facts = Mapping[str, Any]
"""As node/gpu_facts prints them."""
Told = Iterator[tuple[str, str, str | None, bool | None]]
"""What, text, hint, and whether it is good; None if it could not be found out."""

BROKEN = {46, 48, 62, 64, 74, 79, 95, 119, 120, 140}
"""Xid errors after which a GPU must be reset, or is broken; others are mostly a program's (13, 31,
43, 45). Read in quotes of https://docs.nvidia.com/deploy/xid-errors (2026-11-27)."""
HELD = 0.1
"""Share of a GPU's memory that others may hold: TensorFlow takes nearly all that is free."""
RESET = "reboot the machine, or run `sudo nvidia-smi --gpu-reset` when nothing uses the GPU"
PROBLEMS = {
    "command not found": "install NVIDIA's driver, with nvidia-smi",
    "communicate with the NVIDIA driver": "the driver does not run: install it for the running "
    "kernel, or reboot",
    "version mismatch": "the kernel module and the libraries of the driver have different versions,"
    " as after an upgrade: reboot the machine",
    "device handle|GPU is lost": "the GPU is lost: `sudo dmesg` shows its Xid error; reboot the "
    "machine",
    "No devices were found": "the driver sees no GPU: `lspci` and `sudo dmesg` show why",
    "Unknown Error": "in a container, install nvidia-container-toolkit on its machine and start it "
    "with `--gpus all`",
}
"""Hint by a pattern in nvidia-smi's answer."""


def host_gpus(config: ClusterConfig) -> tuple[Finding, ...]:
    """Findings on the GPUs of each machine, which are asked side by side, for a minute at most.
    Raises UsageError for machines that do not exist yet."""
    provider = open_provider(config)
    if not isinstance(provider, AsksMachines):
        raise UsageError(
            f"check --gpu asks machines that exist: `provider: hosts`, not {config.provider}",
            hint="on rented nodes `up` checks GPUs and their driver, and `train` has them compute",
        )
    work = ship.text("compute_work.py")
    planned: dict[str, Accelerator | None] = {}

    def arguments(node: Node) -> tuple[str]:
        planned[node.task] = has = nvidia.wanted(config, node)
        order = {"python": "", "gpus": 0, "work": work}
        if has and config.setup.tensorflow:  # else its environment is for the CPU
            python = f"{tensorflow.bin_folder(config, node)}/python"
            order |= {"python": python, "gpus": has.count}
        return (json.dumps(order),)

    said = provider.ask_machines(ship.text("gpu_facts.py"), arguments)
    return tuple(
        finding
        for task, answer in said.items()
        for finding in of_machine(task, answer, planned.get(task), config.setup.tensorflow)
    )


def of_machine(
    task: str, answer: str | CloudtrainError, planned: Accelerator | None, version: str | None
) -> Iterator[Finding]:
    """Findings on one machine."""
    if isinstance(answer, CloudtrainError):
        yield Finding.of(f"{task} host", answer)
        return
    for what, text, hint, good in judged(json.loads(answer), planned, version):
        yield Finding(
            what=f"{task} {what}",
            ok=good is not False,
            told=good is not None,
            text=text,
            hint=hint,
            error=None if good is not False else PreflightError,
        )


def judged(facts: Facts, planned: Accelerator | None, version: str | None) -> Told:
    """Each fact with what to do about it; the driver alone if it lists no GPU."""
    if facts["problem"] is not None:
        hints = (hint for words, hint in PROBLEMS.items() if re.search(words, facts["problem"]))
        hint = next(hints, "run `nvidia-smi` on the machine")
        yield "driver", facts["problem"], hint, False
        return
    listed = used(facts["gpus"], version)
    yield from driver(listed[0], facts["cuda"], planned, version)
    yield from number(listed, planned)
    yield from modules(facts["modules"])
    yield from fabric(listed)
    yield from ecc(listed)
    yield from xids(facts["xids"])
    off = any(gpu["persistence_mode"] == "Disabled" for gpu in listed)
    slow = "off: each first use takes seconds; `sudo nvidia-smi -pm 1` turns it on"
    yield "persistence", slow if off else "on", None, True
    split = any(gpu.get("mig.mode.current") == "Enabled" for gpu in listed)
    whole = "run `sudo nvidia-smi -mig 0`" if split else None
    yield "MIG", "on: CUDA uses one part of one GPU" if split else "off", whole, not split
    yield from memory(listed, facts["processes"])
    yield from proof(facts["proof"])


def used(listed: Sequence[Mapping[str, str]], version: str | None) -> Sequence[Mapping[str, str]]:
    """The GPUs that TensorFlow uses: it leaves out a display's old one beside others (its
    gpu_device.cc, "The minimum required Cuda capability"). All if it uses none."""

    def is_left_out(gpu: Mapping[str, str]) -> bool:
        row = gpus.gpu(kind_of(gpu) or "")
        if row is None or version is None or row.capability >= gpus.FIRST_WITHOUT:
            return False
        return gpus.fit(row.kind, version) == "none"

    return [gpu for gpu in listed if not is_left_out(gpu)] or listed


def driver(
    gpu: Mapping[str, str],
    knows: Sequence[int] | None,
    planned: Accelerator | None,
    version: str | None,
) -> Told:
    """Check that it can compile the release's code for this GPU, and runs its CUDA."""
    has = gpu["driver_version"]
    text = has + (f", CUDA {'.'.join(map(str, knows))}" if knows else "")
    kind = kind_of(gpu) or (planned.kind if planned else None)
    if version is None or kind is None or not cuda.parts(has):
        yield "driver", text, None, True
        return
    if gpus.fit(kind, version) == "none":
        text = f"TensorFlow {version} has no code for {gpu['name']}"
        yield "driver", text, "docs/machines.md lists which work together", False
        return
    old, code = cuda.too_old(version, kind, has), cuda.code(version, kind)
    needs = cuda.PTX[code.ptx][0] if code and code.ptx else "0.0"
    # A newer library of CUDA (cuda-compat) compiles for an older driver.
    compiles = knows is not None and tuple(knows) >= cuda.parts(needs)
    runs = cuda.parts(has) >= cuda.parts(cuda.toolkit(version).driver)
    if old is None or (compiles and runs):
        yield "driver", text, None, True
    else:
        yield "driver", old[0], old[1], False


def kind_of(gpu: Mapping[str, str]) -> str | None:
    """A kind of the table with its compute capability, which alone decides on code; None if the
    driver does not say it, or the table has none."""
    said = gpu.get("compute_cap", "")
    return next((g.kind for g in gpus.GPUS if "{}.{}".format(*g.capability) == said), None)


def number(listed: Sequence[Mapping[str, str]], planned: Accelerator | None) -> Told:
    names = Counter(gpu["name"] for gpu in listed)
    text = ", ".join(f"{count} × {name}" for name, count in names.items())
    if planned is None:
        yield "GPUs", f"{text}; the file names no accelerator", None, None
        return
    short = len(listed) < planned.count
    hint = "`sudo dmesg | grep -E 'NVRM|Xid'` on the machine shows why one is missing"
    yield (
        "GPUs",
        f"{text}, planned {planned}" if short else text,
        hint if short else None,
        not short,
    )
    prohibited = any(gpu["compute_mode"] == "Prohibited" for gpu in listed)
    if prohibited:
        yield "compute mode", "Prohibited", "run `sudo nvidia-smi -c 0`", False


def modules(found: Mapping[str, bool] | None) -> Told:
    if found is None:
        yield "kernel modules", "not shown here, as in WSL 2 and containers", None, None
    elif found["nvidia_uvm"] or found["at_first_use"]:
        how = "nvidia, nvidia_uvm" if found["nvidia_uvm"] else "nvidia_uvm is loaded at first use"
        yield "kernel modules", how, None, True
    else:
        hint = "run `sudo modprobe nvidia_uvm`, and have it loaded at each boot"
        yield "kernel modules", "nvidia_uvm is not loaded", hint, False


def fabric(listed: Sequence[Mapping[str, str]]) -> Told:
    """Of NVSwitches; `status` counts once the state is Completed (NVML, nvmlGpuFabricInfo_t)."""
    states = {gpu.get("fabric.state", "N/A").strip("[]") for gpu in listed}
    failed = {
        gpu["fabric.status"]
        for gpu in listed
        if gpu.get("fabric.state") == "Completed" and gpu["fabric.status"] != "Success"
    }
    if states & {"In Progress", "Not Started"} or failed:
        hint = "run `systemctl status nvidia-fabricmanager`; B200 and later also need nvlsm"
        yield "fabric", ", ".join(sorted(failed or states)), hint, False
    else:
        yield "fabric", "Completed" if "Completed" in states else "no NVSwitches", None, True


def ecc(listed: Sequence[Mapping[str, str]]) -> Told:
    field = "ecc.errors.uncorrected.volatile.total"
    counts = [gpu[field] for gpu in listed if gpu.get(field, "").isdigit()]
    errors = sum(map(int, counts))
    pending = ("retired_pages.pending", "remapped_rows.pending")
    waits = any(gpu.get(field) in ("Yes", "1") for gpu in listed for field in pending)
    if any(gpu.get("remapped_rows.failure") in ("Yes", "1") for gpu in listed):
        yield "ECC", "rows that cannot be remapped any more", "have the GPU replaced", False
    elif errors or waits:
        text = f"{errors} uncorrected errors since the driver was loaded"
        yield "ECC", f"{text}, pages wait for a reset" if waits else text, RESET, False
    else:
        yield "ECC", "no uncorrected errors" if counts else "these GPUs have none", None, True


def xids(found: Sequence[str] | None) -> Told:
    if found is None:
        text = "this user may not read the kernel's log: `sudo dmesg | grep Xid` shows it"
        yield "Xid", text, None, None
        return
    numbers = (re.match(r"Xid \([^)]*\): (\d+)", line) for line in found)
    bad = [line for line, n in zip(found, numbers, strict=True) if n and int(n[1]) in BROKEN]
    if bad:
        yield "Xid", bad[-1], RESET, False
    else:
        text = f"{len(found)} since boot, of programs: {found[-1]}" if found else "none since boot"
        yield "Xid", text, None, True


def memory(listed: Sequence[Mapping[str, str]], held: Sequence[Sequence[str]] | None) -> Told:
    """Free memory of the fullest GPU, and who holds it."""
    sizes = [
        (float(gpu["memory.total"]), float(gpu["memory.used"]))
        for gpu in listed
        if gpu["memory.total"].isdigit() and gpu["memory.used"].isdigit()
    ]
    sizes = [size for size in sizes if size[0]]
    if not sizes:
        yield "memory", "the driver does not say", None, None
        return
    total, used = max(sizes, key=lambda size: size[1] / size[0])
    text = f"{(total - used) / 1024:.1f} of {total / 1024:.1f} GiB free"
    names = [f"{name} (pid {pid})" for pid, name, _ in held or ()]
    if used > HELD * total:
        by = f"; held by {', '.join(names)}" if names else ""
        yield "memory", f"{text}{by}", "end what holds it, or wait for it", False
    else:
        yield "memory", text, None, True


def proof(facts: Facts | None) -> Told:
    """The result that TensorFlow computed there, with the environment of an earlier `up`."""
    if facts is None:
        text = "not tried: `cloudtrain up` creates the environment, `train` has it compute"
        yield "compute check", text, None, None
    elif "done" in facts:
        figures = ", ".join(f"{each:.1f}" for each in facts.get("tflops", ()))
        yield "compute check", f"{figures} TFLOP/s, convolution, XLA", None, True
    elif "failed" in facts:
        hint = "docs/failures.md lists what TensorFlow's messages mean"
        yield "compute check", f"{facts['phase']}: {facts['failed']}", hint, False
    else:
        text = f"did not end within 40 s, in: {facts['phase']}"
        yield "compute check", f"{text}; `cloudtrain train` gives it longer", None, None
