"""A node's folder: its metadata, whether its server runs, and its deletion."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

AT_ONCE = 16
"""Files of a folder that are deleted side by side."""


@dataclass(frozen=True)
class NodeFolder:
    path: Path

    def meta(self) -> Mapping[str, Any]:
        """Contents of node.json; empty if it is incomplete or damaged."""
        try:
            meta = json.loads((self.path / "node.json").read_bytes())
        except (OSError, ValueError):
            return {}
        well = isinstance(meta, dict) and isinstance(meta.get("port"), int)
        return meta if well else {}

    def task_ports(self) -> tuple[int, ...]:
        """Ports that the node's server reserves for the task; servers of old versions have none."""
        ports = self.meta().get("task_ports", ())
        whole = isinstance(ports, list) and all(isinstance(port, int) for port in ports)
        return tuple(ports) if whole else ()

    def is_apart(self) -> bool:
        """True if the node's server has a view of its own (private_view.py)."""
        return self.meta().get("apart") is True

    def locked(self) -> bool:
        """True while a server holds the lock, which cannot outlive its process."""
        try:
            descriptor = os.open(self.path / "lock", os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def mark_killed(self) -> None:
        """Mark that the node's processes are about to be frozen and killed.

        If that is interrupted, a frozen server may hold its lock forever without answering.
        """
        with contextlib.suppress(OSError):  # incomplete: there is no server
            (self.path / "doomed").touch()

    def is_killed(self) -> bool:
        return (self.path / "doomed").exists()

    def unmark_killed(self) -> None:
        """Remove the mark: the old processes are gone and the server will be started again."""
        with contextlib.suppress(FileNotFoundError):
            (self.path / "doomed").unlink()


def remove(folder: Path) -> None:
    """Delete the folder and its contents, read-only files too; what cannot be deleted remains.

    Many files are deleted side by side: mounted with `discard`, a file system may wait for its disk
    at each (https://man7.org/linux/man-pages/man5/ext4.5.html).
    """
    with contextlib.suppress(OSError), ThreadPoolExecutor(AT_ONCE) as pool:
        for _, _, names, at in os.fwalk(folder):
            if len(names) > AT_ONCE:
                wait([pool.submit(_unlink, at, names[start::AT_ONCE]) for start in range(AT_ONCE)])
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        # A folder is made writable before the walk enters it.
        _open_up(folder)
        for place, folders, _ in os.walk(folder):
            for name in folders:
                _open_up(Path(place, name))
        shutil.rmtree(folder, ignore_errors=True)


def _unlink(folder: int, names: Sequence[str]) -> None:
    with contextlib.suppress(OSError):  # rmtree comes next, and tries the others
        for name in names:
            os.unlink(name, dir_fd=folder)


def _open_up(folder: Path) -> None:
    if not folder.is_symlink():
        with contextlib.suppress(OSError):  # not ours: it is reported as not deleted
            folder.chmod(stat.S_IRWXU)
