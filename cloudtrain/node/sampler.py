"""Samples a node's processors, memory, GPUs, network and disks while a task runs.

Run by the task's watcher (watcher.py) as `python3 -c`, with the attempt's folder and the
watcher's process id; ends with it. It appends a line of JSON to the file `metrics` every two
seconds, and less often as the file grows: a run of a week takes 6 MB.
cloudtrain/core/metrics.py reads the lines back.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
import time

TYPE_CHECKING = False  # `typing` takes longer to import than all the rest
if TYPE_CHECKING:
    from typing import Any

INTERVAL = 2.0
"""Seconds between two samples at first."""

AT_FIRST, THEN = 2 << 20, 1 << 20
"""Bytes of the file until the interval doubles for the first time, and until each next time."""

DOUBLINGS = 10
"""Limit of the doublings: 34 minutes."""

SECTOR = 512
"""Bytes of a sector in /proc/diskstats, whatever the disk has (kernel.org, admin-guide/iostats)."""

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Sample until the watcher ends."""
    folder, watcher = sys.argv[1], int(sys.argv[2])
    with contextlib.suppress(OSError, AttributeError):  # the kernel ends it, too, if that is killed
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.nice(10)
    path = folder + "/metrics"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    gpus, before = Gpus(), counters()
    pause = INTERVAL / 2  # the watcher has waited before
    while os.getppid() == watcher:
        time.sleep(pause)
        after = counters()
        with contextlib.suppress(OSError):  # a full disk: the task comes first
            os.write(file, line(before, after, gpus.sample()))
        before, pause = after, interval(os.fstat(file).st_size)


def interval(size: int) -> float:
    """Seconds until the next sample, for a file of this size."""
    doublings = 0 if size < AT_FIRST else 1 + (size - AT_FIRST) // THEN
    return float(INTERVAL * 2 ** min(doublings, DOUBLINGS))


def line(before: "dict[str, float]", after: "dict[str, float]", gpus: "list[list[int]]") -> bytes:
    """One sample; rates are bytes per second since the one before."""
    passed = max(1e-3, after["clock"] - before["clock"])
    grown = {name: max(0.0, after[name] - before[name]) for name in after}
    ticks = grown["busy"] + grown["idle"]
    sample = {
        "time": round(time.time(), 1),
        "cpu": round(100.0 * grown["busy"] / ticks, 1) if ticks else 0.0,
        "memory": [int(after["used"]), int(after["memory"])],
        "gpus": gpus,
        "network": [int(grown[name] / passed) for name in ("received", "sent")],
        "disk": [int(grown[name] / passed) for name in ("read", "written")],
    }
    return json.dumps(sample, separators=(",", ":")).encode("ascii") + b"\n"


def counters() -> "dict[str, float]":
    """The kernel's counters, with 0 for what it does not show."""
    found = {"clock": time.monotonic()}
    for read in (processors, memory, network, disks):
        found.update(read())
    return found


def rows(path: str) -> "list[list[str]]":
    try:
        with open(path) as file:
            return [row.replace(":", " ").split() for row in file]
    except OSError:
        return []


def processors() -> "dict[str, float]":
    """Ticks of all cores. Waiting for a disk is idle (proc(5), /proc/stat)."""
    ticks = [int(each) for each in (rows("/proc/stat") or [["cpu", "0"]])[0][1:9]]
    idle = sum(ticks[3:5])
    return {"busy": sum(ticks) - idle, "idle": idle}


def memory() -> "dict[str, float]":
    """Bytes; what the kernel would free for a program counts as free."""
    kib = {row[0]: int(row[1]) for row in rows("/proc/meminfo") if len(row) > 1}
    total = kib.get("MemTotal", 0)
    return {"memory": total * 1024, "used": (total - kib.get("MemAvailable", total)) * 1024}


def network() -> "dict[str, float]":
    """Bytes of the machine's own interfaces; in a container, of all but `lo`."""
    found = {row[0]: row for row in rows("/proc/net/dev")[2:] if row[0] != "lo"}
    own = [name for name in found if os.path.exists("/sys/class/net/" + name + "/device")]
    chosen = [found[name] for name in own or found]
    return {
        "received": sum(int(row[1]) for row in chosen),
        "sent": sum(int(row[9]) for row in chosen),
    }


def disks() -> "dict[str, float]":
    """Bytes of whole disks: partitions, RAID and LVM would count them twice."""
    chosen = [
        row for row in rows("/proc/diskstats") if os.path.exists("/sys/block/" + row[2] + "/device")
    ]
    return {
        "read": SECTOR * sum(int(row[5]) for row in chosen),
        "written": SECTOR * sum(int(row[9]) for row in chosen),
    }


class Utilization(ctypes.Structure):
    """nvmlUtilization_t (nvml.h)."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Memory(ctypes.Structure):
    """nvmlMemory_t (nvml.h)."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class Gpus:
    """The GPUs as NVIDIA's driver describes them; none without it.

    By NVML, which costs microseconds: `nvidia-smi` starts a process and, without persistence mode,
    the driver. https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html (documented):
    utilization is the percent of the driver's last sample period (1/6 s to 1 s) in which a kernel
    was running; -1 stands for a figure that the driver refuses, as it does of a GPU split by MIG.
    """

    def __init__(self) -> None:
        self.handles: list[ctypes.c_void_p] = []
        self.library: Any = None
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL("libnvidia-ml.so.1")
            count = ctypes.c_uint()
            if library.nvmlInit_v2() or library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
                return
            for index in range(count.value):
                handle = ctypes.c_void_p()
                if not library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
                    self.handles.append(handle)
            self.library = library

    def sample(self) -> "list[list[int]]":
        """Utilization, memory used and memory in bytes of each GPU."""
        found = []
        for handle in self.handles:
            used, memory = Utilization(), Memory()
            with contextlib.suppress(AttributeError):
                if self.library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(used)):
                    used.gpu = 0xFFFFFFFF
                self.library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
            percent = -1 if used.gpu > 100 else int(used.gpu)
            found.append([percent, int(memory.used), int(memory.total)])
        return found
