"""The Python that stays on a node and runs one program after the other, each as if alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

import pytest

from cloudtrain.core import ship
from cloudtrain.core.errors import NodeError, NodeUnreachable
from cloudtrain.core.model import Node
from cloudtrain.core.shell import Command, script
from cloudtrain.ssh.channel_io import ChannelEnded, TooMuch
from cloudtrain.ssh.resident import Section
from cloudtrain.ssh.transport import SshTransport
from tests.support.fakes import eventually
from tests.support.pythons import python
from tests.support.sshd import SshdNode

TOKEN = b"\1token"


def run(text: str, *arguments: str) -> Command:
    """A program for the node's Python, as all of node/ are sent."""
    return script(ship.START, text, *arguments)


PARENT = "import os; print(os.getppid())"


def resident(ssh: SshTransport, node: Node) -> int:
    return int(ssh.run(node, run(PARENT)).stdout)


# ── a program has all that is its own ──────────────────────────────────────────

FACTS = """
import gc, json, os, signal, sys
print(json.dumps({
    "arguments": sys.argv,
    "name": __name__,
    "folder": os.getcwd(),
    "mask": os.umask(0),
    "leads": [os.getpid() == os.getsid(0), os.getpid() == os.getpgid(0)],
    "files": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    "blocks": [os.get_blocking(file) for file in (0, 1, 2)],
    "variables": sorted(set(os.environ) - {"SSH_CLIENT", "SSH_CONNECTION"}),
    "signals": [str(signal.getsignal(each)) for each in sorted(signal.valid_signals())],
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "wakes": signal.set_wakeup_fd(-1),
    "oom": open("/proc/self/oom_score_adj").read(),
    "flags": str(sys.flags),
    "collects": gc.isenabled(),
    "stdin": sys.stdin.read(),
}))
"""


@pytest.mark.openssh
def test_a_program_is_like_one_that_was_started_alone(ssh: SshTransport, node: Node) -> None:
    alone = Command(("env", *run(FACTS, "a b", "Grüße").arguments))
    expected = json.loads(ssh.run(node, alone, stdin=b"all").stdout)
    for _ in range(2):
        assert (
            json.loads(ssh.run(node, run(FACTS, "a b", "Grüße"), stdin=b"all").stdout) == expected
        )


@pytest.mark.openssh
def test_what_one_changes_is_not_the_next_one_s(ssh: SshTransport, node: Node) -> None:
    before = ssh.run(node, run(FACTS)).stdout
    spoils = """
import os, signal, sys
os.chdir("/"), os.umask(0o777), os.set_blocking(1, False), os.set_blocking(2, False)
os.environ["OWN"] = "1"
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.dup(1)
del sys.modules["os"]
"""
    assert ssh.run(node, run(spoils)).exit_code == 0
    assert ssh.run(node, run(FACTS)).stdout == before


@pytest.mark.openssh
def test_all_programs_of_a_node_have_one_python(ssh: SshTransport, node: Node) -> None:
    assert resident(ssh, node) == resident(ssh, node)


@pytest.mark.openssh
def test_programs_side_by_side_have_one_each_and_one_is_kept(ssh: SshTransport, node: Node) -> None:
    first, answers = resident(ssh, node), SimpleQueue[bytes]()
    lines = SimpleQueue[bytes | None]()
    waits = f"{PARENT}; import sys; sys.stdout.flush(); sys.stdin.read()"
    thread = threading.Thread(
        target=ssh.run,
        args=(node, run(waits)),
        kwargs={"stdin": iter(lines.get, None), "on_stdout": answers.put},
    )
    thread.start()
    assert int(answers.get(timeout=30)) == first
    other = resident(ssh, node)
    assert other != first
    assert resident(ssh, node) == other
    lines.put(None)
    thread.join(60)
    assert resident(ssh, node) in (first, other)
    eventually(lambda: len(alive(first, other)) == 1)


def alive(*processes: int) -> list[int]:
    return [each for each in processes if Path(f"/proc/{each}").exists()]


# ── outputs, inputs, ends ──────────────────────────────────────────────────────


