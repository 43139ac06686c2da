"""Out of memory is told from a kill: by the kernel's own count, in a memory cgroup of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.core.retry import SETTLE
from cloudtrain.runs import task_commands
from cloudtrain.runs.state_machine import decide, is_retryable
from cloudtrain.runs.task_commands import FollowReader, OutOfMemory
from tests.support.project import Project, until
from tests.support.supervising import PYTHON, SHELLS, Attempt, Machine
from tests.unit.test_state_machine import attempt as attempt_state
from tests.unit.test_state_machine import ended

HOG = "data = [b'x' * (1 << 20) for _ in range(4096)]"
LIMIT = 100 << 20


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """With a limit of 100 MB, for processes that are moved into it."""
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    top, limit = (v1, "memory.limit_in_bytes") if v1.is_dir() else (v2, "memory.max")
    place = top / f"cloudtrain-test-{os.getpid()}"
    try:
        place.mkdir()
        (place / limit).write_text(str(LIMIT))
    except OSError as error:
        if place.is_dir():
            place.rmdir()
        pytest.skip(f"would show it in a memory cgroup, which cannot be made here: {error}")
    yield place
    until(lambda: not (place / "cgroup.procs").read_text(), 60)
    place.rmdir()


def told(attempt: Attempt) -> list[Any]:
    """What a follower says at the end."""
    done = attempt.machine.run(task_commands.follow(attempt.folder, 0))
    return [one for one in FollowReader().feed(done.stderr) if not hasattr(one, "processes")]


@pytest.fixture(params=SHELLS, ids=lambda path: Path(path).name)
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "home", request.param)
    yield machine
    machine.kill_all()


def confined(machine: Machine, cgroup: Path) -> None:
    """As where a node's sessions have a limit: everything that it starts is in the cgroup."""
    shell = machine.home / "shell"
    shell.write_text(f'#!/bin/sh\necho $$ >"{cgroup}/cgroup.procs" && exec {machine.shell} "$@"\n')
    shell.chmod(0o755)
    machine.shell = str(shell)


def test_the_kernel_s_end_of_a_task_is_told_with_figures(machine: Machine, cgroup: Path) -> None:
    confined(machine, cgroup)
    attempt = Attempt(machine)
    attempt.start(f'{PYTHON} -c "{HOG}"; exit $?')
    assert attempt.wait().exit_code == -9
    starved, end = told(attempt)
    assert isinstance(starved, OutOfMemory)
    assert (starved.limit, end.exit_code) == (LIMIT, -9)
    assert starved.peak is None or LIMIT * 0.9 <= starved.peak <= LIMIT * 1.1


def test_a_kill_in_such_a_cgroup_is_a_kill(machine: Machine, cgroup: Path) -> None:
    confined(machine, cgroup)
    attempt = Attempt(machine)
    attempt.start("exec sleep 100")
    until(lambda: attempt.status().pid, 60)
    os.kill(attempt.status().pid or 0, signal.SIGKILL)
    assert attempt.wait().exit_code == -9
    (end,) = told(attempt)
    assert end.exit_code == -9


def test_where_the_cgroup_is_not_ours_the_kernel_log_is_asked(
    machine: Machine, tmp_path: Path
) -> None:
    """A fake `dmesg`, as many nodes let nobody but root read it, and this machine may not have
    what the others have."""
    log = tmp_path / "kernel log"
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "dmesg").write_text(f"#!/bin/sh\ncat '{log}'\n")
    (programs / "dmesg").chmod(0o755)
    machine.environment["PATH"] = f"{programs}:{os.environ['PATH']}"
    log.write_text("[ 1.0] Out of memory: Killed process 1 (other) total-vm:9kB, anon-rss:9kB\n")
    for number, killed in enumerate((False, True)):
        attempt = Attempt(machine, number)
        attempt.start("sleep 100; exit $?")
        until(lambda attempt=attempt: attempt.status().pid, 60)  # type: ignore[misc]
        pid = attempt.status().pid or 0
        if killed:
            with log.open("a") as file:
                file.write(
                    f"[ 17.1] Memory cgroup out of memory: Killed process {pid} (python3) "
                    "total-vm:2048kB, anon-rss:1000kB, file-rss:4kB, shmem-rss:0kB, UID:0\n"
                )
        os.kill(pid, signal.SIGKILL)
        assert attempt.wait().exit_code == -9
        starved = [one for one in told(attempt) if isinstance(one, OutOfMemory)]
        assert [one.rss for one in starved] == ([1_024_000] if killed else [])


def test_it_is_the_cause_with_its_figures_and_is_not_tried_again() -> None:
    run = attempt_state()
    run.tasks["worker1"].starved = OutOfMemory(limit=16 * 10**9, peak=159 * 10**8, rss=152 * 10**8)
    ended(run, "worker1", -9, 10.0)
    decide(run, 10.0)
    cause = decide(run, 10.0 + SETTLE).cause
    assert cause is not None
    assert (cause.kind, cause.exit_code) == ("oom", -9)
    assert cause.text == (
        "the kernel killed it: out of memory (it used 15.2 GB; at most 15.9 of 16.0 GB were in use)"
    )
    assert "smaller batch" in str(cause.hint)
    assert not is_retryable(cause)


def test_a_run_that_is_out_of_memory_is_not_restarted(project: Project, cgroup: Path) -> None:
    (project.code / "hog.py").write_text(HOG)
    config = project.config(
        strategy="custom",
        nodes={"worker": {"count": 1}},
        train={"command": "exec python3 hog.py", "max_restarts": 2, "success": "all"},
    )
    assert project.cloudtrain("up", config).returncode == 0
    for pid, words in project.processes().items():  # a node cannot write to cgroups itself
        if "fork_server" in words:
            (cgroup / "cgroup.procs").write_text(str(pid))
    done = project.cloudtrain("train")
    project.cloudtrain("down")
    assert done.returncode == 1
    assert "the kernel killed it: out of memory" in done.stderr
    assert "restarting" not in done.stderr
