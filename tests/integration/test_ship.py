"""How our own programs are started on a node."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from cloudtrain.core import ship


def run_with(first: Path) -> subprocess.CompletedProcess[str]:
    path = f"{first}:{os.environ['PATH']}"
    return subprocess.run(
        ship.check_python().arguments,
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def an_interpreter(folder: Path) -> Path:
    """A `python3` that only says that it was used."""
    folder.mkdir()
    (folder / "python3").write_text("#!/bin/sh\necho used\n")
    (folder / "python3").chmod(0o755)
    return folder


def test_the_system_s_python_goes_before_a_version_manager_s_slow_shim(tmp_path: Path) -> None:
    done = run_with(an_interpreter(tmp_path / "shims"))
    expected = "" if Path("/usr/bin/python3").exists() else "used\n"
    assert (done.returncode, done.stdout) == (0, expected)


def test_any_other_python_that_comes_first_is_used(tmp_path: Path) -> None:
    assert run_with(an_interpreter(tmp_path / "bin")).stdout == "used\n"
