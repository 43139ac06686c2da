"""Folders of deleted nodes with many files: gone from their place at once, from the disk soon."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import uuid
from pathlib import Path

from cloudtrain.core import own_python
from cloudtrain.core.partial_list import NotAsked
from cloudtrain.providers.local.folders import remove

NAME = ".trash"
"""Beside the clusters' folders; no cluster has its name."""

FEW = 2000
"""Files and folders that are deleted while a command waits."""

_BOOTSTRAP = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from cloudtrain.providers.local.trash import main; main()"
)


def discard(folder: Path, trash: Path) -> None:
    """Delete a folder, or move it to the trash if it has many files. What cannot be moved, as on a
    full disk, is deleted where it is."""
    if _is_large(folder):
        with contextlib.suppress(OSError):
            trash.mkdir(mode=0o700, exist_ok=True)
            folder.rename(trash / uuid.uuid4().hex)
            empty(trash)
            return
    remove(folder)


def empty(trash: Path) -> NotAsked | None:
    """Have a process of its own delete what is in the trash, also after an earlier one was killed;
    returns a line about it, or None if nothing is there."""
    count = len(list(trash.iterdir())) if trash.is_dir() else 0
    if count == 0:
        return None
    with contextlib.suppress(OSError):  # no process to be had: the next command tries again
        subprocess.Popen(
            own_python.code(_BOOTSTRAP, str(trash), *own_python.import_path()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=own_python.NEUTRAL,
            start_new_session=True,
            env={},
        )
    why = f"still has files of {count} deleted node{'s' * (count != 1)}, which are being deleted"
    return NotAsked(place=str(trash), why=why, foreign=True)


def main() -> None:
    os.nice(19)  # and, by that, the least of the disk (ionice(1))
    trash = Path(sys.argv[1])
    at = os.open(trash, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with contextlib.suppress(BlockingIOError):  # another one is at it
        fcntl.flock(at, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for folder in trash.iterdir():
            remove(folder)
        with contextlib.suppress(OSError):  # of somebody else, or new: the next command sees to it
            trash.rmdir()


def _is_large(folder: Path) -> bool:
    count = 0
    for _, folders, files in os.walk(folder):
        count += len(folders) + len(files)
        if count > FEW:
            return True
    return False
