"""Starts background processes that outlive the terminal."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cloudtrain.core import own_python
from cloudtrain.core.protocols import Console
from cloudtrain.core.run_record import Run
from cloudtrain.runs.idle import is_watched
from cloudtrain.state import Records
from cloudtrain.state.lock import ATTEND


def attend_in_background(records: Records, run: Run, console: Console) -> None:
    """Start `cloudtrain attend`, which restarts, ends and lands the run as this process would have.

    The tasks on the nodes need neither; without it nobody would stop a parameter server or land the
    artifacts. Secrets reach it by its environment only, as they reached this process.
    """
    start_process(records, ATTEND)
    console.say(
        f"run {run.id} continues in the background: `cloudtrain logs -f {run.cluster}` follows it, "
        f"`cloudtrain stop-run {run.cluster}` stops it"
    )


def ensure_idle_process(records: Records) -> bool:
    """Start `cloudtrain idle` if `limits.idle` or `limits.budget` is set and no such process runs;
    True if one runs now.

    It ends with the cluster. It does not survive a restart of this machine: every command that
    reads the cluster's state calls this.
    """
    if not is_watched(records):
        return False
    if records.idle_process() is None:
        start_process(records, "idle")
    return True


@contextmanager
def starting_idle_process(records: Records) -> Iterator[None]:
    """Start the idle process at the end of this command, however it ends."""
    try:
        yield
    except BaseException:
        with suppress(OSError):  # report the first error
            ensure_idle_process(records)
        raise
    ensure_idle_process(records)


def start_process(records: Records, command: str) -> None:
    """Start `cloudtrain COMMAND NAME` detached, with its output in `COMMAND.log` of the
    cluster's folder.
    """
    log = records.folder / f"{command}.log"
    with log.open("ab") as file:
        log.chmod(0o600)
        subprocess.Popen(
            own_python.module("cloudtrain", command, records.name),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            cwd=own_python.NEUTRAL,
        )