@pytest.mark.openssh
def test_outputs_and_exit_codes_are_as_of_a_command(ssh: SshTransport, node: Node) -> None:
    said = "import sys; sys.stdout.write('out'); sys.stderr.write('err'); sys.exit(3)"
    done = ssh.run(node, run(said))
    assert (done.exit_code, done.stdout, done.stderr) == (3, b"out", b"err")
    done = ssh.run(node, run("import sys; sys.exit('why')"))
    assert (done.exit_code, done.stderr) == (1, b"why\n")
    done = ssh.run(node, run("1 / 0"))
    assert done.exit_code == 1
    assert done.stderr.endswith(b"\nZeroDivisionError: division by zero\n")
    done = ssh.run(node, run("import os; os.kill(os.getpid(), 9)"))
    assert (done.exit_code, done.stdout) == (-9, b"")


@pytest.mark.openssh
def test_every_byte_survives_in_both_directions(ssh: SshTransport, node: Node) -> None:
    data = bytes(range(256)) * 20_000
    echo = "import shutil, sys; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)"
    assert ssh.run(node, run(echo), stdin=data).stdout == data
    pieces = iter([data[:1], b"", data[1:1000], data[1000:]])
    assert ssh.run(node, run(echo), stdin=pieces).stdout == data
    assert ssh.run(node, run(echo)).stdout == b""


