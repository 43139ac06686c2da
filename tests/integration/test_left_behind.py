"""What a task's processes leave behind does not outlive its attempt."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import words
from tests.support.supervising import DAEMON, PYTHON, SHELLS, Attempt, Machine

pytestmark = pytest.mark.sweep(1, over="machine")  # one of the shells


@pytest.fixture(params=SHELLS, ids=lambda path: Path(path).name)
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "home", request.param)
    machine.environment["CLOUDTRAIN_LEFT_PATIENCE"] = "0"
    yield machine
    machine.kill_all()


@pytest.fixture
def attempt(machine: Machine) -> Attempt:
    return Attempt(machine)


def ended(attempt: Attempt) -> str:
    """What the log says in its last line."""
    last = attempt.log.decode().splitlines()[-1]
    assert last.startswith("[cloudtrain: ended ")
    return last.removeprefix("[cloudtrain: ended ").removesuffix("]")


def test_what_a_task_leaves_is_ended_with_it_and_named_in_its_log(attempt: Attempt) -> None:
    (attempt.machine.home / "work" / "serve.py").write_text("import time; time.sleep(600)")
    attempt.start(f"{PYTHON} serve.py --token s3cret & echo $!; printf done; exit 3")
    assert attempt.wait().exit_code == 3
    number, done = attempt.log.decode().splitlines()[:2]
    assert done == "done"
    said = ended(attempt)
    assert said.startswith("1 process that worker0 left behind: python")
    assert said.endswith(f" serve.py (pid {number})")
    assert words(int(number)) == []


@pytest.mark.parametrize("line", ["setsid sleep 600", "env -i setsid sleep 600", "daemon"])
def test_however_it_hides_it_is_found(attempt: Attempt, line: str) -> None:
    """`env -i` and a second fork leave neither tag, session nor parent."""
    (attempt.machine.home / "work" / "daemon.py").write_text(DAEMON + "# daemon")
    if line == "daemon":
        line = f"env -i {PYTHON} daemon.py"
    attempt.start(f"({line} >/dev/null </dev/null & echo up); sleep 0.3; exit 0")
    assert attempt.wait().exit_code == 0
    assert ended(attempt).startswith("1 process that worker0 left behind: ")


def test_what_heeds_term_writes_its_last_bytes_and_what_does_not_is_killed(
    attempt: Attempt,
) -> None:
    heeds = "trap 'echo last words; exit' TERM; echo one; while :; do sleep 0.05; done"
    ignores = "trap '' TERM; echo two; while :; do sleep 0.05; done"
    attempt.start(f'sh -c "{heeds}" & sh -c "{ignores}" & sleep 0.5')
    assert attempt.wait().exit_code == 0
    *_, words_of_the_first, _ = attempt.log.decode().splitlines()
    assert words_of_the_first == "last words"
    assert "processes that worker0 left behind: " in ended(attempt)
    assert not attempt.machine.marked()


def test_what_is_about_to_end_is_waited_for_and_not_mentioned(attempt: Attempt) -> None:
    """bash does not wait for the other side of `> >(tee)`."""
    attempt.machine.environment["CLOUDTRAIN_LEFT_PATIENCE"] = "2000"
    attempt.start("exec > >(sleep 0.4; tee copy); echo last line; exit 0")
    attempt.wait()
    assert attempt.log == b"last line\n"
    assert (attempt.machine.home / "work" / "copy").read_bytes() == b"last line\n"


def test_a_task_has_the_variables_and_signals_that_it_had_without_a_python_before_it(
    attempt: Attempt,
) -> None:
    """Python ignores SIGPIPE, and sets LC_CTYPE where the locale is C."""
    attempt.machine.environment |= {"LC_ALL": "", "LANG": ""}
    attempt.machine.environment.pop("LC_CTYPE", None)
    attempt.start("grep SigIgn /proc/self/status; env | grep -c ^LC_CTYPE; exit 0")
    attempt.wait()
    assert attempt.log.split() == [b"SigIgn:", ignored_here(), b"0"]


def ignored_here() -> bytes:
    """The signals that this process ignores, but for those that Python has set to be."""
    (line,) = re.findall(r"SigIgn:\s*([0-9a-f]+)", Path("/proc/self/status").read_text())
    python = (signal.SIGPIPE, getattr(signal, "SIGXFSZ", signal.SIGPIPE))
    ignored = int(line, 16)
    for number in python:
        ignored &= ~(1 << (number - 1))
    return b"%016x" % ignored
