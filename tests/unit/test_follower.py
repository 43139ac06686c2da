"""The log as one stream of bytes: half lines, files that are emptied or replaced, reconnects."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from queue import Empty
from types import SimpleNamespace

import pytest

from cloudtrain.core.run_record import Task
from cloudtrain.node import follower
from cloudtrain.node.follower import EMPTIED, Attempt, Follower, Log
from cloudtrain.runs.attempt_state import TAIL
from cloudtrain.runs.tail import Event, Events
from cloudtrain.runs.task_commands import AttemptEnd


def rest(log: Log) -> bytes:
    """What a follower sends at one look."""
    log.look()
    return b"".join(iter(lambda: log.read(log.size()), b""))


@pytest.mark.parametrize(
    "written", [b"half a li", b"\xff\xfe\0\n", b"x" * (10 << 20) + b"\nnext\n", b""]
)
def test_bytes_are_passed_on_as_they_are(tmp_path: Path, written: bytes) -> None:
    (tmp_path / "log").write_bytes(b"one\n")
    log = Log(str(tmp_path), 0)
    assert rest(log) == b"one\n"
    with (tmp_path / "log").open("ab") as file:
        file.write(written)
    assert rest(log) == written
    assert rest(Log(str(tmp_path), 2)) == b"e\n" + written


def test_a_log_that_appears_late_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = Log(str(tmp_path), 0)
    assert rest(log) == b""
    (tmp_path / "log").write_bytes(b"one\n")
    assert rest(log) == b"one\n"


@pytest.mark.parametrize("replaced", [False, True], ids=["emptied", "replaced"])
def test_a_log_that_begins_again_is_one_stream_for_every_client(
    tmp_path: Path, replaced: bool
) -> None:
    (tmp_path / "log").write_bytes(b"before\n")
    log = Log(str(tmp_path), 0)
    seen = rest(log)
    if replaced:
        (tmp_path / "log").rename(tmp_path / "log.1")
        with (tmp_path / "log.1").open("ab") as file:
            file.write(b"last words\n")
    (tmp_path / "log").write_bytes(b"new\n" if replaced else b"")
    seen += rest(log)  # the old file to its end
    seen += rest(log)
    (tmp_path / "log").write_bytes(b"new\nlines\n")
    seen += rest(log)
    old = b"before\nlast words\n" if replaced else b"before\n"
    assert seen == old + EMPTIED + b"new\nlines\n"
    for offset in range(len(old), len(seen) + 1):  # reconnected at any byte since
        assert rest(Log(str(tmp_path), offset)) == seen[offset:]
    assert rest(Log(str(tmp_path), 2)) == b"\0" * (len(old) - 2) + seen[len(old) :]


def test_a_log_that_is_shorter_than_what_had_arrived_was_emptied(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"new\n")
    assert rest(Log(str(tmp_path), 100)) == EMPTIED + b"new\n"


def test_a_disk_without_room_for_the_record_ends_no_follower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "symlink", full)
    (tmp_path / "log").write_bytes(b"new\n")
    log = Log(str(tmp_path), 100)
    assert rest(log) == EMPTIED + b"new\n"
    with (tmp_path / "log").open("ab") as file:
        file.write(b"more\n")
    assert rest(log) == b"more\n"


def test_a_disk_that_is_nearly_full_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=300_000, f_frsize=1024))
    follower = Follower(str(tmp_path), 0, 1.0, 0)
    for _ in range(2):
        follower.notice()
    assert follower.facts == [b"low 300000"]


def test_the_processes_of_a_task_are_told_without_those_of_others(tmp_path: Path) -> None:
    me = follower.stat_of(str(os.getpid()))
    attempt = Attempt(str(tmp_path))
    (tmp_path / "task").symlink_to(f"{os.getpid()}:{int(me[20])}:{attempt.boot}:0:0")
    assert attempt.state() == "running"
    assert f"{os.getpid()}/" in "".join(attempt.members())
    (tmp_path / "exit").symlink_to("3")
    assert (attempt.state(), attempt.exit) == ("exited", "3")
    (tmp_path / "exit").unlink()
    (tmp_path / "task").unlink()
    (tmp_path / "task").symlink_to(f"{os.getpid()}:{int(me[20]) + 1}:{attempt.boot}:0:0")
    assert attempt.state() == "lost"  # another process has its number
    assert not any(one.startswith(f"{os.getpid()}/") for one in attempt.members())


def test_bytes_that_wait_are_one_event_of_their_task_and_a_bounded_part_of_its_log() -> None:
    """64 chatty nodes, while whoever takes the events lands files for minutes."""
    events = Events()
    tasks = [Task(role="worker", index=n, node=f"n{n}", port=1) for n in range(64)]
    for n in range(1000):
        for task in tasks:
            events.put(Event(task, b"%d " % n * 100))
    for task in tasks:
        events.put(Event(task, AttemptEnd(state="exited", exit_code=0)))
    for kind in (bytes, AttemptEnd):
        for task in tasks:
            event = events.get(0)
            assert event.task is task
            assert isinstance(event.news, kind)
            if isinstance(event.news, bytes):
                assert len(event.news) == TAIL
                assert event.news.endswith(b"998 " * 100 + b"999 " * 100)
    with pytest.raises(Empty):
        events.get(0)
    events.put(Event(tasks[0], b"more"))
    assert events.get(0).news == b"more"
