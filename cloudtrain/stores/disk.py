"""Syncs the disk of a folder as a whole, which for many files is faster than one by one."""

from __future__ import annotations

import os
import re
import sys
import threading
from pathlib import Path

FEW = 256
"""Files of batches that are synced one by one."""

SYNCFS_TELLS = sys.platform == "linux" and (
    tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= (5, 8)
)
"""True if syncfs reports what could not be written: https://man7.org/linux/man-pages/man2/sync.2.html"""


class Disk:
    """The disk of a folder, which is synced as a whole. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._opened: int | None = None
        """It is told what failed since it was opened."""
        self._failure: OSError | None = None

    def note(self, *, make: bool = False) -> None:
        """Note that something is written there; `make`: the folder, if there is none."""
        with self._lock:
            if self._opened is None:
                if make:
                    self._folder.mkdir(parents=True, exist_ok=True)
                self._opened = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def sync(self) -> None:
        """Raises OSError, then every time: the kernel tells a failure once."""
        with self._lock:
            opened, self._opened = self._opened, None
            if opened is not None:
                try:
                    syncfs(opened)
                except OSError as error:
                    self._failure = error
                finally:
                    os.close(opened)
            if self._failure is not None:
                raise self._failure


def syncfs(opened: int) -> None:
    """Write the file system of an open file to its disk. Raises OSError."""
    import ctypes  # 5 ms that most commands do not need

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(opened):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
