"""Who is on a cluster's nodes without its lock: open shells and commands, by their processes."""

from __future__ import annotations

import json
import os
from pathlib import Path

from cloudtrain.records.disk import make_folder, write_whole
from cloudtrain.records.lock import birth


def begin(folder: Path) -> None:
    """This process is on the nodes until it ends, also when another program takes its place.

    A file, and no lock: OpenSSH closes what it was not given (`closefrom` in its ssh.c).
    """
    make_folder(folder)
    pid = os.getpid()
    write_whole(folder / str(pid), json.dumps({"birth": birth(pid)}).encode())


def end(folder: Path) -> None:
    (folder / str(os.getpid())).unlink(missing_ok=True)


def is_going_on(folder: Path) -> bool:
    """Whether any of them is there still; forgets those that are not."""
    living = [path for path in _marks(folder) if _lives(path)]
    return bool(living)


def last(folder: Path) -> float:
    """Unix time of the last beginning, or end that was noticed; 0: never."""
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
