"""A line of `setup.run` on its node: it is over when its shell is, and never for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.core.model import ClusterConfig, Node, Setup
from cloudtrain.core.shell import Command
from cloudtrain.playbooks import tensorflow
from tests.support.processes import words
from tests.support.supervising import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "home")
    yield machine
    machine.kill_all()


def node() -> Node:
    return Node(
        name="mnist-chief0", role="chief", index=0, state="running", address="", internal=""
    )


def command(line: str, timeout: float = 60.0) -> Command:
    setup = Setup(run=(line,), timeout=timeout)
    config = ClusterConfig(name="mnist", provider="local", strategy="custom", nodes={}, setup=setup)
    (step,) = tensorflow.steps(config, node())
    return step.run


def run(machine: Machine, line: str, timeout: float = 60.0) -> tuple[int, list[str]]:
    done = machine.run(command(line, timeout))
    assert not done.stderr
    return done.exit_code, done.stdout.decode().splitlines()


def marker(machine: Machine) -> list[str]:
    return [path.suffix for path in (machine.home / ".cloudtrain/mnist/setup").iterdir()]


def test_what_a_line_starts_in_the_background_runs_on_and_is_named(machine: Machine) -> None:
    code, said = run(machine, "echo one; nohup sleep 3000 & echo $! >pid; echo two >&2")
    pid = (machine.home / "pid").read_text().strip()
    assert code == 0
    assert sorted(said[:-1]) == ["nohup: ignoring input", "one", "two"][-len(said) + 1 :]
    assert said[-1] == f"note: left running until the cluster's end: 1 process: sleep (pid {pid})"
    assert words(int(pid)) == ["sleep", "3000"]
    assert sorted(marker(machine)) == ["", ".log"]


def test_a_line_that_fails_leaves_nothing_running(machine: Machine) -> None:
    code, said = run(machine, "sleep 3000 & echo no luck; exit 3")
    assert (code, said) == (3, ["no luck"])
    assert machine.marked() == {}
    assert marker(machine) == [".log"]


def test_a_line_that_fails_ends_nothing_of_a_cluster_of_this_name_in_another_home(
    machine: Machine, tmp_path: Path
) -> None:
    other, line = Machine(tmp_path / "other"), "sleep 3000 & test -e well"
    (other.home / "well").touch()
    try:
        assert run(other, line)[0] == 0
        assert run(machine, line) == (1, [])
        assert [words.strip() for words in other.marked().values()] == ["sleep 3000"]
        (machine.home / "well").touch()
        code, (said,) = run(machine, line)
        assert (code, said.partition(": sleep")[0][-9:]) == (0, "1 process")
    finally:
        other.kill_all()


def test_a_line_that_takes_too_long_is_ended_with_what_it_started(machine: Machine) -> None:
    code, said = run(machine, "setsid sleep 3000 & echo begun; sleep 3001", timeout=1.0)
    assert code == 124
    # The shell may still say so, and on a busy machine the line has said nothing by then.
    why, hint = [line for line in said if line not in ("begun", "Terminated")]
    assert why == "it was ended: it ran for longer than setup.timeout, 1s"
    assert hint.startswith("hint: raise `setup.timeout`")
    assert machine.marked() == {}


def test_a_line_that_says_nothing_is_said_to_run_once(machine: Machine) -> None:
    machine.environment["CLOUDTRAIN_SILENCE"] = "2"
    (machine.home / "wait.py").write_text(
        "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)"
    )
    with machine.popen(command("python3 wait.py; echo over")) as process:
        assert process.stdout is not None
        silent = process.stdout.readline().decode()
        (machine.home / "go").touch()
        assert process.stdout.read() == b"over\n"
    assert process.returncode == 0
    assert silent.startswith("note: no output for 2 s, still runs: ")
    assert "python3 wait.py (pid " in silent


def test_a_line_ends_once_nobody_listens_any_more(machine: Machine) -> None:
    """Else the next `up` would run it a second time beside it."""
    config = ClusterConfig(
        name="mnist",
        provider="local",
        strategy="custom",
        nodes={},
        setup=Setup(run=("while :; do echo more; sleep 0.05; done",)),
    )
    (step,) = tensorflow.steps(config, node())
    process = machine.popen(step.run)
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.read(5) == b"more\n"
    for pipe in (process.stdin, process.stdout):
        pipe.close()
    assert process.wait(60) == 1
    assert machine.marked() == {}