@pytest.mark.openssh
def test_a_program_need_not_read_its_input(
    ssh: SshTransport, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.ssh.resident._FED", 60.0)  # a busy node takes it in slowly
    first = resident(ssh, node)
    data = bytes(5 << 20)
    assert ssh.run(node, run("pass"), stdin=data).exit_code == 0
    closes = "import os, time; os.close(0); time.sleep(0.3); print('done')"
    assert ssh.run(node, run(closes), stdin=data).stdout == b"done\n"
    assert resident(ssh, node) == first


@pytest.mark.openssh
def test_a_program_whose_input_never_ends_has_no_next_one(
    ssh: SshTransport, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.ssh.channel_io._FEEDER_GRACE", 0.0)
    first = resident(ssh, node)
    lines = SimpleQueue[bytes]()
    lines.put(b"word")
    done = ssh.run(node, run("import os; print(os.read(0, 4))"), stdin=iter(lines.get, b""))
    assert done.stdout == b"b'word'\n"
    lines.put(b"")
    assert resident(ssh, node) != first


@pytest.mark.openssh
def test_what_a_program_leaves_running_keeps_nobody(ssh: SshTransport, node: Node) -> None:
    leaves = """
import os, time
if os.fork(): os._exit(0)
os.setsid()
for file in (0, 1, 2): os.dup2(os.open(os.devnull, os.O_RDWR), file)
open("left", "w").write(str(os.getpid()))
time.sleep(600)
"""
    assert ssh.run(node, run(leaves), timeout=30).exit_code == 0
    eventually(lambda: ssh.ask(node, "cat left").stdout != b"")
    left = int(ssh.ask(node, "cat left").stdout)
    assert alive(left)
    os.kill(left, signal.SIGKILL)


@pytest.mark.openssh
def test_an_answer_without_end_is_given_up(
    ssh: SshTransport, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.ssh.channel_io.MOST", 1 << 20)
    with pytest.raises(NodeError, match=r"its answer to .* exceeds 1 MB"):
        ssh.run(node, run("while True: print('y' * 1000)"))
    assert ssh.run(node, run("print('well')")).stdout == b"well\n"


@pytest.mark.openssh
def test_silence_is_an_error(ssh: SshTransport, node: Node) -> None:
    with pytest.raises(NodeUnreachable, match=r"no data from the node for 0\.3 s while"):
        ssh.run(node, run("import time; time.sleep(600)"), timeout=0.3)


# ── a client, a Python or a node that is gone ──────────────────────────────────


@pytest.mark.openssh
def test_one_that_was_killed_while_it_waited_is_replaced(ssh: SshTransport, node: Node) -> None:
    first = resident(ssh, node)
    os.kill(first, signal.SIGKILL)
    eventually(lambda: not alive(first))
    while True:
        with suppress(NodeUnreachable):  # its end may come while the next program is sent
            assert resident(ssh, node) != first
            break


@pytest.mark.openssh
def test_one_that_was_killed_under_a_program_is_a_node_that_was_lost(
    ssh: SshTransport, node: Node
) -> None:
    kills = "import os, time; os.kill(os.getppid(), 9); time.sleep(0.2)"
    with pytest.raises(NodeUnreachable, match="the node ended the session while"):
        ssh.run(node, run(kills))
    assert ssh.run(node, run("print('well')")).stdout == b"well\n"


@pytest.mark.openssh
def test_a_client_that_is_gone_ends_the_input_and_the_python(server: SshdNode, node: Node) -> None:
    waits = f"{PARENT}; import sys; sys.stdout.flush(); sys.stdin.read(); open('ended', 'w')"
    with SshTransport(server.identity) as ssh:
        heard, never = SimpleQueue[bytes](), SimpleQueue[bytes]()

        def converse() -> None:
            with suppress(NodeUnreachable):
                ssh.run(node, run(waits), stdin=iter(never.get, b""), on_stdout=heard.put)

        thread = threading.Thread(target=converse, daemon=True)
        thread.start()
        first = int(heard.get(timeout=30))
    eventually(lambda: not alive(first))
    eventually((server.home / "ended").exists)
    never.put(b"")
    thread.join(60)


@pytest.mark.openssh
@pytest.mark.parametrize("stdin", [b"", iter([b"word"])])
def test_a_node_without_python_says_what_to_install(
    ssh: SshTransport,
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    stdin: bytes | Iterator[bytes],
) -> None:
    missing = ship.START.replace("-v python3", "-v no-such-python")
    monkeypatch.setattr(ship, "resident", lambda: script(missing, "pass"))
    done = ssh.run(node, run("pass"), stdin=stdin)
    assert (done.exit_code, done.stdout) == (127, b"")
    assert done.stderr.decode() == f"{ship.NO_PYTHON}\n"


@pytest.mark.openssh
def test_a_node_that_takes_no_request_is_silent(
    ssh: SshTransport, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.ssh.resident._AT_ONCE", 1 << 30)
    monkeypatch.setattr(ship, "resident", lambda: script("sleep 600"))
    with pytest.raises(NodeUnreachable, match="no data from the node for"):
        ssh.run(node, run("pass"), stdin=bytes(16 << 20), timeout=0.3)


# ── the node's side, by itself ─────────────────────────────────────────────────


@pytest.mark.parametrize("minor", [6, 7, 9, 12, 13])
def test_any_python_from_3_6_on_is_one(minor: int, tmp_path: Path) -> None:
    text = ship.resident().arguments[4]
    echo = b"import sys; print(sys.argv[1], sys.stdin.read(), sys.version_info[1])"
    request = b"\1t %d 3\n%s" % (len(echo), echo) + b"arg4\nword0\n"
    ends = b"import os; os.kill(os.getpid(), 15)"
    request += b"\1u %d\n%s0\n" % (len(ends), ends)
    done = subprocess.run(
        [python(minor), "-W", "error", "-I", "-S", "-c", text],
        input=request,
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == b"<\1targ word %d\n\1t 0>\1u -15>" % minor
    assert done.stderr == b"<\1t\1t 0>\1u -15>"


# ── marks ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_marks_are_found_however_bytes_are_split(size: int) -> None:
    data = b"banner <\1tok\n<\1token\1 text \1toke\n\1token -9>"
    taken: list[bytes] = []
    section = Section(TOKEN, taken.append)
    for at in range(0, len(data), size):
        section.feed(data[at : at + size])
    assert b"".join(taken) == b"\1 text \1toke\n"
    assert (section.is_over, section.code) == (True, -9)


def test_what_cannot_be_a_mark_is_passed_on_at_once() -> None:
    taken: list[bytes] = []
    section = Section(TOKEN, taken.append)
    section.feed(b"<\1tokenline\n")
    assert taken == [b"line\n"]
    section.feed(b"half\1to")
    assert taken[1:] == [b"half"]


def test_a_node_whose_answer_never_begins_is_given_up() -> None:
    section = Section(TOKEN, print)
    section.feed(bytes(1 << 20))
    with pytest.raises(TooMuch):
        section.feed(b"\0")


@pytest.mark.parametrize("code", [b"word>", b"", b"1" * 5000])
def test_a_mark_with_no_exit_code_is_no_answer(code: bytes) -> None:
    section = Section(TOKEN, print)
    with pytest.raises(ChannelEnded, match="invalid exit code"):
        section.feed(b"<\1token\1token " + code + b"padding of the rest>")
