"""Create an environment of the cache apart from all nodes: nodes only read environments.

What creates one runs code of packages. It is a server of its own with an empty home, which sees an
empty folder in the place of all environments; what it leaves there is moved to the others here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from cloudtrain.core.errors import CloudtrainError, NodeError
from cloudtrain.core.model import Node

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

    Raises CloudtrainError if processes use the environment that it replaces.
    """
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


def at(node: Node, address: str, port: int) -> Node:
    """The builder in the node's place: it has its name and its host key."""
    if not address:
        raise NodeError(node.name, "the server that creates environments has no address")
    return Node(
        name=node.name,
        role=node.role,
        index=node.index,
        state="running",
        address=address,
        internal=address,
        ssh_port=port,
        user=node.user,
        host=node.host,
        cache=node.cache,
        shared_cache=node.shared_cache,
    )


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
