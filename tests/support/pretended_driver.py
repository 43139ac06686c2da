"""A driver of NVIDIA's that has GPUs of a given kind and computes nothing, made here with gcc.

`libcuda.so.1` and `libnvidia-ml.so.1` have every function that a TensorFlow and its CUDA runtime
look up, by the names in their own files. What a program asks before it lists its GPUs is answered;
everything else is an error (CUDA_ERROR_UNKNOWN; NVML_ERROR_NOT_SUPPORTED).
"""

from __future__ import annotations

import mmap
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cloudtrain.catalog import gpus
from cloudtrain.core.model import Accelerator

CUDA_OF = {
    470: (11, 4),
    515: (11, 7),
    525: (12, 0),
    535: (12, 2),
    545: (12, 3),
    550: (12, 4),
    555: (12, 5),
    570: (12, 8),
    580: (13, 0),
}
"""What `cuDriverGetVersion` says, by branch: docs.nvidia.com/cuda/cuda-toolkit-release-notes."""
NEWEST = max(CUDA_OF)

CUDA = r"""
#include <stdio.h>
#include <string.h>
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = VERSION; return 0; }
int cuDeviceGetCount(int *count) { *count = COUNT; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal < COUNT ? 0 : 101; }
int cuDeviceGetName(char *name, int size, int device) {
    snprintf(name, size, "NVIDIA %s", KIND);
    return 0;
}
int cuDeviceGetPCIBusId(char *id, int size, int device) {
    snprintf(id, size, "0000:00:%02x.0", 4 + device);
    return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 16ul << 30; return 0; }
int cuDeviceComputeCapability(int *major, int *minor, int device) {
    *major = MAJOR;
    *minor = MINOR;
    return 0;
}
int cuMemGetInfo_v2(size_t *free, size_t *total) { *free = *total = 16ul << 30; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
        case 75: *value = MAJOR; break;
        case 76: *value = MINOR; break;
        case 10: *value = 32; break;          /* threads of a warp */
        case 16: *value = 40; break;          /* multiprocessors */
        case 13: case 36: *value = 1590000; break;  /* clocks in kHz */
        case 37: *value = 256; break;         /* bits of the memory's bus */
        case 1: case 2: case 3: case 39: *value = 1024; break;
        case 4: case 5: case 6: case 7: *value = 65535; break;
        case 8: case 81: case 97: *value = 65536; break;
        default: *value = 0;
    }
    return 0;
}
int cuGetErrorName(int error, const char **name) { *name = "CUDA_ERROR_UNKNOWN"; return 0; }
int cuGetErrorString(int error, const char **text) {
    *text = "this driver is pretended";
    return 0;
}
"""
NVML = r"""
int nvmlInit_v2(void) { return 0; }
int nvmlInit(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int error) { return "this driver is pretended"; }
"""

NVIDIA_SMI = """\
#!/bin/sh
for gpu in {ordinals}; do
    case "$*" in
        *driver_version*) echo {version};;
        *persistence_mode*) echo Enabled;;
        -L) echo "GPU $gpu: NVIDIA {kind} (UUID: GPU-0000000$gpu-0000-0000-0000-000000000000)";;
    esac
done
"""
LSPCI = """\
#!/bin/sh
for gpu in {ordinals}; do echo "00:0$((gpu + 4)).0 3D controller: NVIDIA {kind}"; done
"""


@dataclass(frozen=True, kw_only=True)
class Driver:
    libraries: Path
    """To be first in LD_LIBRARY_PATH."""
    tools: Path
    """To be first in PATH: nvidia-smi and lspci."""
    root: Path
    """Stands for the machine's root: what the kernel shows under /sys."""


def make(folder: Path, gpu: Accelerator, packages: Path, branch: int = NEWEST) -> Driver:
    """For the TensorFlow in this `site-packages`. Raises ValueError for a kind that the table of
    GPUs lacks, and CalledProcessError with gcc's own words on stderr."""
    row = gpus.gpu(gpu.kind)
    if row is None:
        raise ValueError(f"{gpu.kind} is none of {', '.join(each.kind for each in gpus.GPUS)}")
    facts = {
        "COUNT": str(gpu.count),
        "KIND": f'"{gpu.kind}"',
        "MAJOR": str(row.capability[0]),
        "MINOR": str(row.capability[1]),
        "VERSION": "{}0{}0".format(*CUDA_OF[branch]),
    }
    driver = Driver(libraries=folder / "lib", tools=folder / "bin", root=folder / "root")
    driver.libraries.mkdir(parents=True)
    wanted = looked_up(packages)
    for name, prefix, source, rest in (
        ("libcuda.so.1", "cu", CUDA, 999),
        ("libnvidia-ml.so.1", "nvml", NVML, 3),
    ):
        names = sorted(each for each in wanted if each.startswith(prefix))
        _compile(driver.libraries / name, source + _others(source, names, rest), facts)
    _machine(driver, gpu, f"{branch}.126.20")
    return driver


def looked_up(packages: Path) -> set[str]:
    """The functions of a driver whose names stand in TensorFlow's and CUDA's own libraries."""
    found: set[bytes] = set()
    patterns = ("tensorflow/libtensorflow*.so*", "tensorflow/python/_pywrap_tensorflow_internal.so")
    runtimes = "nvidia/cuda_runtime/lib/libcudart.so*"
    for path in (path for pattern in (*patterns, runtimes) for path in packages.glob(pattern)):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            found.update(re.findall(rb"(?<=\0)(?:cu|nvml)[A-Z][A-Za-z0-9_]+(?=\0)", text))
    return {name.decode() for name in found}


def _others(source: str, names: Iterable[str], error: int) -> str:
    known = set(re.findall(r"^(?:int|const char) \*?(\w+)\(", source, re.MULTILINE))
    lines = [f"int {name}(void) {{ return {error}; }}" for name in names if name not in known]
    return "\n".join(lines) + "\n"


def _compile(target: Path, source: str, facts: dict[str, str]) -> None:
    defines = [f"-D{name}={value}" for name, value in facts.items()]
    command = ["gcc", "-shared", "-fPIC", "-w", "-O1", *defines, "-x", "c", "-", "-o", str(target)]
    subprocess.run([*command, f"-Wl,-soname,{target.name}"], input=source, text=True, check=True)


def _machine(driver: Driver, gpu: Accelerator, version: str) -> None:
    for ordinal in range(gpu.count):
        device = driver.root / f"sys/bus/pci/devices/0000:00:{4 + ordinal:02x}.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
    driver.tools.mkdir()
    ordinals = " ".join(map(str, range(gpu.count)))
    for name, text in (("nvidia-smi", NVIDIA_SMI), ("lspci", LSPCI)):
        tool = driver.tools / name
        tool.write_text(text.format(ordinals=ordinals, version=version, kind=gpu.kind))
        tool.chmod(0o755)


def has_gcc() -> bool:
    return shutil.which("gcc") is not None
