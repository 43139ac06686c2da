"""A task starts once, as written, and its end is known whatever dies around it."""

from __future__ import annotations

import ast
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cloudtrain.core.errors import NodeError
from cloudtrain.core.shell import Command, Secret
from cloudtrain.core.ship import text_of
from cloudtrain.node import layer
from cloudtrain.runs import task_commands
from tests.support.fakes import eventually
from tests.support.pythons import python
from tests.support.supervising import PYTHON, SHELLS, Attempt, Machine

pytestmark = pytest.mark.sweep(1, over="machine")  # one of the shells


@pytest.fixture(params=SHELLS, ids=lambda path: Path(path).name)
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "home", request.param)
    yield machine
    machine.kill_all()


@pytest.fixture
def attempt(machine: Machine) -> Attempt:
    return Attempt(machine)


def test_a_task_runs_in_its_work_folder_and_its_exit_code_is_kept(attempt: Attempt) -> None:
    assert attempt.status().state == "absent"
    assert attempt.start("pwd; cat; exit 3") == "started"
    status = attempt.wait()
    assert (status.state, status.exit_code, status.pid) == ("exited", 3, None)
    assert attempt.log == f"{attempt.machine.home}/work\n".encode()
    assert status.size == len(attempt.log)
    assert status.started is not None
    assert status.ended is not None
    assert abs(status.ended - time.time()) < 60


@pytest.mark.parametrize(
    ("address", "given", "wanted"),
    [
        ("10.0.0.7", {}, "=ens5"),
        ("10.0.0.8", {}, "unset"),
        ("127.0.0.1", {}, "unset"),
        ("10.0.0.7", {"NCCL_SOCKET_IFNAME": "eth"}, "eth"),
        ("10.0.0.7", {"NCCL_SOCKET_IFNAME": ""}, ""),
    ],
)
def test_nccl_is_told_the_interface_that_has_the_nodes_address(
    attempt: Attempt, address: str, given: dict[str, str], wanted: str
) -> None:
    """The loopback is none, and what the user says holds."""
    tools = attempt.machine.home / "tools"
    tools.mkdir()
    (tools / "ip").write_text(
        "#!/bin/sh\n"
        '[ "$1 $2 $3 $4" = "-o addr show to" ] || exit 1\n'
        "case $5 in\n"
        "10.0.0.7) echo '2: ens5    inet 10.0.0.7/24 brd 10.0.0.255 scope global ens5' ;;\n"
        "127.0.0.1) echo '1: lo    inet 127.0.0.1/8 scope host lo' ;;\n"
        "esac\n"
    )
    (tools / "ip").chmod(0o755)
    attempt.machine.environment["PATH"] = f"{tools}:{os.environ['PATH']}"
    attempt.machine.environment.pop("NCCL_SOCKET_IFNAME", None)
    attempt.start("echo ${NCCL_SOCKET_IFNAME-unset}", given, nccl_address=address)
    assert attempt.wait().exit_code == 0
    assert attempt.log.decode() == f"{wanted}\n"


def test_nothing_is_left_running_after_a_task_has_ended(attempt: Attempt) -> None:
    attempt.start("exit 0")
    attempt.wait()
    eventually(lambda: not attempt.machine.marked())


def test_every_exit_code_is_told_and_those_of_signals_are_negative(machine: Machine) -> None:
    def end_of(code: int) -> int | None:
        attempt = Attempt(machine, code)
        attempt.start(f"exit {code}")
        return attempt.wait().exit_code

    codes = [0, 1, 2, 42, 126, 127, 128, 129, 137, 143, 159, 160, 255]
    with ThreadPoolExecutor(4) as pool:
        ends = list(pool.map(end_of, codes))
    assert ends == [0, 1, 2, 42, 126, 127, 128, -1, -9, -15, -31, 160, 255]


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGTERM", "SIGHUP", "SIGINT", "SIGABRT"])
def test_a_death_by_signal_is_its_negative_number(attempt: Attempt, name: str) -> None:
    number = signal.Signals[name].value
    attempt.start(f"kill -{number} $$; sleep 60")
    assert attempt.wait().exit_code == -number


