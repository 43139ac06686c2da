"""Stopping ends every process of an attempt, however it resists, and no other process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.core import ship
from cloudtrain.core.errors import NodeError
from cloudtrain.core.protocols import Completed
from cloudtrain.core.shell import script
from cloudtrain.runs import task_commands
from cloudtrain.runs.task_commands import StopResult
from tests.support.fakes import eventually
from tests.support.processes import words
from tests.support.supervising import DAEMON, PYTHON, SHELLS, Attempt, Machine

pytestmark = pytest.mark.sweep(1, over="machine")  # one of the shells


@pytest.fixture(params=SHELLS, ids=lambda path: Path(path).name)
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "home", request.param)
    yield machine
    machine.kill_all()


@pytest.fixture
def attempt(machine: Machine) -> Attempt:
    return Attempt(machine)


def assert_nothing_is_left(machine: Machine) -> None:
    eventually(lambda: not machine.marked())


def test_a_task_that_heeds_term_ends_with_its_own_code(attempt: Attempt) -> None:
    attempt.start("trap 'echo bye; exit 42' TERM; echo up; while :; do sleep 0.05; done")
    attempt.wait_for_log(b"up")
    assert attempt.stop().killed == 0
    assert attempt.status().exit_code == 42
    assert attempt.log.endswith(b"bye\n")
    assert_nothing_is_left(attempt.machine)


def test_a_task_that_ignores_term_is_killed_after_its_grace(attempt: Attempt) -> None:
    attempt.start("trap '' TERM; echo up; while :; do sleep 0.05; done")
    attempt.wait_for_log(b"up")
    assert attempt.stop(grace=1).killed >= 1
    assert attempt.status().exit_code == -9
    assert_nothing_is_left(attempt.machine)


def test_a_frozen_task_is_woken_to_heed_term(attempt: Attempt) -> None:
    attempt.start("trap 'exit 42' TERM; echo up; while :; do sleep 0.05; done")
    attempt.wait_for_log(b"up")
    pid = attempt.status().pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    assert attempt.stop().killed == 0
    assert attempt.status().exit_code == 42


def test_stopping_again_does_nothing_and_keeps_the_code(attempt: Attempt) -> None:
    attempt.start("exit 7")
    attempt.wait()
    assert attempt.stop() == StopResult(termed=0, killed=0)
    assert attempt.stop() == StopResult(termed=0, killed=0)
    assert attempt.status().exit_code == 7


def test_a_stop_before_the_start_refuses_the_start(attempt: Attempt) -> None:
    assert attempt.stop() == StopResult(termed=0, killed=0)
    assert attempt.start("echo late") == "stopped"
    status = attempt.status()
    assert (status.state, status.exit_code) == ("exited", -15)
    assert_nothing_is_left(attempt.machine)


def test_daemons_of_a_task_whose_watcher_is_gone_too_are_ended(attempt: Attempt) -> None:
    (attempt.machine.home / "work" / "daemon.py").write_text(DAEMON)
    attempt.start(f"{PYTHON} daemon.py; setsid sleep 601 & echo up; exec sleep 602")
    attempt.wait_for_log(b"daemon")
    attempt.wait_for_log(b"up")
    attempt.kill_watcher()
    os.kill(attempt.status().pid or 0, signal.SIGKILL)
    attempt.wait()
    assert attempt.stop().termed == 2
    assert_nothing_is_left(attempt.machine)


def lives(pid: int) -> bool:
    """A zombie, which some other process has yet to collect, has no command line."""
    return words(pid) != []


def test_children_with_a_cleared_environment_are_found_by_session_and_descent(
    attempt: Attempt,
) -> None:
    attempt.start("env -i setsid -w sh -c 'sleep 602; :' & env -i sleep 603 & echo up; wait")
    attempt.wait_for_log(b"up")
    eventually(lambda: len(attempt.status().processes) == 4)
    pids = [process.pid for process in attempt.status().processes]
    # A shell whose child was ended may end by itself before its own signal: no count of four.
    assert attempt.stop().killed == 0
    assert not any(lives(pid) for pid in pids)


def test_what_remains_of_a_session_is_ended_after_its_leader(attempt: Attempt) -> None:
    attempt.start("env -i sleep 604 & echo $!; while [ ! -e go ]; do sleep 0.05; done")
    attempt.wait_for_log(b"\n")
    attempt.kill_watcher()
    (attempt.machine.home / "work" / "go").touch()
    attempt.wait()
    orphan = int(attempt.log)
    assert lives(orphan)
    assert attempt.stop().termed == 1
    assert not lives(orphan)


def test_a_task_whose_watcher_was_killed_is_stopped_and_its_end_is_recorded(
    attempt: Attempt,
) -> None:
    attempt.start("trap '' TERM; echo up; while :; do sleep 0.05; done")
    attempt.wait_for_log(b"up")
    attempt.kill_watcher()
    attempt.stop(grace=1)
    status = attempt.status()
    assert (status.state, status.exit_code) == ("exited", -9)


def test_what_a_script_has_started_is_let_go_and_no_other_process_with_its_number(
    machine: Machine,
) -> None:
    with subprocess.Popen(["sleep", "60"]) as innocent:
        lines = f"sleep 60 & end_children {innocent.pid} $!; wait $!; echo $?"
        done = machine.run(script(ship.text("task_processes.sh") + lines))
        assert done.stdout == b"143\n"
        assert innocent.poll() is None
        innocent.kill()


def test_a_stop_ends_one_attempt_and_none_with_a_longer_name(machine: Machine) -> None:
    first, other = Attempt(machine, 1), Attempt(machine, 12)
    first.start("sleep 60")
    other.start("sleep 60")
    first.stop()
    assert first.status().state == "exited"
    assert other.status().state == "running"


def test_orphans_of_earlier_attempts_are_ended_and_the_kept_one_runs_on(machine: Machine) -> None:
    running, daemon, kept = Attempt(machine, 1), Attempt(machine, 2), Attempt(machine, 3)
    finished, foreign = Attempt(machine, 4), Attempt(machine, 1, run="elsewhere")
    running.start("sleep 60")
    daemon.start("setsid sleep 60 & echo up; while [ ! -e go ]; do sleep 0.05; done")
    daemon.wait_for_log(b"up")
    daemon.kill_watcher()
    (machine.home / "work" / "go").touch()
    daemon.wait()
    kept.start("sleep 60")
    finished.start("exit 0")
    finished.wait()
    foreign.start("sleep 60")
    away = machine.home / "away"
    foreign.path.rename(away)
    command = task_commands.stop_orphans_command(running.cluster, keep=[kept.tag])
    assert task_commands.parse_stop("n", machine.run(command)) == StopResult(termed=2, killed=0)
    assert running.status().exit_code == -15
    assert kept.status().state == "running"
    assert task_commands.parse_stop("n", machine.run(command)) == StopResult(termed=0, killed=0)
    away.rename(foreign.path)
    assert foreign.status().state == "running"


def test_a_node_without_any_attempt_has_no_orphans(machine: Machine) -> None:
    command = task_commands.stop_orphans_command("nothing")
    assert task_commands.parse_stop("n", machine.run(command)) == StopResult(termed=0, killed=0)


def test_processes_that_survive_kill_are_an_error_that_names_them() -> None:
    answer = Completed(exit_code=0, stdout=b"stopped 2 4 77 78\n", stderr=b"")
    with pytest.raises(NodeError, match="n: processes 77, 78 survive SIGKILL"):
        task_commands.parse_stop("n", answer)
