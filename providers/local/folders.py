"""One node's folder: the node's facts, whether its server lives, and its deletion."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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
        """Ports that the node's server keeps for the task; none for one that an older version
        started.
        """
        ports = self.meta().get("task_ports", ())
        whole = isinstance(ports, list) and all(isinstance(port, int) for port in ports)
        return tuple(ports) if whole else ()

    def locked(self) -> bool:
        """True while a server holds the lock, which, unlike a pid file, cannot outlive its
        process.
        """
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

    def doom(self) -> None:
        """Mark that the node's processes are about to be frozen and killed.

        If that is cut off, the server may hold its lock for ever and answer nobody.
        """
        with contextlib.suppress(OSError):  # half made: there is nothing that could answer
            (self.path / "doomed").touch()

    def doomed(self) -> bool:
        return (self.path / "doomed").exists()

    def spare(self) -> None:
        """Remove the mark: the old processes are gone and the server is to be started again."""
        with contextlib.suppress(FileNotFoundError):
            (self.path / "doomed").unlink()


def remove(folder: Path) -> None:
    """Delete the folder with everything in it, read-only files too; what resists stays."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        # A folder is opened before the walk goes into it.
        _open_up(folder)
        for place, folders, _ in os.walk(folder):
            for name in folders:
                _open_up(Path(place, name))
        shutil.rmtree(folder, ignore_errors=True)


def _open_up(folder: Path) -> None:
    if not folder.is_symlink():
        with contextlib.suppress(OSError):  # not ours: it is named as left over
            folder.chmod(stat.S_IRWXU)
