"""A node's folder: its metadata, whether its server runs, and its deletion; and the folder in which
an environment is created."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CloudtrainError

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
        return meta if isinstance(meta, dict) and isinstance(meta.get("port"), int) else {}

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

        If that is interrupted, a frozen server may hold its lock forever without answering."""
        with contextlib.suppress(OSError):  # incomplete: there is no server
            (self.path / "doomed").touch()

    def is_killed(self) -> bool:
        return (self.path / "doomed").exists()

    def unmark_killed(self) -> None:
        """Remove the mark: the old processes are gone and the server will be started again."""
        (self.path / "doomed").unlink(missing_ok=True)


def remove(folder: Path) -> None:
    """Delete the folder and its contents, read-only files too; what cannot be deleted remains.

    Many files are deleted side by side: mounted with `discard`, a file system may wait for its disk
    at each (https://man7.org/linux/man-pages/man5/ext4.5.html)."""
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


# ── an environment of the cache, created apart from all nodes, which only read it ──────────────
# What creates one runs code of packages. It is a server of its own with an empty home, which sees
# an empty folder in the place of all environments; what it leaves there is moved to the others.


PROC = Path("/proc")


@contextlib.contextmanager
def turn(folder: Path) -> Iterator[bool]:
    """Wait until nobody else creates this environment; False if somebody has done so meanwhile."""
    marker = folder / ".complete"
    before = _written(marker)
    with folder.with_name(f"{folder.name}.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield not marker.exists() or _written(marker) == before


@contextlib.contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """An empty folder beside the environments; what was created in it replaces `folder`.

    Raises CloudtrainError if processes use the environment that it replaces."""
    stage = folder.with_name(f".{folder.name}.new-{os.getpid()}")
    old = folder.with_name(f".{folder.name}.removed-{os.getpid()}")
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(mode=0o755)
    try:
        if users := _users(folder):
            raise CloudtrainError(
                f"{folder} was changed, and cannot be created again while these processes use it: "
                f"{', '.join(users)}",
                hint="end them (`cloudtrain stop-run`), then run this again",
            )
        yield stage
        made = stage / folder.name
        if made.is_dir() and not made.is_symlink():
            if folder.exists():
                folder.rename(old)
            made.rename(folder)
    finally:
        for each in (stage, old):
            shutil.rmtree(each, ignore_errors=True)


def _written(marker: Path) -> int:
    try:
        return marker.stat().st_mtime_ns
    except OSError:
        return 0


def _users(folder: Path) -> list[str]:
    """Processes that have mapped libraries of this environment, as far as this user may see."""
    inside, found = os.fsencode(folder.resolve()) + b"/lib/", []
    for maps in PROC.glob("[0-9]*/maps") if folder.exists() else ():
        with contextlib.suppress(OSError):
            if inside in maps.read_bytes():
                found.append(maps.parent.name)
    return found
