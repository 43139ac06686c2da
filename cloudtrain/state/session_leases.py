"""Processes that use a cluster's nodes without its lock: open shells and commands."""

from __future__ import annotations

import json
import os
from pathlib import Path

from cloudtrain.state.files import make_folder, write_whole
from cloudtrain.state.lock import birth


def begin_session(folder: Path) -> None:
    """Record that this process uses the nodes until it ends, also after exec.

    A file, not a lock: OpenSSH closes descriptors that it was not given (`closefrom` in its ssh.c).
    """
    make_folder(folder)
    pid = os.getpid()
    write_whole(folder / str(pid), json.dumps({"birth": birth(pid)}).encode())


def end_session(folder: Path) -> None:
    (folder / str(os.getpid())).unlink(missing_ok=True)


def any_in_use(folder: Path) -> bool:
    """True if any recorded process lives; forgets the others."""
    living = [path for path in _marks(folder) if _lives(path)]
    return bool(living)


def last_used(folder: Path) -> float:
    """Unix time of the last start, or of an end that was noticed; 0 if never."""
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _marks(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.name.isdigit()]
    except FileNotFoundError:
        return []


def _lives(path: Path) -> bool:
    try:
        facts = json.loads(path.read_bytes())
        born = birth(int(path.name))
        if born is not None and isinstance(facts, dict) and facts.get("birth") == born:
            return True
    except (OSError, ValueError):
        pass
    path.unlink(missing_ok=True)
    return False
