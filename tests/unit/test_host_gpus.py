"""`check --gpu`: each fact of a machine's GPUs is judged, with what to do about it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cloudtrain.checks.host_gpus import host_gpus, judged, of_machine
from cloudtrain.core.errors import NodeUnreachable, UsageError
from cloudtrain.core.model import Accelerator, ClusterConfig
from tests.support.pretended_driver import CUDA_OF

H100 = {
    "name": "NVIDIA H100 80GB HBM3",
    "driver_version": "580.126.20",
    "memory.total": "81559",
    "memory.used": "4",
    "persistence_mode": "Enabled",
    "compute_mode": "Default",
    "compute_cap": "9.0",
    "mig.mode.current": "Disabled",
    "fabric.state": "Completed",
    "fabric.status": "Success",
    "ecc.errors.uncorrected.volatile.total": "0",
    "retired_pages.pending": "[N/A]",
    "remapped_rows.pending": "No",
    "remapped_rows.failure": "No",
}
WELL: dict[str, Any] = {
    "gpus": [H100, H100],
    "problem": None,
    "cuda": [13, 0],
    "processes": [],
    "modules": {"nvidia_uvm": True, "at_first_use": True},
    "xids": [],
    "proof": {"phase": "XLA", "tflops": [701.2, 699.8], "done": True},
}
TWO = Accelerator(kind="H100", count=2)


def found(version: str | None = "2.21", planned: Accelerator | None = TWO, **facts: Any) -> Any:
    """Of each thing the text, the hint and whether it is good."""
    told = judged({**WELL, **facts}, planned, version)
    return {what: (text, hint, good) for what, text, hint, good in told}


def gpu(**fields: str) -> list[dict[str, str]]:
    return [{**H100, **{name.replace("__", "."): value for name, value in fields.items()}}, H100]


def test_a_machine_that_is_well_has_a_line_for_each_fact() -> None:
    assert {what: text for what, (text, _, good) in found().items() if good} == {
        "driver": "580.126.20, CUDA 13.0",
        "GPUs": "2 × NVIDIA H100 80GB HBM3",
        "kernel modules": "nvidia, nvidia_uvm",
        "fabric": "Completed",
        "ECC": "no uncorrected errors",
        "Xid": "none since boot",
        "persistence": "on",
        "MIG": "off",
        "memory": "79.6 of 79.6 GiB free",
        "compute check": "701.2, 699.8 TFLOP/s, convolution, XLA",
    }


@pytest.mark.parametrize("driver", CUDA_OF)
@pytest.mark.parametrize(
    ("name", "capability", "oldest"),
    [
        ("Tesla V100-SXM2-16GB", "7.0", 525),
        ("Tesla T4", "7.5", 525),
        ("NVIDIA A100-SXM4-40GB", "8.0", 525),
        ("NVIDIA L4", "8.9", 525),
        ("NVIDIA H200", "9.0", 555),
    ],
)
def test_a_driver_is_judged_by_the_release_and_the_gpu(
    name: str, capability: str, oldest: int, driver: int
) -> None:
    one = {**H100, "name": name, "compute_cap": capability, "driver_version": f"{driver}.90.12"}
    text, hint, good = found(gpus=[one, one], cuda=[*CUDA_OF[driver]])["driver"]
    assert good == (driver >= oldest)
    if not good:
        assert f"needs {oldest}" in text
        assert f"install driver {oldest}" in hint
        newest = "2.14" if driver < 525 else "2.16" if driver < 545 else "2.18"
        assert ("set " in hint) == (oldest == 525 or driver >= 525)
        assert f'`setup.tensorflow: "{newest}"`' in hint or "set " not in hint


def test_a_newer_cuda_library_serves_where_the_drivers_own_is_too_old() -> None:
    old = gpu(driver_version="535.183.01")
    assert found(gpus=old, cuda=[12, 2])["driver"][1:] == (
        'install driver 555 or newer, or set `setup.tensorflow: "2.16"`',
        False,
    )
    assert found(gpus=old, cuda=[12, 9])["driver"][2], "cuda-compat"
    assert not found(gpus=old, cuda=None)["driver"][2]
    assert found(version=None, gpus=old, cuda=[12, 2])["driver"][2]


def test_blackwell_is_refused_by_its_capability() -> None:
    text, _, good = found(gpus=gpu(name="NVIDIA B200", compute_cap="10.0"))["driver"]
    assert (text, good) == ("TensorFlow 2.21 has no code for NVIDIA B200", False)


@pytest.mark.parametrize(
    ("what", "facts", "text", "hint"),
    [
        ("GPUs", {"gpus": [H100]}, "1 × NVIDIA H100 80GB HBM3, planned H100:2", "dmesg"),
        ("compute mode", {"gpus": gpu(compute_mode="Prohibited")}, "Prohibited", "-c 0"),
        (
            "kernel modules",
            {"modules": {"nvidia_uvm": False, "at_first_use": False}},
            "nvidia_uvm is not loaded",
            "modprobe",
        ),
        (
            "fabric",
            {"gpus": gpu(fabric__state="In Progress", fabric__status="N/A")},
            "Completed, In Progress",
            "nvlsm",
        ),
        (
            "fabric",
            {"gpus": gpu(fabric__status="Insufficient Resources")},
            "Insufficient Resources",
            "nvidia-fabricmanager",
        ),
        (
            "ECC",
            {"gpus": gpu(ecc__errors__uncorrected__volatile__total="3")},
            "3 uncorrected errors since the driver was loaded",
            "reboot",
        ),
        (
            "ECC",
            {"gpus": [{**H100, "remapped_rows.pending": "Yes"}, H100]},
            "0 uncorrected errors since the driver was loaded, pages wait for a reset",
            "--gpu-reset",
        ),
        (
            "ECC",
            {"gpus": [{**H100, "remapped_rows.failure": "Yes"}, H100]},
            "rows that cannot be remapped any more",
            "replaced",
        ),
        (
            "Xid",
            {"xids": ["Xid (PCI:0000:00:1e): 31, pid=4", "Xid (PCI:0000:00:1e): 79, GPU has"]},
            "Xid (PCI:0000:00:1e): 79, GPU has",
            "reboot",
        ),
        ("Xid", {"xids": ["Xid (0000:01:00): 79 fallen"]}, "Xid (0000:01:00): 79 fallen", "reboot"),
        ("MIG", {"gpus": gpu(mig__mode__current="Enabled")}, "on: CUDA uses one part", "-mig 0"),
        (
            "memory",
            {"gpus": gpu(memory__used="40000"), "processes": [["4242", "python", "39996"]]},
            "40.6 of 79.6 GiB free; held by python (pid 4242)",
            "end what holds it",
        ),
        (
            "compute check",
            {"proof": {"phase": "convolution", "failed": "InternalError: no"}},
            "convolution: InternalError: no",
            "docs/failures.md",
        ),
    ],
)
def test_what_is_wrong_is_told_with_what_to_do(
    what: str, facts: dict[str, Any], text: str, hint: str
) -> None:
    said = found(**facts)[what]
    assert said[0].startswith(text)
    assert hint in said[1]
    assert said[2] is False


@pytest.mark.parametrize(
    ("what", "facts", "text"),
    [
        ("GPUs", {"planned": None}, "the file names no accelerator"),
        ("kernel modules", {"modules": None}, "WSL 2"),
        ("Xid", {"xids": None}, "may not read"),
        ("memory", {"gpus": gpu(memory__total="[N/A]")[:1]}, "does not say"),
        ("memory", {"gpus": gpu(memory__total="0")[:1]}, "does not say"),
        ("compute check", {"proof": None}, "cloudtrain up"),
        ("compute check", {"proof": {"phase": "XLA"}}, "did not end within 40 s, in: XLA"),
    ],
)
def test_what_could_not_be_found_out_is_no_failure(
    what: str, facts: dict[str, Any], text: str
) -> None:
    said = found(**facts)[what]
    assert text in said[0]
    assert said[2] is None


def test_an_old_gpu_for_the_display_is_left_out_as_tensorflow_does() -> None:
    shown = {**H100, "name": "Quadro M4000", "compute_cap": "5.2", "memory.used": "60000"}
    told = found(gpus=[shown, H100, H100])
    assert all(good for _, _, good in told.values())
    assert found(gpus=[shown])["driver"][2] is False


def test_a_gpu_without_ecc_fabric_or_mig_is_well() -> None:
    plain = {name: value for name, value in H100.items() if name in list(H100)[:7]}
    told = found(gpus=[plain, {**plain, "persistence_mode": "Disabled"}])
    assert all(good for _, _, good in told.values())
    assert told["fabric"][0] == "no NVSwitches"
    assert told["persistence"][0].startswith("off: each first use takes seconds")
    assert found(xids=["Xid (PCI:0000:00:1e): 31, pid=4242"])["Xid"][2]


@pytest.mark.parametrize(
    ("problem", "hint"),
    [
        ("nvidia-smi: command not found", "install NVIDIA's driver"),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            "for the running kernel",
        ),
        ("Failed to initialize NVML: Driver/library version mismatch", "reboot"),
        ("Failed to initialize NVML: Unknown Error", "nvidia-container-toolkit"),
        ("Unable to determine the device handle for GPU0000:01:00.0: Unknown Error", "lost"),
        ("anything else", "run `nvidia-smi`"),
    ],
)
def test_a_driver_that_lists_no_gpu_is_the_only_finding(problem: str, hint: str) -> None:
    answer = json.dumps({**WELL, "problem": problem, "gpus": []})
    (finding,) = of_machine("chief0", answer, TWO, "2.21")
    assert (finding.what, finding.ok, finding.text) == ("chief0 driver", False, problem)
    assert hint in (finding.hint or "")


def test_a_machine_that_does_not_answer_is_a_finding_and_rented_ones_are_not_asked() -> None:
    (finding,) = of_machine("chief0", NodeUnreachable("m-chief0", "no route"), None, None)
    assert (finding.what, finding.ok) == ("chief0 host", False)
    with pytest.raises(UsageError, match="provider: hosts"):
        host_gpus(ClusterConfig(name="m", provider="local", strategy="custom", nodes={}))
