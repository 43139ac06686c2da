"""Faults of a local node and of this process, and the names of all faults."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import Any, Protocol, cast

from cloudtrain.cluster import lease
from cloudtrain.cluster.session import Handle, open_session
from cloudtrain.console.logging_console import LoggingConsole
from cloudtrain.core import retry
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.model import Train
from cloudtrain.core.paths import attempt_folder, tag
from cloudtrain.core.retry import CLOCK, Clock, Retry, poll_until
from cloudtrain.core.run_record import Run, Task
from cloudtrain.node.formats import NOTICE as NOTICE_FILE
from cloudtrain.runs.task_commands import TAG
from cloudtrain.runs.tasks import node_of

# ── faults of the client ───────────────────────────────────────────────────────


CLIENT = "client"
"""In the place of a task."""

BEYOND = 10.0
"""Seconds for which it stands still longer than anything waits for it, or it for a node."""

JUMPS = (5 * 3600.0, -3 * 86400.0, 86400.0)
"""Seconds by which the clock is wrong, one after the other; the last one until the run's end."""
BETWEEN = 10.0
"""Seconds between two jumps."""

LOOKS = 0.2
"""Seconds between two looks whether it is over."""

CLIENT_FAULTS = {
    "lid": "this process stands still, as under a closed lid, for longer than anything waits",
    "clock": "this machine's clock jumps 5 h ahead, 3 days back, and 1 day ahead, as seen from "
    "this process",
}

STOPPING = """
kill -STOP "$1"; left=$2
while [ "$left" -gt 0 ] && kill -0 "$1"; do sleep 1; left=$((left - 1)); done
kill -CONT "$1"
"""


def inject_client(fault: str, train: Train, over: threading.Event) -> None:
    """Do it to this process. Blocks while the fault lasts, or until `over`."""
    if fault == "lid":
        stand_still(longest_silence(train), over)
    else:
        with jumping_clock() as jump:
            for seconds in JUMPS:
                jump(seconds)
                if over.wait(BETWEEN):
                    return
            over.wait()


def longest_silence(train: Train) -> float:
    """Seconds beyond a lease and every limit of a running attempt that counts silence."""
    limits = (retry.LOST_AFTER, retry.ALONE_LOST_AFTER, retry.NODE_SILENT)
    return max(lease.LASTS, *limits, train.stall_timeout or 0.0) + BEYOND


def stand_still(seconds: float, over: threading.Event) -> None:
    """Stop this process, with all its threads, for so long, or until a SIGCONT (Ctrl-C sends one:
    `cli/process`): SIGSTOP, which none can refuse."""
    words = ["sh", "-c", STOPPING, "sh", str(os.getpid()), f"{seconds:.0f}"]
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(
        words, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True
    ) as stopping:
        while stopping.poll() is None:
            if over.wait(LOOKS):
                with suppress(ProcessLookupError):
                    os.killpg(stopping.pid, signal.SIGKILL)


@contextmanager
def jumping_clock() -> Iterator[Callable[[float], None]]:
    """A function that sets by how many seconds the clock is wrong for all Python code of this
    process, also the libraries of clouds and stores. The machine's own is not touched."""
    real, real_ns, wrong = time.time, time.time_ns, 0.0

    def jump(seconds: float) -> None:
        nonlocal wrong
        wrong = seconds

    time.time = lambda: real() + wrong
    time.time_ns = lambda: real_ns() + int(wrong * 1e9)
    try:
        yield jump
    finally:
        time.time, time.time_ns = real, real_ns


CUT = 30.0
"""Seconds for which a cut node is silent. TensorFlow's mirrored ranks give up a silent peer after
10 to 15 s; a parameter-server job waits for it (measured with 2.21)."""

NOTICE = 5.0
"""Seconds between SIGTERM and the end of a preempted node. Clouds give 30 to 120 s; what a script
does with them it does in the first ones."""

FULL = 30.0
"""Seconds for which a disk is full, unless its task's attempt ends before."""

DISK_VARIABLE = "CLOUDTRAIN_LOCAL_DISK"
DISK = "50%"
"""Size of the nodes' disks in memory, where one of them is to be filled."""

DELETION = Retry(pause=0.2, within=10.0)
"""Until a node that is being deleted has no process any more."""

POLL = 0.2
"""Seconds between two looks at the record, whether an attempt has been given up."""

FAULTS = {
    "kill": "SIGKILL to every process of one task",
    "freeze": "SIGSTOP to every process of one task, for good",
    "cut": f"one node with its task is silent for {CUT:g} s, and comes back",
    "preempt": f"notice and SIGTERM to one task; {NOTICE:g} s later its node is gone",
    "disk": f"no free byte on one node's disk for {FULL:g} s, or until the attempt ends",
    "away": "one node with its task is silent until the attempt is given up, and comes back",
    **CLIENT_FAULTS,
}
NAMED = frozenset({"lid"})
"""Faults that `all` leaves out: this one takes more than five minutes."""
ALONE = frozenset({"away"})
"""Faults that `all` leaves out of a job of one node: for five minutes of silence nobody gives it
up, as more likely the network of this machine has failed."""


