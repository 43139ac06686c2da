"""A log is followed by offset: nothing is lost or repeated, and a frozen task is detected."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shlex import quote

import pytest

from cloudtrain.node.follower import EMPTIED
from cloudtrain.runs import task_commands
from cloudtrain.runs.task_commands import (
    AttemptEnd,
    FollowFact,
    FollowReader,
    Heartbeat,
    NoticeSeen,
    PortState,
    Process,
)
from tests.support.fakes import eventually
from tests.support.ports import free_ports
from tests.support.supervising import PYTHON, SHELLS, Attempt, Machine

pytestmark = pytest.mark.sweep(1, over="attempt")  # one of the shells


@pytest.fixture(params=SHELLS, ids=lambda path: Path(path).name)
def attempt(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Attempt]:
    machine = Machine(tmp_path / "home", request.param)
    yield Attempt(machine)
    machine.kill_all()


def follow(attempt: Attempt, offset: int = 0, interval: float = 1.0) -> subprocess.Popen[bytes]:
    process = attempt.machine.popen(task_commands.follow(attempt.folder, offset, interval=interval))
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None
    return process


def followed(attempt: Attempt, offset: int = 0) -> tuple[bytes, tuple[FollowFact, ...]]:
    stdout, stderr = follow(attempt, offset).communicate(timeout=60)
    return stdout, FollowReader().feed(stderr)


def abandon(follower: subprocess.Popen[bytes]) -> None:
    """As when a connection breaks: what was in its pipes is lost."""
    follower.kill()
    for pipe in (follower.stdout, follower.stderr):
        if pipe is not None:
            pipe.close()
    follower.wait(timeout=60)


def followers(attempt: Attempt) -> list[str]:
    lines = attempt.machine.marked().values()
    return [line for line in lines if "Follows one attempt" in line]


def test_a_log_is_followed_to_its_end_and_the_exit_code_comes_last(attempt: Attempt) -> None:
    attempt.start("echo one; sleep 0.3; echo two >&2; sleep 0.3; printf three; exit 5")
    log, told = followed(attempt)
    assert log == b"one\ntwo\nthree"
    assert isinstance(told[0], Heartbeat)
    assert told[-1] == AttemptEnd(state="exited", exit_code=5)


def test_a_notice_that_the_node_is_taken_is_told_while_the_task_runs_and_at_its_end(
    attempt: Attempt,
) -> None:
    notice = quote(str(attempt.path / "notice"))
    attempt.start(f"sleep 0.5; echo 1732170244 >{notice}; sleep 2; exit 42")
    for _ in range(2):
        _, told = followed(attempt)
        assert NoticeSeen(given=1732170244.0) in told
        assert told[-1] == AttemptEnd(state="exited", exit_code=42)


SERVE = (
    f"{PYTHON} -c 'import socket, sys, time;"
    ' server = socket.create_server(("", int(sys.argv[1])));'
    " time.sleep(float(sys.argv[2]))' "
)
MEET = (
    f"{PYTHON} -c 'import socket, sys; port = int(sys.argv[1]);"
    ' server = socket.create_server(("", port));'
    ' client = socket.create_connection(("127.0.0.1", port)); server.accept()\' '
)


def served(attempt: Attempt) -> PortState | None:
    """What was told last, once more after the end."""
    attempt.wait()
    _, told = followed(attempt)
    assert isinstance(told[-1], AttemptEnd)
    return next((fact for fact in told if isinstance(fact, PortState)), None)


def test_a_port_that_was_open_is_told_while_the_task_runs_and_after_its_end(
    attempt: Attempt,
) -> None:
    port = free_ports(1)
    attempt.start(f"sleep 0.3; {SERVE} {port} 3", port=port)
    _, told = followed(attempt)
    first = next(fact for fact in told if isinstance(fact, PortState))
    assert first.after is not None
    assert 0.3 <= first.after < 60
    assert any(isinstance(fact, Heartbeat) for fact in told[told.index(first) :])
    assert served(attempt) == first
    eventually(lambda: not attempt.machine.marked())


def test_a_port_that_was_open_between_two_looks_has_left_a_trace(attempt: Attempt) -> None:
    port = free_ports(1)
    attempt.start(f"{MEET} {port}", port=port)
    seen = served(attempt)
    assert seen is not None
    assert seen.never is None


def test_what_an_earlier_attempt_left_of_a_port_is_not_taken_for_this_one(
    attempt: Attempt,
) -> None:
    port = free_ports(1)
    attempt.start(f"{MEET} {port}", port=port)
    attempt.wait()
    second = Attempt(attempt.machine, 2)
    second.start("sleep 0.3", port=port)
    seen = served(second)
    assert seen is not None
    assert seen.never is not None


def test_a_task_that_ended_without_ever_opening_its_port_says_so(attempt: Attempt) -> None:
    attempt.start("sleep 0.5; exit 0", port=free_ports(1))
    seen = served(attempt)
    assert seen is not None
    assert seen.after is None
    assert seen.never is not None
    assert 0.5 <= seen.never < 60
    assert not seen.elsewhere


def test_a_task_that_listens_on_another_port_is_told_from_one_that_listens_on_none(
    attempt: Attempt,
) -> None:
    port = free_ports(2)
    attempt.start(f"{SERVE} {port + 1} 3", port=port)
    seen = served(attempt)
    assert seen is not None
    assert seen.elsewhere


def test_of_a_task_that_has_no_port_nothing_is_told(attempt: Attempt) -> None:
    attempt.start("exit 0")
    assert served(attempt) is None


def test_who_looks_for_a_port_ends_with_its_watcher(attempt: Attempt) -> None:
    attempt.start("sleep 60", port=free_ports(1))
    pid, _, _, watcher, _ = str((attempt.path / "task").readlink()).split(":")
    os.kill(int(watcher), signal.SIGKILL)
    os.kill(int(pid), signal.SIGKILL)
    eventually(lambda: not attempt.machine.marked())


def test_a_log_of_a_task_that_has_ended_is_sent_from_any_offset(attempt: Attempt) -> None:
    attempt.start("printf 0123456789; exit 9")
    attempt.wait()
    for offset in (0, 1, 9, 10):
        log, told = followed(attempt, offset)
        assert log == b"0123456789"[offset:]
        assert told == (AttemptEnd(state="exited", exit_code=9),)


def test_a_task_that_never_started_is_absent(attempt: Attempt) -> None:
    assert followed(attempt) == (b"", (AttemptEnd(state="absent"),))


def test_a_task_that_was_stopped_before_it_started_has_ended(attempt: Attempt) -> None:
    attempt.stop(0)
    assert followed(attempt) == (b"", (AttemptEnd(state="exited", exit_code=-15),))


def test_a_task_that_dies_with_its_watcher_is_lost(attempt: Attempt) -> None:
    attempt.start("echo up; sleep 60")
    attempt.wait_for_log(b"up")
    follower = follow(attempt)
    pid, _, _, watcher, _ = str((attempt.path / "task").readlink()).split(":")
    os.kill(int(watcher), signal.SIGKILL)
    os.kill(int(pid), signal.SIGKILL)
    stdout, stderr = follower.communicate(timeout=60)
    assert stdout == b"up\n"
    assert FollowReader().feed(stderr)[-1] == AttemptEnd(state="lost")


def test_the_end_of_a_task_whose_watcher_was_killed_is_seen(attempt: Attempt) -> None:
    attempt.start("while ! [ -e ../go ]; do sleep 0.05; done; echo went")
    os.kill(int(str((attempt.path / "task").readlink()).split(":")[3]), signal.SIGKILL)
    follower = follow(attempt)
    (attempt.machine.home / "go").touch()
    stdout, stderr = follower.communicate(timeout=60)
    assert stdout == b"went\n"
    assert FollowReader().feed(stderr)[-1] == AttemptEnd(state="lost")


def test_a_line_arrives_within_a_third_of_a_second(attempt: Attempt) -> None:
    attempt.start(f"while sleep 0.2; do {PYTHON} -c 'import time; print(time.time())'; done")
    follower = follow(attempt)
    assert follower.stdout is not None
    late = [9.0] * 3
    for _ in range(200):  # also where the machine is busy, three will come one after the other
        written = float(follower.stdout.readline())
        late = [*late[1:], time.time() - written]
        if max(late) < 0.3:
            break
    assert max(late) < 0.3
    abandon(follower)


WRITER = """
import os, random, sys, time
r = random.Random(int(sys.argv[1]))
for n in range(int(sys.argv[2])):
    os.write(1, r.randbytes(r.randrange(1, 40000)))
    if r.random() < 0.05: time.sleep(0.01)
