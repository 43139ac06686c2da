"""A line of `setup.run` on its node: it is over when its shell is, and never for ever."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.core.model import ClusterConfig, Node, Setup
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


def run(machine: Machine, line: str, timeout: float = 60.0) -> tuple[int, list[str]]:
    setup = Setup(run=(line,), timeout=timeout)
    config = ClusterConfig(name="mnist", provider="local", strategy="custom", nodes={}, setup=setup)
    (step,) = tensorflow.steps(config, node())
    done = machine.run(step.run)
    assert not done.stderr
    return done.exit_code, done.stdout.decode().splitlines()


def marker(machine: Machine) -> list[str]:
    return [path.suffix for path in (machine.home / ".cloudtrain/mnist/setup").iterdir()]


def test_what_a_line_starts_in_the_background_runs_on_and_is_named(machine: Machine) -> None:
    began = time.monotonic()
    code, said = run(machine, "echo one; nohup sleep 3000 & echo $! >pid; echo two >&2")
    assert time.monotonic() < began + 60, "the pipe stays open for 3000 s"
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


def test_a_line_that_takes_too_long_is_ended_with_what_it_started(machine: Machine) -> None:
    code, said = run(machine, "setsid sleep 3000 & echo begun; sleep 3001", timeout=1.0)
    assert code == 124
    begun, *why = [line for line in said if line != "Terminated"]  # the shell may still say so
    assert (begun, why[0]) == ("begun", "it was ended: it ran for longer than setup.timeout, 1s")
    assert why[1].startswith("hint: raise `setup.timeout`")
    assert machine.marked() == {}


def test_a_line_that_says_nothing_is_said_to_run_once(machine: Machine) -> None:
    machine.environment["CLOUDTRAIN_SILENCE"] = "0"
    (machine.home / "wait.py").write_text("import time; time.sleep(2.5)")
    code, said = run(machine, "python3 wait.py; echo over")
    assert code == 0
    silent, over = said
    assert silent.startswith("note: no output for 0 s, still runs: ")
    assert "python3 wait.py (pid " in silent
    assert over == "over"


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
    assert process.wait(30) == 1
    assert machine.marked() == {}
