"""TensorFlow sees as many GPUs as it should, or says why not; proved once and then for nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.core.errors import StepFailed
from cloudtrain.core.model import Accelerator, ClusterConfig, NodeGroup, Setup
from cloudtrain.playbooks import gpu_check, tensorflow
from cloudtrain.playbooks.apply import apply
from tests.support.nodes_here import HereTransport, Remembered, node

TENSORFLOW = """\
import os, sys
__version__ = "2.16.2"
here = os.path.dirname(__file__)
state = os.path.join(here, "state")
numbers = os.path.join(here, "numbers")
with open(os.path.join(here, "imports"), "a") as file:
    file.write("x\\n")
said = open(state).read()
os.write(2, said.encode())
linked = os.path.exists(os.path.join(here, "libcudnn.so.8"))
class config:
    @staticmethod
    def list_physical_devices(kind):
        if os.path.exists(numbers):
            return ["GPU"] * int(open(numbers).read())
        if os.path.exists(os.path.join(here, "needs-links")):
            os.write(2, b"" if linked else open(os.path.join(here, "needs-links"), "rb").read())
            return ["GPU:0", "GPU:1"] if linked else []
        return [] if said else ["GPU:0", "GPU:1"]
"""


def config(count: int = 2, provider: Any = "gcp", version: str | None = "2.16") -> ClusterConfig:
    gpus = Accelerator(kind="T4", count=count) if count else None
    return ClusterConfig(
        name="mnist",
        provider=provider,
        strategy="mirrored",
        nodes={"chief": NodeGroup(accelerator=gpus)},
        setup=Setup(tensorflow=version),
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """site-packages of the node's environment, with a TensorFlow that tells what `state` has."""
    smi(tmp_path, "580.178.04")
    folder = tensorflow.bin_folder(config(), node())
    assert folder is not None
    environment = tmp_path / "homes" / node().name / folder.removesuffix("/bin")
    making = [sys.executable, "-m", "venv", "--without-pip", environment]
    subprocess.run(making, check=True)
    (packages,) = environment.glob("lib/python3*/site-packages")
    (packages / "tensorflow").mkdir()
    (packages / "tensorflow/__init__.py").write_text(TENSORFLOW)
    (packages / "tensorflow/state").write_text("")
    info = packages / "tensorflow-2.13.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorflow\nVersion: 2.13.1\n")
    return packages


