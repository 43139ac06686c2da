"""Holdings of this machine for later runs: environments, Pythons, data, folders of local nodes."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from cloudtrain.cluster.session import open_provider, recorded_config
from cloudtrain.core.cloud import facts_of, is_cloud
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.paths import cache_folder
from cloudtrain.node import layer
from cloudtrain.playbooks import tensorflow
from cloudtrain.state import Records, home, known_clusters

Kind = Literal["environment", "Python", "data", "wheels", "images", "nodes"]

NODE = b"CLOUDTRAIN_NODE="
"""In the environment of every process of a local node: `<digest>/<cluster>/<node>`."""
PROC = Path("/proc")
_ALL = "*"


@dataclass(frozen=True, kw_only=True)
class Kept:
    """One thing that is kept. `used_by` says what needs it; empty: nothing does."""

    kind: Kind
    name: str
    path: Path
    lock: Path | None = None
    size: int = 0
    """Bytes on the disk."""
    last_use: float = 0.0
    """Unix time; to the day where the disk keeps access times (relatime)."""
    used_by: str = ""

    @property
    def removal_order(self) -> int:
        """0 for a layer, which lies over an environment, 1 for others, 2 for their Pythons: what is
        deleted later."""
        return 2 if self.kind == "Python" else int(not (self.path / layer.BELOW).exists())


def kept_here() -> tuple[Kept, ...]:
    """All of it, largest first."""
    users = _Users()
    found = []
    nodes = (Kept(kind="nodes", name=p.name, path=p) for p in _folders(home() / "local"))
    for each in (*_in_cache(cache_folder()), *nodes):
        with _locked(each.lock) as is_free:
            locked = "" if is_free else "another process has it locked"
        found.append(replace(_measured(each), used_by=locked or users.of(each)))
    used = [each.path for each in found if each.kind == "environment" and each.used_by]
    found = [replace(each, used_by=each.used_by or _base_of(each, used)) for each in found]
    return tuple(sorted(found, key=lambda each: -each.size))


def remove(kept: Kept) -> str:
    """Delete it, unless something uses it by now; returns why not, or nothing."""
    with _locked(kept.lock) as is_free:
        if not is_free:
            return "another process has it locked"
        environments = [
            each.path for each in _in_cache(cache_folder()) if each.kind == "environment"
        ]
        if why := _Users().of(kept) or _base_of(kept, environments):
            return why
        doomed = kept.path.with_name(f".{kept.path.name}.removed-{os.getpid()}")
        try:
            if kept.kind == "images":
                _give_back(kept.path)
            kept.path.rename(doomed)
            for folder, _, _ in os.walk(doomed):  # in a read-only one no file can be deleted
                with suppress(OSError):
                    Path(folder).chmod(stat.S_IRWXU)
            shutil.rmtree(doomed)
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"{error.filename}: {error.strerror}"
    return ""


def _give_back(images: Path) -> None:
    """Let Podman delete its store: as root it mounts that over itself, and of any other user its
    files belong to user ids of their own."""
    as_root = ("umount", "-l", str(images / "store" / "overlay"))
    as_user = ("podman", "unshare", "rm", "-rf", "--", str(images / "store"))
    with suppress(OSError):
        if not (images / "store").is_dir():
            return
        subprocess.run(
            as_root if os.geteuid() == 0 else as_user,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )


# ── what there is ────────────────────────────────────────────────────────────


def _in_cache(folder: Path) -> Iterator[Kept]:
    venvs = folder / "venvs"
    for left in venvs.glob(".*.removed-*"):
        yield Kept(kind="environment", name=left.name, path=left)
    for left in venvs.glob(".*.new-*"):
        lock = venvs / f"{left.name[1:].rpartition('.new-')[0]}.lock"
        yield Kept(kind="environment", name=left.name, path=left, lock=lock)
    for settings in sorted(venvs.glob("*/pyvenv.cfg")):
        path = settings.parent
        if path.name != "uv" and not path.name.startswith("."):
            lock = path.with_name(f"{path.name}.lock")
            yield Kept(kind="environment", name=path.name, path=path, lock=lock)
    for name, lock in (("uv", venvs / "uv.lock"), ("micromamba", venvs / "micromamba/lock")):
        if (venvs / name).is_dir():
            yield Kept(kind="Python", name=name, path=venvs / name, lock=lock)
    for path in _folders(folder / "data"):
        yield Kept(kind="data", name=path.name, path=path)
    if (folder / "wheels").is_dir():
        yield Kept(kind="wheels", name="wheels", path=folder / "wheels")
    if (folder / "images").is_dir():
        yield Kept(kind="images", name=f"images-{folder.name}", path=folder / "images")
    for own in _folders(folder / "own"):  # of local nodes, by their config's folder
        yield from _in_cache(own)


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return []


def _measured(kept: Kept) -> Kept:
    size, seen, latest = 0, set(), 0.0
    for folder, _, files in os.walk(kept.path):
        for name in (".", *files):
            with suppress(OSError):
                facts = os.lstat(os.path.join(folder, name))  # noqa: PTH118
                if (facts.st_dev, facts.st_ino) not in seen:
                    seen.add((facts.st_dev, facts.st_ino))
                    size += facts.st_blocks * 512
                latest = max(latest, facts.st_mtime if kept.kind != "environment" else 0.0)
    for name in ("pyvenv.cfg", ".complete"):
        with suppress(OSError):
            facts = (kept.path / name).stat()
            latest = max(latest, facts.st_atime, facts.st_mtime)
    return replace(kept, size=size, last_use=latest)


# ── what uses it ─────────────────────────────────────────────────────────────


class _Users:
    """Open clusters with nodes here, and processes: as far as this user may see them."""

    def __init__(self) -> None:
        self._clusters = _open_here()
        self._needed = {name: _needed(config) for name, config in self._clusters.items()}
        self._texts: dict[int, bytes] = {}
        self._running: set[str] = set()
        for path in PROC.glob("[0-9]*"):
            if int(path.name) == os.getpid():
                continue
            text = b"\0".join(_read(path / name) for name in ("environ", "cmdline", "maps"))
            self._texts[int(path.name)] = text
            for name in re.findall(rb"(?:^|\0)%s[^\0/]*/([^\0/]+)/" % NODE, text):
                self._running.add(name.decode("utf-8", "replace"))

    def of(self, kept: Kept) -> str:
        """Process or cluster that uses the kept item; empty if none does."""
        inside = os.fsencode(kept.path) + b"/"
        if pids := sorted(pid for pid, text in self._texts.items() if inside in text):
            return f"process {', '.join(map(str, pids[:3]))}"
        if kept.kind == "nodes":
            is_open = kept.name in known_clusters() and Records(kept.name).is_open()
            if is_open or kept.name in self._running:
                return f"cluster {kept.name}: `cloudtrain down {kept.name}`"
            return ""
        if kept.kind == "Python":
            return ""
        for name, config in self._clusters.items():
            names = self._needed[name]
            needed = kept.name in names or _ALL in names
            if kept.kind == "data":
                needed = config is None or bool(config.data)
            if kept.kind == "images":
                needed = config is None or config.setup.image is not None
            if needed or kept.kind == "wheels":
                return f"cluster {name}, which is up"
        for name in sorted(self._running - self._clusters.keys()):
            return f"local cluster {name}, which has no record here"
        return ""


def _open_here() -> dict[str, ClusterConfig | None]:
    """Clusters that are up and may have nodes on this machine; None for an unreadable config."""
    found: dict[str, ClusterConfig | None] = {}
    for name in known_clusters():
        if not Records(name).is_open():
            continue
        try:
            config = recorded_config(Records(name))
        except CloudtrainError:
            found[name] = None
        else:
            if not is_cloud(config.provider):
                found[name] = config
    return found


def _needed(config: ClusterConfig | None) -> set[str]:
    """Names of the environments of its nodes; all of them, if its nodes cannot be listed."""
    if config is None:
        return {_ALL}
    if facts_of(config.provider).takes_hosts:
        here = re.compile(rf"localhost|127\..*|::1|{re.escape(socket.gethostname())}(\..*)?")
        return {_ALL} if any(here.fullmatch(host.address) for host in config.hosts) else set()
    try:
        nodes = open_provider(config).nodes(config.name)
        found = (tensorflow.environment_folder, tensorflow.base_folder)
        folders = [folder(config, node) for node in nodes for folder in found]
    except CloudtrainError:
        return {_ALL}
    return {Path(folder).name for folder in folders if folder}


def _base_of(kept: Kept, environments: Iterable[Path]) -> str:
    """The environment that goes on with a Python here, or lies over another environment."""
    for folder in environments if kept.kind in ("Python", "environment") else ():
        with suppress(OSError, ValueError):
            if kept.kind == "environment":
                if (folder / layer.BELOW).read_text() == str(kept.path):
                    return f"environment {folder.name}, which lies over it"
                continue
            text = (folder / "pyvenv.cfg").read_text()
            base = re.search(r"^home\s*=\s*(.+?)\s*$", text, re.MULTILINE)
            if base and Path(base[1]).is_relative_to(kept.path):
                return f"environment {folder.name}"
    return ""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@contextmanager
def _locked(lock: Path | None) -> Iterator[bool]:
    """Hold the lock that creating it takes; yields False if another process holds it."""
    if lock is None or not lock.exists():
        yield True
        return
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