def test_a_signal_to_a_child_of_the_users_line_counts_as_the_tasks_own(attempt: Attempt) -> None:
    attempt.start("sh -c 'kill -9 $$'; exit $?")
    assert attempt.wait().exit_code == -9


def test_the_task_can_be_interrupted_by_its_own_sigint(attempt: Attempt) -> None:
    """A shell makes what it starts with `&` deaf to SIGINT for good."""
    attempt.start(f"{PYTHON} -c 'import signal; print(signal.getsignal(2))'")
    attempt.wait()
    assert b"default_int_handler" in attempt.log


def test_the_task_survives_signals_to_the_group_that_started_it(attempt: Attempt) -> None:
    remote = attempt.remote("echo up; sleep 60")
    starter = attempt.machine.popen(remote.command)
    starter.communicate(remote.stdin)
    with pytest.raises(ProcessLookupError):
        os.killpg(starter.pid, signal.SIGKILL)
    assert attempt.status().state == "running"
    pid = attempt.status().pid
    assert pid is not None
    assert os.getsid(pid) == pid


@pytest.mark.parametrize(
    "value",
    [
        "two words",
        "it's",
        'say "hi"',
        "$(touch injected)`touch injected`; touch injected",
        "two\nlines\n",
        "\n#end\ntouch injected\n",
        "Grüße, 世界",
        "back\\slash \\n %s",
        "",
        "-n",
        '{"cluster": {"chief": ["10.0.0.1:8900"]}, "task": {"type": "chief", "index": 0}}',
    ],
)
def test_environment_values_arrive_as_written_and_execute_nothing(
    attempt: Attempt, value: str
) -> None:
    show = "import os; print(os.environb[b'TF_CONFIG'])"
    attempt.start(f'{PYTHON} -c "{show}"', {"TF_CONFIG": value})
    assert attempt.wait().exit_code == 0
    assert attempt.log.decode() == f"{value.encode()!r}\n"
    assert not list(attempt.machine.home.rglob("injected"))


def test_every_byte_of_an_environment_value_arrives(attempt: Attempt) -> None:
    value = bytes(range(1, 256)).decode("utf-8", "surrogateescape")
    show = "import os; print(list(os.environb[b'ALL']))"
    attempt.start(f'{PYTHON} -c "{show}"', {"ALL": value})
    attempt.wait()
    assert json.loads(attempt.log) == list(range(1, 256))


def test_a_long_environment_arrives(attempt: Attempt) -> None:
    value = json.dumps({"cluster": {"worker": [f"10.0.{i}.1:8900" for i in range(5000)]}})
    attempt.start(
        f'{PYTHON} -c \'import os; print(len(os.environ["A"] + os.environ["B"]))\'',
        {"A": value, "B": value},
    )
    attempt.wait()
    assert int(attempt.log) == 2 * len(value)


def test_a_value_that_no_process_can_have_is_named_in_the_log(attempt: Attempt) -> None:
    """Linux limits each to 128 KiB: execve(2)."""
    attempt.start("true", {"A": "x" * (1 << 17)})
    assert attempt.wait().exit_code == 126
    assert attempt.log.endswith(b"bash: Argument list too long\n")


def test_names_that_the_supervisor_uses_itself_can_be_the_users(attempt: Attempt) -> None:
    names = {"folder": "1", "work": "2", "payload": "3", "stat": "4", "PATH": "/none"}
    attempt.start("/usr/bin/env", names)
    attempt.wait()
    assert {f"{name}={value}" for name, value in names.items()} <= set(attempt.log.decode().split())


