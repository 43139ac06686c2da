"""A test that passes only when it is run a second time is named as a fault."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TESTS = """
from pathlib import Path

def test_flaky():
    seen = Path(__file__).with_name("seen")
    first = not seen.exists()
    seen.touch()
    assert not first, "too late"

def test_broken():
    raise ValueError("always")

def test_good():
    pass
"""


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    plugins = ("-p", "no:cacheprovider", "-p", "tests.support.second_runs")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-c", os.devnull, *plugins, *options, folder],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("options", [(), ("-n", "2", "--dist", "worksteal")], ids=["one", "xdist"])
def test_what_needed_a_second_run_is_named(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    done = run(tmp_path, "--reruns", "1", *options)
    assert done.returncode == 1
    assert "1 failed, 2 passed, 2 rerun" in done.stdout
    named = [line for line in done.stdout.splitlines() if line.startswith("SECOND RUN ")]
    assert len(named) == 1
    assert "test_it.py::test_flaky - AssertionError: too late" in named[0]


def test_ctrl_c_ends_the_run_and_is_no_reason_for_a_second_one(tmp_path: Path) -> None:
    body = "def test_it():\n    raise KeyboardInterrupt\n"
    (tmp_path / "test_it.py").write_text(body)
    done = run(tmp_path, "--reruns", "1")
    assert done.returncode == 2
    assert "SECOND RUN" not in done.stdout
    assert "rerun" not in done.stdout.splitlines()[-1]


def test_nothing_is_said_where_each_passed_at_once(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_good():\n    pass\n")
    done = run(tmp_path, "--reruns", "1")
    assert done.returncode == 0
    assert "second" not in done.stdout
