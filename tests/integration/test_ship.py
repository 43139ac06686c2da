"""How our own programs are started on a node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloudtrain.core import ship
from cloudtrain.core.shell import Command, script
from cloudtrain.runs import task_commands


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


ORDERS: dict[str, tuple[object, ...]] = {
    "listing": ({"folder": "work", "patterns": ["output/**"], "changed": "list", "home": True},),
    "probe": (
        {"nonce": "n", "name": "worker0", "port": 0, "folder": ".", "identity": None},
        {"peers": [], "serving": [], "timeout": 1},
    ),
}
"""What is asked of every node in every run."""

SLOW = {"json", "re", "threading", "typing", "contextlib", "subprocess", "http"}
SLOW |= {"enum", "encodings.idna", "selectors", "signal", "socket"}
"""Each takes 3 to 10 ms of CPU, where Python itself starts in 6 (3.11, 2026-11-27)."""


@pytest.mark.parametrize("name", ORDERS)
def test_what_every_run_asks_of_every_node_loads_no_slow_module(name: str, tmp_path: Path) -> None:
    program = ship.program(name)
    orders = "".join(json.dumps(order) + "\n" for order in (*ORDERS[name], None))
    done = loading(program.command, program.source + orders.encode(), tmp_path)
    assert f"cloudtrain.node.{name}" in loaded(done)
    assert not loaded(done) & SLOW
    assert all(json.loads(line) for line in done.stdout.splitlines())


TEXTS = {
    "resident": (ship.resident(), b"\1t 4\npass0\n"),
    "follower": (task_commands.follow("none", 0), b""),
    "starter": (
        task_commands.start("a", tag="t", work=".", command="true", environment={}).command,
        b"",
    ),
    "work_folder": (script(ship.START, ship.bundle("work_folder"), "r/work", *[""] * 5), b""),
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_sent_as_text_for_every_run_loads_no_slow_module(name: str, tmp_path: Path) -> None:
    assert not loaded(loading(*TEXTS[name], tmp_path)) & SLOW


def loading(command: Command, stdin: bytes, folder: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-X", "importtime", "-I", "-S", "-c", *ship.text_of(command)],
        input=stdin,
        cwd=folder,
        capture_output=True,
        check=True,
    )


def loaded(done: subprocess.CompletedProcess[bytes]) -> set[str]:
    return {line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines()}


def test_only_what_a_python_starts_is_a_text_for_it() -> None:
    assert ship.text_of(script(ship.START, "pass", "a")) == ("pass", "a")
    assert ship.text_of(script(f"cd /; {ship.START}", "pass", "a")) == ()
    assert ship.text_of(ship.check_python()) == ()
