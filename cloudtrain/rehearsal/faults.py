"""Faults of a local node, as processes of this machine see them."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any, Protocol, cast

from cloudtrain.cluster.session import Handle, open_session
from cloudtrain.console.quiet import QuietConsole
from cloudtrain.errors import CloudtrainError
from cloudtrain.layout import attempt_folder, tag
from cloudtrain.node.formats import NOTICE as NOTICE_FILE
from cloudtrain.run_record import Run, Task
from cloudtrain.runs.task_commands import TAG
from cloudtrain.runs.tasks import node_of

CUT = 30.0
"""Seconds for which a cut node is silent. TensorFlow's mirrored ranks give up a silent peer after
10 to 15 s; a parameter-server job waits for it (measured with 2.21)."""

NOTICE = 5.0
"""Seconds between SIGTERM and the end of a preempted node. Clouds give 30 to 120 s; what a script
does with them it does in the first ones."""

FAULTS = {
    "kill": "SIGKILL to every process of one task",
    "freeze": "SIGSTOP to every process of one task, for good",
    "cut": f"one node with its task is silent for {CUT:g} s, and comes back",
    "preempt": f"notice and SIGTERM to one task; {NOTICE:g} s later its node is gone",
}


class LocalNodes(Protocol):
    """What faults need of `provider: local`."""

    def processes(self, cluster: str, node: str) -> tuple[int, ...]: ...

    def end_node(self, cluster: str, node: str) -> None: ...


def inject(fault: str, handle: Handle, run: Run, task: Task, over: threading.Event) -> None:
    """Do it to the task, or its node. Blocks while the fault lasts, or until `over`."""
    provider: LocalNodes = cast(Any, handle.provider)
    processes = processes_of(run, task)
    if fault == "kill":
        send(processes, signal.SIGKILL)
    elif fault == "freeze":
        send(processes, signal.SIGSTOP)
    elif fault == "cut":
        silent = [*provider.processes(run.cluster, task.node), *processes]
        send(silent, signal.SIGSTOP)
        over.wait(CUT)
        send(silent, signal.SIGCONT)
    else:
        announce(handle, run, task)
        send(processes, signal.SIGTERM)
        if over.wait(NOTICE):
            return
        with suppress(CloudtrainError):  # what is left of it is deleted with the cluster
            provider.end_node(run.cluster, task.node)


def announce(handle: Handle, run: Run, task: Task) -> None:
    """Write the notice of a preemption as the agent beside the task does on a cloud.

    Raises NodeError, UsageError.
    """
    folder = attempt_folder(run.cluster, run.id, task.name, task.attempt)
    with open_session(handle, QuietConsole()) as session:
        session.transport.ask(
            node_of(session, task), f"date +%s >{quote(f'{folder}/{NOTICE_FILE}')}"
        )


def processes_of(run: Run, task: Task) -> list[int]:
    """Those of the task's current attempt, found by their environment."""
    wanted = f"{TAG}={tag(run.cluster, run.id, task.name, task.attempt)}".encode()
    return [pid for pid in _pids() if wanted in _environment(pid)]


def send(processes: list[int], number: signal.Signals) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _pids() -> list[int]:
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdecimal()]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