def applied(tmp_path: Path, wanted: ClusterConfig | None = None) -> list[str]:
    stage = Remembered()
    transport = HereTransport(tmp_path / "homes", {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"})
    apply(lambda one: gpu_check.steps(wanted or config(), one), [node()], transport, stage)
    return [text for _, text in [*stage.lines, *stage.ended]]


@pytest.mark.parametrize(
    "wanted", [config(count=0), config(provider="local"), config(version=None)]
)
def test_nothing_is_asked_where_no_gpu_should_be(wanted: ClusterConfig) -> None:
    assert gpu_check.steps(wanted, node()) == ()


def test_what_is_proved_is_not_asked_again_until_the_driver_changes(
    tmp_path: Path, place: Path
) -> None:
    assert applied(tmp_path)[-1].startswith("1 of 1 steps")
    assert applied(tmp_path) == ["nothing to do"]
    assert (place / "tensorflow/imports").read_text() == "x\n"
    smi(tmp_path, "590.1")
    assert applied(tmp_path)[-1].startswith("1 of 1 steps")
    assert applied(tmp_path) == ["nothing to do"]


def test_a_driver_that_does_not_tell_its_version_is_no_failure(tmp_path: Path, place: Path) -> None:
    (tmp_path / "bin/nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    assert applied(tmp_path)[-1].startswith("1 of 1 steps")
    assert applied(tmp_path) == ["nothing to do"]


def test_libraries_that_tensorflow_does_not_look_for_are_linked_to_where_it_does(
    tmp_path: Path, place: Path
) -> None:
    (place / "tensorflow/needs-links").write_text(OPENED + NO_CUDNN)
    (place / "nvidia/cudnn/lib").mkdir(parents=True)
    (place / "nvidia/cudnn/lib/libcudnn.so.8").write_text("cudnn")
    (place / "nvidia/cuda_nvcc/nvvm/libdevice").mkdir(parents=True)
    assert "TensorFlow sees T4:2: linking CUDA's libraries to where TensorFlow looks for them" in (
        applied(tmp_path)
    )
    assert (place / "tensorflow/libcudnn.so.8").read_text() == "cudnn"
    python = place.parents[2] / "bin/python"
    asked = [python, "-c", "import os; print(os.environ['XLA_FLAGS'])"]
    flags = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert flags == f"--xla_gpu_cuda_data_dir={place}/nvidia/cuda_nvcc\n"
    assert applied(tmp_path) == ["nothing to do"]


# What TensorFlow 2.21.0 wrote with a pretended driver, 2026-11-22.
OPENED = """\
I0000 00:00:1795332725.494983   24397 dso_loader.cc:133] Successfully opened dynamic library \
libcuda.so.1
I0000 00:00:1795332725.497263   24397 dso_loader.cc:133] Successfully opened dynamic library \
libnvidia-ml.so.1
I0000 00:00:1795332725.498172   26036 dso_loader.cc:133] Successfully opened dynamic library \
libcudnn.so.9
I0000 00:00:1795332725.600083   24397 gpu_device.cc:2334] Found device 0 with properties
pciBusID: 0000:00:04.0 name: NVIDIA T4 computeCapability: 7.5
I0000 00:00:1795332725.600171   24397 dso_loader.cc:133] Successfully opened dynamic library \
libcudart.so.12
I0000 00:00:1795332726.095453   24397 dso_loader.cc:133] Successfully opened dynamic library \
libcublas.so.12
"""
NO_CUSOLVER = """\
I0000 00:00:1795332726.129491   24397 dso_loader.cc:144] Could not load dynamic library \
'libcusolver.so.11'; dlerror: libcusolver.so.11: cannot open shared object file: No such file
W0000 00:00:1795332726.266806   24397 gpu_device.cc:2365] Cannot dlopen some GPU libraries. \
Skipping registering GPU devices...
"""
NO_NVML = """\
I0000 00:00:1795333176.474859    9242 dso_loader.cc:144] Could not load dynamic library \
'libnvidia-ml.so.1'; dlerror: libnvidia-ml.so.1: cannot open shared object file: No such file
"""
NO_DRIVER = """\
I0000 00:00:1795271690.919595   32353 dso_loader.cc:144] Could not load dynamic library \
'libcuda.so.1'; dlerror: libcuda.so.1: cannot open shared object file: No such file or directory
E0000 00:00:1795271690.919648   32353 cuda_platform.cc:52] failed call to cuInit: INTERNAL: \
CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)
"""
NO_CUDNN = """\
2024-08-24 15:40:49.279326: W tensorflow/stream_executor/platform/default/dso_loader.cc:64] Could \
not load dynamic library 'libcudnn.so.9'; dlerror: libcudnn.so.9: cannot open shared object file
2023-05-20 10:00:00.000000: W tensorflow/core/common_runtime/gpu/gpu_device.cc:1956] Cannot dlopen \
some GPU libraries. Skipping registering GPU devices...
"""
NO_TENSORRT = """\
2024-08-24 15:40:48.1: W tensorflow/stream_executor/platform/default/dso_loader.cc:64] Could not \
load dynamic library 'libnvinfer.so.7'; dlerror: libnvinfer.so.7: cannot open shared object file
2024-08-24 15:40:48.2: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT Warning: \
Cannot dlopen some TensorRT libraries.
"""
OLD_GPU = """\
2024-08-24 15:40:49.1: I tensorflow/core/common_runtime/gpu/gpu_device.cc:2275] Ignoring visible \
gpu device (device: 0, name: NVIDIA M60) with Cuda compute capability 5.2. The minimum required \
Cuda capability is 6.0.
"""
# https://github.com/tensorflow/tensorflow/issues/4349 and .../5473
MISMATCH = """\
2021-10-16 14:56:09.420791: E tensorflow/stream_executor/cuda/cuda_diagnostics.cc:313] kernel \
version 460.91.3 does not match DSO version 470.57.2 -- cannot find working devices
"""
NO_UVM = "x: E cuda/cuda_driver.cc:491] failed call to cuInit: CUDA_ERROR_UNKNOWN\n"
OLD_DRIVER = "x: CUDA driver version is insufficient for CUDA runtime version\n"


@pytest.mark.parametrize(
    ("said", "shown", "hint"),
    [
        (NO_DRIVER, "Could not load dynamic library 'libcuda.so.1'; dlerror", "use the driver"),
        (NO_CUDNN, "Could not load dynamic library 'libcudnn.so.9'; dlerror", "cuDNN is missing"),
        (
            OPENED + NO_CUSOLVER,
            "Could not load dynamic library 'libcusolver.so.11'",
            "libraries of CUDA are missing",
        ),
        (OPENED + NO_NVML, "Could not load dynamic library 'libnvidia-ml.so.1'", "libnvidia-ml"),
        (NO_TENSORRT + OLD_DRIVER, "CUDA driver version is insuff", "the driver is too old"),
        (MISMATCH, "kernel version 460.91.3 does not match DSO version", "reboot the machine"),
        (NO_UVM, "failed call to cuInit: CUDA_ERROR_UNKNOWN", "nvidia_uvm is not loaded"),
        (NO_TENSORRT + OPENED + OLD_GPU, "Ignoring visible gpu device", "has no code for that GPU"),
    ],
    ids=["driver", "cudnn", "cusolver", "nvml", "old", "mismatch", "uvm", "old-gpu"],
)
def test_the_library_that_fails_is_named_with_what_to_do(
    tmp_path: Path, place: Path, said: str, shown: str, hint: str
) -> None:
    (place / "tensorflow/state").write_text(said)
    with pytest.raises(StepFailed) as caught:
        applied(tmp_path)
    assert f"\n  {shown}" in str(caught.value) or f" {shown}" in str(caught.value)
    assert "TensorFlow 2.16.2 sees 0 of 2 GPUs" in str(caught.value)
    assert hint in (caught.value.hint or "")
    assert "hint" not in str(caught.value)
    assert "Successfully opened" not in str(caught.value)
    assert "nvinfer" not in str(caught.value)


def smi(tmp_path: Path, *lines: str) -> None:
    """An nvidia-smi that lists these."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    said = "".join(f"echo '{line}'\n" for line in lines)
    (tmp_path / "bin/nvidia-smi").write_text(f"#!/bin/sh\n{said}")
    (tmp_path / "bin/nvidia-smi").chmod(0o755)


@pytest.mark.parametrize(
    ("listed", "hint"),
    [(3, "the driver lists 3 GPUs of 4"), (4, "`nvidia-smi` on the node")],
    ids=["one-off-the-bus", "all-there"],
)
def test_where_some_gpus_are_seen_no_library_is_blamed(
    tmp_path: Path, place: Path, listed: int, hint: str
) -> None:
    smi(tmp_path, *(f"GPU {number}: NVIDIA T4 (UUID: x)" for number in range(listed)))
    (place / "nvidia/cudnn/lib").mkdir(parents=True)
    (place / "nvidia/cudnn/lib/libcudnn.so.9").write_text("cudnn")
    (place / "tensorflow/numbers").write_text("3")
    (place / "tensorflow/state").write_text(NO_TENSORRT + OPENED)
    with pytest.raises(StepFailed) as caught:
        applied(tmp_path, config(count=4))
    assert str(caught.value).splitlines()[1:] == ["  TensorFlow 2.16.2 sees 3 of 4 GPUs"]
    assert hint in (caught.value.hint or "")
    assert not (place / "tensorflow/libcudnn.so.9").is_symlink()


@pytest.mark.parametrize("said", [NO_DRIVER, NO_NVML, NO_TENSORRT + OLD_DRIVER])
def test_nothing_is_linked_where_no_library_of_cuda_is_missing(
    tmp_path: Path, place: Path, said: str
) -> None:
    (place / "nvidia/cudnn/lib").mkdir(parents=True)
    (place / "nvidia/cudnn/lib/libcudnn.so.9").write_text("cudnn")
    (place / "tensorflow/state").write_text(OPENED + said)
    with pytest.raises(StepFailed):
        applied(tmp_path)
    assert not (place / "tensorflow/libcudnn.so.9").is_symlink()
    assert (place / "tensorflow/imports").read_text() == "x\n"


def test_a_variable_that_hides_gpus_is_named(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    (place / "tensorflow/numbers").write_text("1")
    with pytest.raises(StepFailed) as caught:
        applied(tmp_path)
    assert caught.value.hint == "CUDA_VISIBLE_DEVICES=0 is set on the node: unset it"


def test_gpus_that_are_cut_into_mig_devices_are_told(tmp_path: Path, place: Path) -> None:
    smi(tmp_path, "  MIG 3g.20gb Device 0: x")
    with pytest.raises(StepFailed) as caught:
        applied(tmp_path, config(count=4))
    assert "MIG" in (caught.value.hint or "")


def test_a_tensorflow_that_does_not_start_shows_its_own_error(tmp_path: Path, place: Path) -> None:
    (place / "tensorflow/__init__.py").write_text("raise ImportError('libfoo.so: no')\n")
    with pytest.raises(StepFailed, match=r"ImportError: libfoo\.so: no"):
        applied(tmp_path)
