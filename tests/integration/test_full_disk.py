"""No room for records on this machine: a bill must not go on for that."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty

import pytest

from cloudtrain.core.errors import LockedError
from cloudtrain.runs.tail import Follower
from cloudtrain.state import Records
from tests.support.landing_parts import Cluster, Heard
from tests.support.project import Project, until


@pytest.fixture
def small(project: Project) -> Iterator[Project]:
    """Its state folder is on a small disk of its own."""
    project.home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", str(project.home)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("would show it on a small disk, which only root can mount here")
    try:
        yield project
    finally:
        (project.home / "filled").unlink(missing_ok=True)
        project.end()
        subprocess.run(["umount", "-l", str(project.home)], check=True)


def fill(project: Project) -> None:
    """`up` on `local` wants half a GB free."""
    smaller = ["mount", "-o", "remount,size=8m", str(project.home)]
    subprocess.run(smaller, check=True)
    with pytest.raises(OSError, match="No space left on device"):
        write_for_ever(project.home / "filled")


def write_for_ever(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def test_down_goes_on_where_there_is_no_room_for_its_records(small: Project) -> None:
    assert small.cloudtrain("up", small.config()).returncode == 0
    assert small.cloudtrain("train").returncode == 0
    fill(small)
    down = small.cloudtrain("down")
    assert down.returncode == 0, down.stderr
    assert "lists nothing of it any more" in down.stderr
    assert small.landed("chief0", "output/chief0.txt") == "done at 5\n"
    assert small.processes() == {}
    (small.home / "filled").unlink()
    assert small.cloudtrain("down").returncode == 0


def test_down_ends_a_run_that_goes_on_and_lands_it_without_room(small: Project) -> None:
    (small.code / "forever.sh").write_text("echo made >output/made\nsleep 1000\n")
    config = small.config(train={"command": "sh forever.sh"}, strategy="custom")
    assert small.cloudtrain("up", config).returncode == 0
    train = small.start("train")
    until(lambda: list(small.home.rglob("output/made")), 60)
    train.kill()
    train.wait()
    fill(small)
    down = small.cloudtrain("down")
    assert down.returncode == 0, down.stderr
    assert small.landed("chief0", "output/made") == "made\n"
    assert small.processes() == {}


def test_any_other_command_says_what_has_no_room(small: Project) -> None:
    assert small.cloudtrain("up", small.config()).returncode == 0
    fill(small)
    train = small.cloudtrain("train")
    assert train.returncode == 2
    assert "No space left on device" in train.stderr


def test_a_lock_without_room_for_its_file_holds_off_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path))
    records = Records("mnist")
    records.create()
    real = os.open

    def full(path: object, flags: int, *rest: object, **more: object) -> int:
        if str(path).endswith(".lock") and flags & os.O_CREAT and not Path(str(path)).exists():
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return real(path, flags, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", full)
    monkeypatch.setattr("cloudtrain.state.lock.PASSING", 0.1)
    with records.lock("down"):
        with pytest.raises(LockedError), Records("mnist").lock("up"):
            raise AssertionError("two at once")
        monkeypatch.undo()
        monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path))
        monkeypatch.setattr("cloudtrain.state.lock.PASSING", 0.1)
        with pytest.raises(LockedError), Records("mnist").lock("up"):
            raise AssertionError("two at once, once there is room again")
    with records.lock("up"):
        pass


def test_no_room_for_a_log_here_is_no_silence_of_its_node(tmp_path: Path) -> None:
    """A run was ended for that after five minutes."""
    cluster = Cluster(tmp_path)
    console = Heard()

    class Writing:
        def run(self, *_: object, on_stdout: Callable[[bytes], None], **__: object) -> None:
            on_stdout(b"step 1\n")

    task = cluster.run.tasks[0]
    follower = Follower(
        cluster.run,
        Writing(),  # type: ignore[arg-type]
        lambda _: Path("/dev/full"),
        console,
    )
    follower.follow(task, cluster.nodes["chief0"])
    until(lambda: console.warned, 60)
    follower.close()
    with pytest.raises(Empty):
        follower.events.get(0)
    assert "/dev/full: disk full" in console.warned[0]
    assert "its end is not noticed" in console.warned[0]


def test_a_fault_of_ours_while_a_log_is_followed_ends_the_wait_for_its_task(tmp_path: Path) -> None:
    """It ended the thread alone, and the run waited for ever."""
    cluster = Cluster(tmp_path)

    class Faulty:
        def run(self, *_: object, **__: object) -> None:
            raise KeyError("a fault of ours")

    follower = Follower(
        cluster.run,
        Faulty(),  # type: ignore[arg-type]
        lambda task: tmp_path / f"{task.name}.log",
        Heard(),
    )
    follower.follow(cluster.run.tasks[0], cluster.nodes["chief0"])
    with pytest.raises(KeyError, match="a fault of ours"):
        follower.events.get(10)
    follower.close()
