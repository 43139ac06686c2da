"""The lock of a cluster's folder, between real processes."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cloudtrain.core.errors import LockedError
from cloudtrain.state import Records, home

pytestmark = pytest.mark.usefixtures("own_home")


# ── the lock ─────────────────────────────────────────────────────────────────

HOLD = """
import os, sys
from cloudtrain.state import Records
with Records("mnist").lock("train"):
    if sys.argv[1] == "fork" and os.fork() == 0:
        os.close(1)
        os.read(0, 1)
        os._exit(0)
    print("held", flush=True)
    sys.stdin.read(1)
"""


def hold(how: str = "alone") -> "subprocess.Popen[str]":
    """Another process that holds the lock until its stdin ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


def test_the_second_command_is_told_who_holds_the_cluster() -> None:
    with hold() as other:
        with (
            pytest.raises(
                LockedError, match=r"mnist is in use: `cloudtrain train` \(pid"
            ) as caught,
            Records("mnist").lock("down"),
        ):
            pass
        assert f"pid {other.pid}, on {os.uname().nodename}, since " in str(caught.value)
        assert caught.value.hint == (
            "`cloudtrain logs -f mnist` follows it, `cloudtrain stop-run mnist` stops it"
        )
        found = Records("mnist").holder()
        assert found is not None
        assert (found.pid, found.doing) == (other.pid, "train")
        other.communicate("x")
    assert Records("mnist").holder() is None
    assert not (home() / "clusters" / "mnist.lock").exists()


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_the_lock_dies_with_a_killed_holder_also_when_it_has_forked(how: str) -> None:
    other = hold(how)
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert Records("mnist").holder() is None
    with Records("mnist").lock("down"):
        found = Records("mnist").holder()
        assert found is not None
        assert found.pid == os.getpid()
    assert not (home() / "clusters" / "mnist.lock").exists()
    assert other.stdin
    assert other.stdout
    other.stdin.close()
    other.stdout.close()


def test_a_waiting_command_goes_on_when_the_first_has_ended() -> None:
    with hold() as other:
        got = threading.Event()

        def wait() -> None:
            with Records("mnist").lock("down", wait=60):
                got.set()

        thread = threading.Thread(target=wait)
        thread.start()
        assert not got.is_set()
        other.communicate("x")
        thread.join(60)
    assert got.is_set()


def _count_alone(folder: str, rounds: int) -> None:
    """Fails where two hold the lock at once: each makes a folder that may not exist yet."""
    for _ in range(rounds):
        with Records("mnist").lock("up", wait=60):
            (Path(folder) / "inside").mkdir()
            (Path(folder) / "inside").rmdir()


def test_never_two_at_once_though_the_lock_file_is_made_and_unlinked_each_time(
    tmp_path: Path,
) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_count_alone, args=(str(tmp_path), 150)) for _ in range(4)]
    for worker in workers:
        worker.start()
    deadline = time.monotonic() + 60
    for worker in workers:
        worker.join(deadline - time.monotonic())
    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    assert list((home() / "clusters").iterdir()) == []
