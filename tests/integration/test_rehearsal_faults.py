"""Faults of a rehearsal on real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import cast

import pytest

from cloudtrain.core.run_record import Run, Task
from cloudtrain.rehearsal.faults import LocalNodes, full_disk
from tests.support.project import until

WRITER = """
import pathlib, sys
sys.stdin.readline()
try:
    pathlib.Path(sys.argv[1]).write_text("x")
except OSError as error:
    print(error.strerror, flush=True)
sys.stdin.readline()
pathlib.Path(sys.argv[1]).write_text("x")
print("written", flush=True)
"""


def test_a_task_on_a_node_without_a_disk_of_its_own_cannot_make_a_file_longer(
    tmp_path: Path,
) -> None:
    class Shared:
        def fill_disk(self, cluster: str, node: str) -> None:
            return None

    words = [sys.executable, "-c", WRITER, str(tmp_path / "file")]
    with subprocess.Popen(words, stdin=PIPE, stdout=PIPE, text=True) as writer:
        assert writer.stdin
        assert writer.stdout
        record = Run(id="r", cluster="c", command="x", state="running", created=0.0, tasks=())
        task = Task(role="worker", index=0, node="n", port=1)
        with full_disk(cast(LocalNodes, Shared()), record, task, [writer.pid]):
            print(file=writer.stdin, flush=True)
            assert writer.stdout.readline() == "File too large\n"
        print(file=writer.stdin, flush=True)
        assert writer.stdout.readline() == "written\n"


STANDING = """
import os, signal, sys, threading
from cloudtrain.cli.process import go_on_in_child
from cloudtrain.rehearsal.faults import stand_still
signal.signal(signal.SIGINT, signal.default_int_handler)  # xdist's workers ignore it
go_on_in_child()
print(os.getpid(), flush=True)
over = threading.Event()
standing = threading.Thread(target=stand_still, args=(float(sys.argv[1]), over))
try:  # it may stand still before `start` has returned
    standing.start()
    while standing.is_alive():
        standing.join(1.0)  # as the waits of a run, which see a signal that another thread took
finally:
    over.set()
print("goes on", flush=True)
sys.stdin.readline()
sys.exit(7)
"""


def state(pid: int) -> str:
    """proc_pid_stat(5): T for stopped, Z for ended; "" for gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return ""


def test_a_process_stands_still_and_its_shell_does_not_see_it() -> None:
    """A shell takes back its terminal from a child that stops (waitpid(2), WUNTRACED)."""
    words = [sys.executable, "-c", STANDING, "2"]
    with subprocess.Popen(words, stdin=PIPE, stdout=PIPE, text=True) as first:
        assert first.stdin
        assert first.stdout
        child = int(first.stdout.readline())
        until(lambda: state(child) == "T", 60)
        assert os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WEXITED | os.WNOHANG) is None
        assert first.stdout.readline() == "goes on\n"
        first.stdin.close()
        assert first.wait(60) == 7


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -9)],
)
def test_a_child_that_stands_still_gets_the_signals_of_its_first_process_and_ends_with_it(
    number: signal.Signals, code: int
) -> None:
    words = [sys.executable, "-c", STANDING, "500"]
    with subprocess.Popen(words, stdin=PIPE, stdout=PIPE, text=True) as first:
        assert first.stdout
        child = int(first.stdout.readline())
        until(lambda: state(child) == "T", 60)
        first.send_signal(number)
        assert first.wait(60) == code
        until(lambda: state(child) in ("Z", ""), 60)
