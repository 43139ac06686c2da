"""A run is handed to a process of its own that outlives this one and the terminal."""

from __future__ import annotations

import subprocess
import sys

from cloudtrain.model import Run
from cloudtrain.protocols import Console
from cloudtrain.records import Records

DOING = "attend"
"""What the lock says that such a process does; it gives way to `down` and `stop-run`."""


def attend_in_background(records: Records, run: Run, console: Console) -> None:
    """Starts `cloudtrain attend`: it restarts, ends and lands the run as this process would have.

    The tasks on the nodes need neither; without it nobody would stop a parameter server or land
    the artifacts. Secrets reach it by its environment only, as they reached this process.
    """
    log = records.folder / "attend.log"
    with log.open("ab") as file:
        log.chmod(0o600)
        subprocess.Popen(
            [sys.executable, "-m", "cloudtrain", "attend", run.cluster],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            cwd="/",
        )
    console.say(
        f"run {run.id} goes on in the background: `cloudtrain logs -f {run.cluster}` follows it, "
        f"`cloudtrain stop-run {run.cluster}` ends it"
    )