COMMANDS = {
    "quotes": ("printf '%s\\n' \"it's\" 'say \"hi\"'", b'it\'s\nsay "hi"\n'),
    "lines": ("echo one\necho two # comment\n\necho three", b"one\ntwo\nthree\n"),
    "expansion": ("X=a; echo $(echo ${X}b) `echo c` $((1+1))", b"ab c 2\n"),
    "marker": ("cat <<'#end'\nbody\n#end\necho after", b"body\nafter\n"),
    "unicode": ("echo 'Grüße'", "Grüße\n".encode()),
    "bytes": (b"echo '\x81\xff'".decode("utf-8", "surrogateescape"), b"\x81\xff\n"),
    "bash": ("[[ a == a* ]] && echo $BASH | grep -o bash", b"bash\n"),
    "percent": ("printf '%%s %%d\\n'", b"%s %d\n"),
}


@pytest.mark.parametrize("which", COMMANDS)
def test_the_users_line_runs_as_written(attempt: Attempt, which: str) -> None:
    command, printed = COMMANDS[which]
    attempt.start(command)
    assert attempt.wait().exit_code == 0
    assert attempt.log == printed


def test_a_line_that_is_no_shell_ends_with_the_shells_own_words(attempt: Attempt) -> None:
    attempt.start("echo 'unfinished")
    assert attempt.wait().exit_code not in (0, None)
    assert b"unexpected EOF" in attempt.log


def test_secrets_are_on_no_command_line_and_in_no_file(attempt: Attempt) -> None:
    remote = attempt.remote('echo "$TOKEN" | wc -c; sleep 60', {"TOKEN": Secret("hunter2-hunter2")})
    assert "hunter2" not in repr(remote) + remote.command.shell()
    completed = attempt.machine.run(remote.command, remote.stdin)
    assert completed.stdout.startswith(b"started ")
    attempt.wait_for_log(b"16\n")
    assert not any("hunter2" in line for line in attempt.machine.marked().values())
    assert len(attempt.machine.marked()) >= 2
    for file in attempt.machine.home.rglob("*"):
        assert b"hunter2" not in (file.read_bytes() if file.is_file() else os.fsencode(file))


@pytest.mark.parametrize("minor", [6, 7, 9, 12, 13])
def test_any_python_from_3_6_on_starts_and_watches_a_task(tmp_path: Path, minor: int) -> None:
    machine = Machine(tmp_path / "home")
    attempt = Attempt(machine)
    for number in (1, 2):  # compiled, and kept
        attempt = Attempt(machine, number)
        remote = attempt.remote("(setsid sleep 0.2 &); echo $A; exit 3", {"A": "b"})
        done = subprocess.run(
            [python(minor), "-W", "error", "-I", "-S", "-c", *text_of(remote.command)],
            input=remote.stdin,
            cwd=machine.home,
            env=machine.environment,
            capture_output=True,
            check=True,
        )
        assert (done.stdout[:8], done.stderr) == (b"started ", b"")
        assert attempt.wait().exit_code == 3
        assert attempt.log == b"b\n"
    assert not machine.marked()


def test_a_second_start_starts_nothing_and_says_so(attempt: Attempt) -> None:
    assert attempt.start("echo once; sleep 60") == "started"
    assert attempt.start("echo twice") == "already"
    attempt.stop(0)
    assert attempt.start("echo thrice") == "already"
    assert attempt.log == b"once\n"


def test_of_twenty_starts_at_once_exactly_one_runs(attempt: Attempt) -> None:
    remote = attempt.remote("echo here; sleep 60")
    starters = [attempt.machine.popen(remote.command) for _ in range(20)]
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda one: one.communicate(remote.stdin)[0].split()[0], starters))
    assert sorted(answers) == [b"already"] * 19 + [b"started"]
    attempt.wait_for_log(b"here\n")
    # The task, its watcher and the sampler
    eventually(lambda: len(attempt.machine.marked()) == 3)
    assert attempt.log == b"here\n"


