"""Faults of the client, which is this process: it stands still, or its clock jumps."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from cloudtrain.cluster import lease
from cloudtrain.core import retry
from cloudtrain.core.model import Train

CLIENT = "client"
"""In the place of a task."""

BEYOND = 10.0
"""Seconds for which it stands still longer than anything waits for it, or it for a node."""

JUMPS = (5 * 3600.0, -3 * 86400.0, 86400.0)
"""Seconds by which the clock is wrong, one after the other; the last one until the run's end."""
BETWEEN = 10.0
"""Seconds between two jumps."""

POLL = 0.2
"""Seconds between two looks whether it is over."""

FAULTS = {
    "lid": "this process stands still, as under a closed lid, for longer than anything waits",
    "clock": "this machine's clock jumps 5 h ahead, 3 days back, and 1 day ahead, as seen from "
    "this process",
}

STOPPING = """
kill -STOP "$1"; left=$2
while [ "$left" -gt 0 ] && kill -0 "$1"; do sleep 1; left=$((left - 1)); done
kill -CONT "$1"
"""


def inject(fault: str, train: Train, over: threading.Event) -> None:
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
    `cli/process`): SIGSTOP, which none can refuse.
    """
    words = ["sh", "-c", STOPPING, "sh", str(os.getpid()), f"{seconds:.0f}"]
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(
        words, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True
    ) as stopping:
        while stopping.poll() is None:
            if over.wait(POLL):
                with suppress(ProcessLookupError):
                    os.killpg(stopping.pid, signal.SIGKILL)


@contextmanager
def jumping_clock() -> Iterator[Callable[[float], None]]:
    """A function that sets by how many seconds the clock is wrong for all Python code of this
    process, also the libraries of clouds and stores. The machine's own is not touched.
    """
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
