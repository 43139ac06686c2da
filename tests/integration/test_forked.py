"""`--parts 2`, by which `make units` runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def ran(folder: Path, *words: str) -> tuple[int, str]:
    asked = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-v"]
    done = subprocess.run(
        [*asked, f"--rootdir={folder}", "-c", "/dev/null", *words, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_each_test_runs_once_and_one_that_fails_fails_the_run_whoever_ran_it(
    tmp_path: Path,
) -> None:
    for number in range(6):
        fails = "time.sleep(0.1)" if number else "print('why')\n    assert 1 == 2"
        tests = f"import time\n\ndef test_a():\n    {fails}\n\ndef test_b():\n    pass\n"
        (tmp_path / f"test_{number}.py").write_text(tests + "\n" * number)
    status, told = ran(tmp_path, "--capture=sys", "--parts", "2")
    assert status == 1
    assert sorted(re.findall(r"(test_\d)\.py::test_(\w) (\w+)", told)) == sorted(
        (f"test_{number}", test, "FAILED" if (number, test) == (0, "a") else "PASSED")
        for number in range(6)
        for test in "ab"
    )
    assert told.count("assert 1 == 2") >= 1
    assert "why" in told
    assert len(re.findall(r"=+ .*\d passed", told)) == 2, "one summary for each process"


def test_parts_share_no_file_of_what_tests_print(tmp_path: Path) -> None:
    status, told = ran(tmp_path, "--parts", "2")
    assert status == 4
    assert "ERROR: --parts needs --capture=sys" in told
