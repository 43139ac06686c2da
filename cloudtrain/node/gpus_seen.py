"""Asks TensorFlow how many GPUs it sees, and explains a number other than the expected one, and a
driver that cannot compile its code for them.

Run by the environment's Python, with the number, and with JSON: release of TensorFlow → the CUDA
version that the driver must have, and the first driver with it. Exit code 3: libraries of CUDA, not
of the driver, could not be loaded.
"""

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile

FEWER = {
    "minimum required Cuda capability": "this TensorFlow has no code for that GPU: use another "
    "setup.tensorflow, or another accelerator"
}
HINTS = {
    **FEWER,
    "driver version is insufficient": "the driver is too old for this TensorFlow's CUDA",
    "does not match DSO|COMPAT_NOT_SUPPORTED": "the driver's kernel module and libraries have "
    "different versions, as after an upgrade: reboot the machine",
    "cuInit: CUDA_ERROR_UNKNOWN": "the kernel module nvidia_uvm is not loaded: run `sudo modprobe "
    "nvidia_uvm` on the node, or reboot it",
    "SYSTEM_NOT_READY|not yet init": "the NVSwitches need nvidia-fabricmanager: check that it is "
    "active",
    "Could not load.*libnvidia-ml": "the driver's user-space part is incomplete: libnvidia-ml.so.1 "
    "belongs to its package libnvidia-compute",
    "libcuda[.]so|cuInit|cuda drivers|NO_DEVICE": "TensorFlow cannot use the driver: run "
    "`nvidia-smi` on the node",
    "Could not load.*cudnn": "cuDNN is missing or has another version: check nvidia-cudnn in "
    "setup.packages and setup.requirements",
    "Could not load|dlopen": "libraries of CUDA are missing: `setup.tensorflow` from 2.11 on "
    "installs them; an older one needs them in the image or from setup.run",
}
"""Hint by a pattern in TensorFlow's messages; the first that matches counts."""
OF_DRIVER = re.compile("libcuda[.]so|libnvidia-ml")


def main() -> None:
    wanted = int(sys.argv[1])
    found, version, said = seen()
    if found == wanted:
        old = too_old(version, json.loads(sys.argv[2]), cuda_of_driver())
        if old:
            print(old, file=sys.stderr)
        sys.exit(1 if old else 0)
    said = [line for line in said if not re.search("Successfully opened|libnvinfer|TF-TRT", line)]
    missing = [line for line in said if "Could not load" in line and not OF_DRIVER.search(line)]
    hints = FEWER if found else HINTS
    relevant = [
        re.sub(r"^.*?[IWEF]\d* .*?\S+:\d+\] *", "", line)
        for line in said
        if any(re.search(pattern, line) for pattern in hints)
    ]
    for line in list(dict.fromkeys(relevant))[-6:]:
        print(line, file=sys.stderr)
    print(f"TensorFlow {version} sees {found} of {wanted} GPUs", file=sys.stderr)
    matching = (hint for p, hint in hints.items() if any(re.search(p, line) for line in relevant))
    hint = advice(found, wanted) or next(matching, "")
    print(
        "hint: " + (hint or "`nvidia-smi` on the node shows what the driver sees"), file=sys.stderr
    )
    sys.exit(3 if not found and (missing or not said) else 1)


def seen() -> "tuple[int, str, list[str]]":
    """GPUs, TensorFlow's version, and its messages about libraries. These are written to stderr,
    from C++, so they go into a file first. They include libraries that were opened, and TensorRT,
    which nothing here needs."""
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="0", TF_CPP_VMODULE="dso_loader=1,gpu_device=1")
    said = []  # type: list[str]
    with tempfile.TemporaryFile() as log:
        kept = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            import tensorflow

            found = len(tensorflow.config.list_physical_devices("GPU"))
        finally:
            os.dup2(kept, 2)
            log.seek(0)
            said += log.read().decode("utf-8", "replace").splitlines()
            if sys.exc_info()[0]:
                print("\n".join(said[-10:]), file=sys.stderr)
    return found, tensorflow.__version__, said


def cuda_of_driver() -> "tuple[int, ...]":
    """CUDA version of the driver that programs here load, which may be newer than that of the
    kernel's modules (cuda-compat); (0, 0) if it does not say."""
    version = ctypes.c_int()
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        pass
    return version.value // 1000, version.value % 1000 // 10


def number(text: str) -> "tuple[int, ...]":
    return tuple(int(part) for part in text.split("."))


def too_old(version: str, needed: "dict[str, list[str]]", has: "tuple[int, ...]") -> str:
    """The problem and a hint, in lines, if the driver does not know the release's PTX for these
    GPUs; empty if it does, or if nothing is known."""
    wants = needed.get(".".join(version.split(".")[:2]))
    if wants is None or has == (0, 0) or has >= number(wants[0]):
        return ""
    older = [release for release, (cuda, _) in needed.items() if has >= number(cuda)]
    return (
        "the driver's CUDA is {}.{}; TensorFlow {} has code for this GPU that the driver compiles, "
        "and that is of CUDA {}\n"
        "hint: install driver {} or newer on the machine".format(*has, version, *wants)
        + (f', or set `setup.tensorflow: "{older[-1]}"`' if older else "")
    )


def advice(found: int, wanted: int) -> str:
    """Hint for a problem that TensorFlow's own messages do not show; empty if there is none."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE).stdout.decode()
    except OSError:
        listed = ""
    number = len(re.findall("^GPU ", listed, re.MULTILINE))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if "MIG " in listed:
        return "the GPUs are split into MIG devices, CUDA uses one: run `sudo nvidia-smi -mig 0`"
    if found > wanted:
        return "nodes.ROLE.accelerator lists fewer GPUs than the machine has"
    if visible is not None:
        return f"CUDA_VISIBLE_DEVICES={visible} is set on the node: unset it"
    if 0 < number < wanted:
        return (
            f"the driver lists {number} GPUs of {wanted}: `sudo dmesg | grep -E 'NVRM|Xid'` on the "
            "node shows why; replace a node with a broken GPU"
        )
    return ""


if __name__ == "__main__":
    main()