def test_half_an_environment_starts_nothing_and_a_whole_one_then_does(attempt: Attempt) -> None:
    remote = attempt.remote("echo ran", {"A": "1", "B": "x" * 1000})
    for length in (0, 1, 20, len(remote.stdin) - 20, len(remote.stdin) - 2):
        completed = attempt.machine.run(remote.command, remote.stdin[:length])
        with pytest.raises(NodeError, match=r"n: the task was not started: .* arrived incomplete"):
            task_commands.parse_start("n", completed)
    assert attempt.status().state == "absent"
    assert attempt.start("echo ran") == "started"
    attempt.wait()
    assert attempt.log == b"ran\n"


def test_a_missing_work_folder_is_named_and_the_start_can_be_tried_again(attempt: Attempt) -> None:
    (attempt.machine.home / "work").rmdir()
    with pytest.raises(NodeError, match="not started: no folder work"):
        attempt.start("true")
    (attempt.machine.home / "work").mkdir()
    assert attempt.start("true") == "started"


def test_a_folder_that_cannot_be_made_is_named(attempt: Attempt) -> None:
    (attempt.machine.home / ".cloudtrain").write_text("a file")
    with pytest.raises(NodeError, match="attempt-1 cannot be created"):
        attempt.start("true")


DEADLY = """
import os
def _deadly(real, left=[{number}]):
    def call(*arguments, **named):
        left[0] -= 1
        if not left[0] and {when!r} == "before":
            os.kill(os.getpid(), 9)
        try:
            return real(*arguments, **named)
        finally:
            if not left[0]:
                os.kill(os.getpid(), 9)
    return call
os.{call} = _deadly(os.{call})
"""

CALLS = ("makedirs", "pipe", "fork", "setsid", "open", "chdir", "symlink", "write", "execve")


@pytest.mark.sweep(4, per="machine")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("call", CALLS)
def test_a_start_killed_anywhere_never_runs_twice_and_never_hangs(
    attempt: Attempt, call: str, number: int, when: str
) -> None:
    """Starter, watcher or task die by SIGKILL at a call; then the start is sent again."""
    remote = attempt.remote("echo ran; sleep 0.3")
    *words, digest, source = remote.command.arguments[:8]
    texts = ast.literal_eval(source)
    texts["cloudtrain.node.watcher"] = (
        DEADLY.format(call=call, number=number, when=when) + texts["cloudtrain.node.watcher"]
    )
    deadly = Command((*words, f"deadly{digest}", ascii(texts), *remote.command.arguments[8:]))
    process = attempt.machine.popen(deadly)
    process.communicate(remote.stdin, timeout=60)
    answer = attempt.start("echo ran; sleep 0.3")
    assert answer in ("started", "already")
    status = attempt.wait()
    assert attempt.log in (b"ran\n", b"")
    if answer == "started":
        assert (status.state, status.exit_code, attempt.log) == ("exited", 0, b"ran\n")


def test_a_start_killed_at_a_random_moment_never_runs_twice(machine: Machine) -> None:
    seed = random.randrange(1 << 30)
    moments = random.Random(seed)

    def once(number: int) -> None:
        attempt = Attempt(machine, number)
        remote = attempt.remote("echo ran; sleep 0.2")
        process = machine.popen(remote.command)
        assert process.stdin is not None
        process.stdin.write(remote.stdin)
        process.stdin.close()
        time.sleep(moments.random() * 0.03)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        answer = attempt.start("echo ran; sleep 0.2")
        status = attempt.wait()
        assert attempt.log in (b"ran\n", b""), seed
        assert answer != "started" or status.exit_code == 0, seed
        assert status.state in ("exited", "lost"), seed

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(once, range(12)))


def watcher_of(attempt: Attempt) -> int:
    return int(str((attempt.path / "task").readlink()).split(":")[3])


