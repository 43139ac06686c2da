"""A test in tests/unit starts no process and opens no socket: one that does fails by name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HOOK = Path(__file__).parents[1] / "unit" / "conftest.py"

LEAVES = {
    "subprocess": ("subprocess.run(['true', 'so'])", "process: subprocess.Popen true so"),
    "system": ("os.system('true')", "process: os.system true"),
    "spawn": ("os.posix_spawn('/bin/true', ['true'], {})", "process: os.posix_spawn /bin/true"),
    "fork": ("os.fork() or os._exit(0)", "process: os.fork"),
    "inet": ("socket.socket()", "socket: socket.__new__ of 2"),
    "unix": ("socket.socket(socket.AF_UNIX)", "socket: socket.__new__ of 1"),
    "name": ("socket.getaddrinfo('localhost', 1)", "socket: socket.getaddrinfo localhost"),
    "handled": ("with suppress(Exception): os.system('true')", "process: os.system true"),
    "thread": ("in_thread(os.system, 'true')", "process: os.system true"),
}
STAYS = {"files": "in_thread(open, __file__)"}
HEAD = """import os, socket, subprocess, threading
from contextlib import suppress

def in_thread(*call):
    thread = threading.Thread(target=call[0], args=call[1:])
    thread.start()
    thread.join()
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says of such tests under the hook."""
    top = tmp_path_factory.mktemp("tests")
    folder = top / "unit"
    folder.mkdir()
    shutil.copy(HOOK, folder)
    bodies = {name: body for name, (body, _) in LEAVES.items()} | STAYS
    tests = "".join(f"\ndef test_{name}():\n    {body}\n" for name, body in bodies.items())
    (folder / "test_it.py").write_text(HEAD + tests)
    (top / "test_other.py").write_text("import os\n\ndef test_other():\n    os.system('true')\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "--tb=line", "-c", os.devnull, folder, top],
        env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", LEAVES)
def test_a_unit_test_that_does_more_than_compute_fails(shown: str, name: str) -> None:
    what = LEAVES[name][1]
    did = "opened a" if what.startswith("socket") else "started a"
    assert f"test_it.py::test_{name} {did} {what}" in shown


def test_files_threads_and_tests_of_other_folders_are_no_matter(shown: str) -> None:
    assert f"{len(LEAVES)} failed, {len(STAYS) + 1} passed" in shown
    passed = re.findall(r"PASSED .*::test_(\w+)", shown)
    assert sorted(passed) == sorted([*STAYS, "other"])