"""


def test_a_follower_killed_at_any_byte_and_resumed_loses_and_repeats_nothing(
    attempt: Attempt,
) -> None:
    (attempt.machine.home / "work" / "writer.py").write_text(WRITER)
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    attempt.start(f"{PYTHON} writer.py {seed} 300")
    got = bytearray()
    told: tuple[Heartbeat | AttemptEnd, ...] = ()
    for _ in range(25):
        follower = follow(attempt, len(got))
        assert follower.stdout is not None
        got += follower.stdout.read(chance.randrange(1, 300_000))
        abandon(follower)
    rest, told = followed(attempt, len(got))
    got += rest
    assert told[-1] == AttemptEnd(state="exited", exit_code=0), seed
    assert hashlib.sha256(got).digest() == hashlib.sha256(attempt.log).digest(), seed
    eventually(lambda: not followers(attempt))


def test_a_log_of_20_mb_written_at_once_arrives_whole(attempt: Attempt) -> None:
    attempt.start("head -c 20000000 /dev/urandom; exit 1")
    log, told = followed(attempt)
    assert len(log) == 20_000_000
    assert hashlib.sha256(log).digest() == hashlib.sha256(attempt.log).digest()
    assert told[-1] == AttemptEnd(state="exited", exit_code=1)


def test_a_slow_reader_gets_everything_after_the_task_has_ended(attempt: Attempt) -> None:
    attempt.start("head -c 3000000 /dev/zero")
    follower = follow(attempt)
    attempt.wait()
    log, _ = follower.communicate(timeout=60)
    assert len(log) == 3_000_000


def test_a_heartbeat_shows_which_process_is_frozen(attempt: Attempt) -> None:
    attempt.start(f"{PYTHON} -c 'import time; print(1, flush=True); time.sleep(60)'; true")
    attempt.wait_for_log(b"1")
    (inner,) = (p.pid for p in attempt.status().processes if p.name != "bash")
    follower = follow(attempt, interval=0.1)
    os.kill(inner, signal.SIGSTOP)
    reader = FollowReader()
    frozen: list[Process] = []
    assert follower.stderr is not None
    while not frozen:
        for beat in reader.feed(follower.stderr.readline()):
            assert isinstance(beat, Heartbeat)
            frozen.extend(beat.frozen)
    assert [process.pid for process in frozen] == [inner]
    assert beat.size == 2
    abandon(follower)


def test_no_follower_is_left_on_the_node_when_its_client_is_gone(attempt: Attempt) -> None:
    attempt.start("sleep 60")
    follower = follow(attempt, interval=0.2)
    assert follower.stderr is not None
    assert follower.stdout is not None
    follower.stderr.readline()
    follower.stdout.close()
    follower.stderr.close()
    follower.wait(timeout=60)
    eventually(lambda: not followers(attempt))
    assert attempt.status().state == "running"


def test_no_follower_is_left_when_the_shell_that_ran_it_was_killed(attempt: Attempt) -> None:
    attempt.start("sleep 60")
    follower = follow(attempt, interval=0.2)
    assert follower.stderr is not None
    follower.stderr.readline()
    abandon(follower)
    eventually(lambda: not followers(attempt))


def test_a_log_that_the_task_empties_is_followed_on(attempt: Attempt) -> None:
    """The local log, whose size is the offset, keeps what was before; a client that comes again
    goes on where it was."""
    attempt.start("echo before; sleep 0.5; : >/dev/stdout; until test -e go; do sleep 0.1; done")
    follower = follow(attempt)
    assert follower.stdout is not None
    got = follower.stdout.readline() + follower.stdout.readline() + follower.stdout.readline()
    assert got == b"before\n" + EMPTIED
    abandon(follower)
    (attempt.machine.home / "work/go").touch()
    attempt.wait()
    assert followed(attempt, len(got)) == (b"", (AttemptEnd(state="exited", exit_code=0),))


def test_a_thousand_lines_written_one_by_one_arrive_in_few_messages(attempt: Attempt) -> None:
    attempt.start(
        f"{PYTHON} -uc 'import time;"
        ' [(print("step", n), time.sleep(0.001)) for n in range(1000)]\''
    )
    follower = follow(attempt)
    assert follower.stdout is not None
    pieces = list(iter(lambda: os.read(follower.stdout.fileno(), 1 << 20), b""))
    assert b"".join(pieces) == b"".join(b"step %d\n" % n for n in range(1000))
    assert len(pieces) < 300
    abandon(follower)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="a node's Python from 3.9")
def test_the_end_is_pushed_and_not_looked_for(attempt: Attempt) -> None:
    attempt.start("until test -e go; do sleep 0.05; done; printf last; exit 3")
    command = task_commands.follow(attempt.folder, 0)
    slow = [word.replace("PACE = 0.08", "PACE = 600.0") for word in command.arguments]
    assert slow != list(command.arguments)
    follower = attempt.machine.popen(replace(command, arguments=tuple(slow)))
    assert follower.stderr is not None
    follower.stderr.readline()
    (attempt.machine.home / "work/go").touch()
    stdout, stderr = follower.communicate(timeout=60)
    assert stdout == b"last"
    assert FollowReader().feed(stderr)[-1] == AttemptEnd(state="exited", exit_code=3)


def test_the_reader_takes_lines_however_they_are_cut() -> None:
    text = b"Welcome to node!\nbeat 12 7/S/3/bash 8/T/99/python3\nbeat x\nend 137\n"
    wanted = (
        Heartbeat(
            size=12,
            processes=(
                Process(pid=7, state="S", ticks=3, name="bash"),
                Process(pid=8, state="T", ticks=99, name="python3"),
            ),
        ),
        AttemptEnd(state="exited", exit_code=-9),
    )
    for size in (1, 3, 7, len(text)):
        reader = FollowReader()
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert tuple(one for piece in pieces for one in reader.feed(piece)) == wanted


# ── a log that would fill the disk ───────────────────────────────────────────

MIB = 1 << 20
LINES = (
    f"{PYTHON} -c 'for n in range(40 * 1024): print(n, chr(120) * 1000)'; "
    "until test -e go; do sleep 0.05; done; echo last"
)


def allocated(attempt: Attempt) -> int:
    return (attempt.path / "log").stat().st_blocks * 512


def test_the_middle_of_a_long_log_is_freed_and_every_offset_stays(attempt: Attempt) -> None:
    """A follower near the end misses nothing; one that comes later is told what is gone."""
    environment = {"CLOUDTRAIN_LOG_MIB": "16", "CLOUDTRAIN_LOG_EVERY": "0.1"}
    attempt.machine.environment.update(environment)
    whole = b"".join(b"%d %s\n" % (n, b"x" * 1000) for n in range(40 * 1024)) + b"last\n"
    attempt.start(LINES)
    eventually(lambda: attempt.path.joinpath("log").stat().st_size == len(whole) - 5)
    eventually(lambda: allocated(attempt) <= 16 * MIB)
    near = follow(attempt, len(whole) - 4 * MIB)
    (attempt.machine.home / "work/go").touch()
    attempt.wait()
    assert near.communicate(timeout=60)[0] == whole[-4 * MIB :]
    log, told = followed(attempt)
    assert told[-1] == AttemptEnd(state="exited", exit_code=0)
    assert len(log) == len(whole)
    assert log[:MIB] == whole[:MIB]
    assert log[-8 * MIB + 2000 :] == whole[-8 * MIB + 2000 :]
    middle = log[MIB : -8 * MIB - 2 * MIB].replace(b"\0", b"")
    assert b"MiB of this log were deleted here, to keep the disk free]\n" in middle
    eventually(lambda: not attempt.machine.marked())
