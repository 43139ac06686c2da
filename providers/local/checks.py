"""Checks before local nodes are created; they change nothing."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import sys
from pathlib import Path

from cloudtrain.core.errors import CloudtrainError, PermissionsError, UsageError
from cloudtrain.core.protocols import Finding

GB = 1024**3
LEAST_DISK = GB // 2
TASK_MEMORY = 400 * 1024**2
"""Bytes of memory used by an idle TensorFlow process (measured: docs/local.md)."""


def system() -> Finding:
    linux = sys.platform == "linux"
    text = "Linux" if linux else f"`provider: local` needs Linux; this is {sys.platform}"
    hint = "run it in a Linux container or virtual machine"
    return _finding("system", linux, text, UsageError, hint)


def writable(folder: Path) -> Finding:
    there = _existing(folder)
    good = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    text = f"{folder} is {'' if good else 'not '}writable"
    hint = f"make {there} writable, or set CLOUDTRAIN_HOME or CLOUDTRAIN_CACHE to another folder"
    return _finding("folder", good, text, PermissionsError, hint)


def disk(folder: Path) -> Finding:
    free = shutil.disk_usage(_existing(folder)).free
    hint = "a TensorFlow environment takes about 2 GB: free some space"
    text = f"{free / GB:.1f} GB free for {folder}"
    return _finding("disk", free >= LEAST_DISK, text, UsageError, hint)


def memory(nodes: int) -> Finding:
    """Check the memory for a TensorFlow task on each node; small tasks may need less."""
    free = _available_memory()
    need = nodes * TASK_MEMORY
    text = f"{free / GB:.1f} GB of memory free, {nodes} TensorFlow tasks take about {need / GB:.1f}"
    hint = None if free >= need else "use fewer nodes, or tasks without TensorFlow"
    return Finding(what="memory", ok=True, text=text, hint=hint)


def loopback(address: str) -> Finding:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            text = f"cannot listen on {address}: {error.strerror}"
            hint = "give the loopback interface 127.0.0.0/8 (`ip addr show lo`)"
            lacking = error.errno == errno.EADDRNOTAVAIL
            return _finding("loopback", False, text, PermissionsError, hint if lacking else None)
    return Finding(what="loopback", ok=True, text=f"nodes listen on {address} and up")


def _finding(
    what: str, good: bool, text: str, error: type[CloudtrainError], hint: str | None
) -> Finding:
    """Finding with that error and hint unless it is good."""
    if good:
        return Finding(what=what, ok=True, text=text)
    return Finding(what=what, ok=False, text=text, hint=hint, error=error)


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def _available_memory() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else 0