class LocalNodes(Protocol):
    """The part of `provider: local` that faults need."""

    def processes(self, cluster: str, node: str) -> tuple[int, ...]: ...

    def end_node(self, cluster: str, node: str) -> None: ...

    def fill_disk(self, cluster: str, node: str) -> int | None: ...

    def free_disk(self, cluster: str, node: str, size: int) -> None: ...


def inject(fault: str, handle: Handle, run: Run, task: Task, over: threading.Event) -> None:
    """Do it to the task, or its node. Blocks while the fault lasts, or until `over`."""
    provider: LocalNodes = cast(Any, handle.provider)
    processes = processes_of(run, task)
    if fault == "kill":
        send(processes, signal.SIGKILL)
    elif fault == "freeze":
        send(processes, signal.SIGSTOP)
    elif fault == "cut":
        with silent([*provider.processes(run.cluster, task.node), *processes]):
            over.wait(CUT)
    elif fault == "away":
        with silent([*provider.processes(run.cluster, task.node), *processes]):
            await_given_up(handle, run, task, over)
    elif fault == "disk":
        with full_disk(provider, run, task, processes):
            await_given_up(handle, run, task, over, within=FULL)
    else:
        announce(handle, run, task)
        send(processes, signal.SIGTERM)
        if over.wait(NOTICE):
            return
        with suppress(CloudtrainError):  # what is left of it is deleted with the cluster
            provider.end_node(run.cluster, task.node)


@contextmanager
def silent(processes: list[int]) -> Iterator[None]:
    send(processes, signal.SIGSTOP)
    try:
        yield
    finally:
        send(processes, signal.SIGCONT)


@contextmanager
def full_disk(provider: LocalNodes, run: Run, task: Task, processes: list[int]) -> Iterator[None]:
    """Leave the task no space to write to. Raises CloudtrainError. Where this machine allows no
    view of its own, the node has no disk of its own: then the task cannot make a file longer, which
    fails as `File too large` (EFBIG; setrlimit(2))."""
    size = provider.fill_disk(run.cluster, task.node)
    limits = []
    for pid in processes if size is None else ():
        with suppress(ProcessLookupError):
            before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[1]))
            limits.append((pid, before))
    try:
        yield
    finally:
        if size is not None:
            free_disk(provider, run.cluster, task.node, size)
        for pid, limit in limits:
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)


def free_disk(
    provider: LocalNodes, cluster: str, node: str, size: int, *, clock: Clock = CLOCK
) -> None:
    """Give the disk its size again, unless its node is just being deleted, and the disk with it:
    its processes end one by one. Raises CloudtrainError."""

    def freed() -> bool | None:
        try:
            provider.free_disk(cluster, node, size)
        except CloudtrainError:
            return None if provider.processes(cluster, node) else True
        return True

    if poll_until(freed, DELETION, clock=clock) is None:
        provider.free_disk(cluster, node, size)


def await_given_up(
    handle: Handle,
    run: Run,
    task: Task,
    over: threading.Event,
    *,
    within: float | None = None,
) -> bool:
    """Wait until the record says that the task's attempt has ended; False if it did not."""
    began = time.monotonic()
    while within is None or time.monotonic() - began < within:
        if given_up(run, handle.records.latest_run(), task):
            return True
        if over.wait(POLL):
            return False
    return False


def given_up(before: Run, after: Run | None, task: Task) -> bool:
    """True if an attempt of the whole run, or of this task alone, has ended since `before`."""
    if after is None or after.id != before.id or not after.attempts or not before.attempts:
        return True
    old, new = before.attempts[-1], after.attempts[-1]
    failed = [*new.restarted, *new.tolerated]
    return (
        new.number != old.number
        or new.ended is not None
        or sum(cause.task == task.name for cause in failed)
        > sum(cause.task == task.name for cause in [*old.restarted, *old.tolerated])
    )


def announce(handle: Handle, run: Run, task: Task) -> None:
    """Write the notice of a preemption as the agent beside the task does on a cloud. Raises
    NodeError, UsageError."""
    folder = attempt_folder(run.cluster, run.id, task.name, task.attempt)
    with open_session(handle, LoggingConsole()) as session:
        session.transport.ask(
            node_of(session, task), f"date +%s >{quote(f'{folder}/{NOTICE_FILE}')}"
        )


def processes_of(run: Run, task: Task) -> list[int]:
    """Those of the task's current attempt, found by their environment."""
    wanted = f"{TAG}={tag(run.cluster, run.id, task.name, task.attempt)}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdecimal() and wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def send(processes: list[int], number: signal.Signals) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
