"""Fills and frees the disk of a local node (`CLOUDTRAIN_LOCAL_DISK`), from outside of its view."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from cloudtrain.core import own_python
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.providers.local.private_view import resize_disk

BOOTSTRAP = (
    "import sys; sys.path[:] = sys.argv[4:]; from cloudtrain.providers.local.disk import main; "
    "main(*sys.argv[1:4])"
)


def resize(pid: int, home: Path, size: int | None) -> int | None:
    """Run `resize_disk` in a process of its own. Raises CloudtrainError."""
    words = [str(pid), str(home), json.dumps(size)]
    done = subprocess.run(
        own_python.code(BOOTSTRAP, *words, *own_python.import_path()),
        capture_output=True,
        text=True,
        cwd=own_python.NEUTRAL,
        check=False,
    )
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        raise CloudtrainError(
            f"cannot resize the disk of {home}: {last}",
            hint="run it where `up` says nothing of shared files (docs/local.md)",
        )
    before: int | None = json.loads(done.stdout)
    return before


def main(pid: str, home: str, size: str) -> None:
    print(json.dumps(resize_disk(int(pid), Path(home), json.loads(size))))