def test_a_task_whose_watcher_was_killed_runs_on_and_is_then_lost(attempt: Attempt) -> None:
    attempt.start("echo up; while ! [ -e ../go ]; do sleep 0.05; done")
    os.kill(watcher_of(attempt), signal.SIGKILL)
    assert attempt.status().state == "running"
    (attempt.machine.home / "go").touch()
    status = attempt.wait()
    assert (status.state, status.exit_code) == ("lost", None)


def test_a_task_that_kills_its_own_group_is_seen_to_end(attempt: Attempt) -> None:
    attempt.start("kill -9 0")
    assert attempt.wait().exit_code == -9


def test_a_record_of_another_boot_is_lost_and_not_taken_for_a_process(attempt: Attempt) -> None:
    attempt.start("sleep 60")
    record = attempt.path / "task"
    pid, start, _, *rest = str(record.readlink()).split(":")
    record.unlink()
    record.symlink_to(":".join([pid, start, "otherboot", *rest]))
    assert attempt.status().state == "lost"


def test_a_reused_process_number_is_not_taken_for_the_task(attempt: Attempt) -> None:
    attempt.path.mkdir(parents=True)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().split("-")[0]
    (attempt.path / "task").symlink_to(f"{os.getpid()}:1:{boot}:{os.getpid()}:1")
    assert attempt.status().state == "lost"
    assert attempt.stop(0) == task_commands.StopResult(termed=0, killed=0)


def test_the_status_shows_the_processes_and_a_frozen_one_as_such(attempt: Attempt) -> None:
    attempt.start("echo up; sleep 61; true")
    attempt.wait_for_log(b"up")

    def states() -> dict[str, str]:
        return {process.name: process.state for process in attempt.status().processes}

    eventually(lambda: states() == {"bash": "S", "sleep": "S"})
    pid = attempt.status().pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: states() == {"bash": "T", "sleep": "S"})


def test_the_stacks_of_a_task_name_its_processes(attempt: Attempt) -> None:
    attempt.start("echo up; sleep 60; true")
    attempt.wait_for_log(b"up")
    dump = attempt.machine.run(task_commands.dump_stacks(attempt.folder, tag=attempt.tag))
    assert f"== {attempt.status().pid} bash, state S".encode() in dump.stdout


def test_a_python_of_a_layer_writes_its_stacks_and_runs_on(
    attempt: Attempt, tmp_path: Path
) -> None:
    (tmp_path / "_cloudtrain_stacks.py").write_text(layer.STACKS_SOURCE)
    code = attempt.machine.home / "work" / "code"
    code.mkdir()
    (code / "train.py").write_text(
        "import _cloudtrain_stacks, signal, time\n"
        "def step():\n"
        "    print('up', flush=True); time.sleep(60)\n"
        "step()\n"
    )
    attempt.start(f"sleep 61 & {PYTHON} code/train.py", {"PYTHONPATH": str(tmp_path)})
    attempt.wait_for_log(b"up")
    for _ in range(2):
        dump = attempt.machine.run(task_commands.dump_stacks(attempt.folder, tag=attempt.tag))
        text = dump.stdout.decode()
        assert text.count('code/train.py", line 3 in step\n') == 1
        assert "code/train.py:     print('up', flush=True); time.sleep(60)\n" in text
    assert attempt.status().state == "running"
    assert {process.name[:6] for process in attempt.status().processes} >= {"python", "sleep"}


def test_a_file_that_has_just_changed_is_seen(attempt: Attempt) -> None:
    work = attempt.machine.home / "work"
    assert attempt.machine.run(task_commands.changed_file("work", 5)).stdout == b""
    (work / "old").write_text("")
    os.utime(work / "old", (0, 0))
    assert attempt.machine.run(task_commands.changed_file("work", 5)).stdout == b""
    (work / "new").write_text("")
    assert (
        attempt.machine.run(task_commands.changed_file("work", 5)).stdout == b"changed work/new\n"
    )
