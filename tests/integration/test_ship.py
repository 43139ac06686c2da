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
    "work_folder": (ship.whole("work_folder", "r/work", *[""] * 5), b""),
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


# ── compiled code that a home keeps ────────────────────────────────────────────

LISTING = ship.whole("listing")


def listed(home: Path | str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", *ship.text_of(LISTING)],
        input=json.dumps(ORDERS["listing"][0]).encode() + b"\n",
        env={"HOME": str(home)},
        capture_output=True,
        check=True,
    )
    assert done.stderr == b""
    found: dict[str, object] = json.loads(done.stdout)
    return found


def lists(home: Path | str) -> None:
    assert listed(home) == {"others": {}, "unread": [], "left_out": {}}


def kept(home: Path) -> list[Path]:
    return sorted((home / ".cache/cloudtrain/code").glob("*"))


def test_a_program_is_compiled_once_for_a_home(tmp_path: Path) -> None:
    lists(tmp_path)
    (file,) = kept(tmp_path)
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    change(file)
    assert "lefd_out" in listed(tmp_path)


def change(file: Path) -> None:
    """Change the code that is kept, so that its use is seen."""
    file.write_bytes(file.read_bytes().replace(b"left_out", b"lefd_out"))


@pytest.mark.parametrize("length", [0, 1, 10_000])
def test_kept_code_that_a_crash_cut_off_is_compiled_again(tmp_path: Path, length: int) -> None:
    lists(tmp_path)
    (file,) = kept(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[:length])
    lists(tmp_path)
    assert kept(tmp_path) == [file]
    assert len(file.read_bytes()) == len(whole)


def test_a_program_runs_where_its_code_cannot_be_kept(tmp_path: Path) -> None:
    (tmp_path / ".cache").write_text("no folder")
    for home in (tmp_path, tmp_path / "none", "", "/dev/null"):
        lists(home)
    assert [path.name for path in tmp_path.iterdir()] == [".cache"]


def test_a_full_disk_keeps_no_half_of_a_programs_code(tmp_path: Path) -> None:
    words = [sys.executable, "-I", "-S", "-c", *ship.text_of(LISTING)]
    done = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -f 1; exec "$@"', "sh", *words],
        input=json.dumps(ORDERS["listing"][0]).encode() + b"\n",
        env={"HOME": str(tmp_path)},
        capture_output=True,
        check=True,
    )
    assert (json.loads(done.stdout)["unread"], done.stderr) == ([], b"")
    assert kept(tmp_path) == []


def test_code_that_another_user_keeps_is_not_used(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    lists(tmp_path)
    (file,) = kept(tmp_path)
    change(file)
    os.chown(file, 65534, 65534)
    lists(tmp_path)
