"""The SSH transport against OpenSSH's own server."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import paramiko
import pytest

from cloudtrain.core.errors import HostKeyMismatch, NodeError, NodesError, NodeUnreachable
from cloudtrain.core.model import Node
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.shell import command, script
from cloudtrain.ssh.keys import create_identity
from cloudtrain.ssh.transport import SshTransport
from tests.support.sshd import SshdNode, sshd_node, sshd_nodes

pytestmark = pytest.mark.openssh

MEGABYTE = 1 << 20


def test_a_command_starts_in_the_home_of_the_node(
    ssh: SshTransport, node: Node, server: SshdNode
) -> None:
    assert ssh.run(node, command("pwd")).stdout.decode() == f"{server.home}\n"
    assert ssh.ask(node, "pwd").stdout.decode() == f"{server.home}\n"


def test_outputs_and_exit_code_come_back_apart(ssh: SshTransport, node: Node) -> None:
    completed = ssh.run(node, script("printf out; printf err >&2; exit 3"))
    assert (completed.exit_code, completed.stdout, completed.stderr) == (3, b"out", b"err")


@pytest.mark.parametrize("line", ["exec yes", "exec yes >&2"])
def test_an_answer_without_end_is_given_up(
    ssh: SshTransport, node: Node, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr("cloudtrain.ssh.channel_io.MOST", 1 << 20)
    monkeypatch.setattr("cloudtrain.ssh.channel_io.MOST", 1 << 20)
    with pytest.raises(NodeError, match=f"{node.name}: its answer to .* exceeds 1 MB"):
        ssh.run(node, script(line))
    with pytest.raises(NodeError, match=f"{node.name}: its answer to .* exceeds 1 MB"):
        ssh.ask(node, line)
    assert ssh.ask(node, "echo well").stdout == b"well\n"


def test_a_signal_is_a_negative_exit_code(ssh: SshTransport, node: Node) -> None:
    assert ssh.run(node, script("kill -9 $$")).exit_code == -9
    assert ssh.run(node, script("kill -HUP $$")).exit_code == -1
    assert ssh.run(node, script("sh -c 'kill -9 $$'; exit $?")).exit_code == 137


def test_a_program_that_does_not_exist_is_127(ssh: SshTransport, node: Node) -> None:
    assert ssh.run(node, command("no-such-program")).exit_code == 127


HORRORS = [
    "",
    " ",
    "a b",
    "$(touch executed)",
    "`touch executed`",
    "; touch executed;",
    "'",
    '"',
    'it\'s "both"',
    "\\",
    "\\'",
    "line\nbreak",
    "tab\tstop",
    "*",
    "~",
    "!!",
    "#",
    "a=b",
    "-n",
    "Grüße 模型 🚂",
    "\udcff\udc80",
    '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}',
]


def test_arguments_arrive_byte_for_byte_and_execute_nothing(
    ssh: SshTransport, node: Node, server: SshdNode
) -> None:
    completed = ssh.run(node, command("printf", "%s\\0", *HORRORS))
    expected = b"".join(os.fsencode(horror) + b"\0" for horror in HORRORS)
    assert completed.stdout == expected
    assert not (server.home / "executed").exists()


def test_every_byte_survives_in_both_directions(ssh: SshTransport, node: Node) -> None:
    data = bytes(range(256)) * 100
    assert ssh.run(node, command("cat"), stdin=data).stdout == data
    assert ssh.run(node, script("cat >&2"), stdin=data).stderr == data


def test_64_megabytes_go_both_ways_at_once(ssh: SshTransport, node: Node) -> None:
    block = os.urandom(MEGABYTE)
    received = hashlib.sha256()
    completed = ssh.run(
        node,
        command("cat"),
        stdin=(block for _ in range(64)),
        on_stdout=received.update,
        timeout=60,
    )
    assert completed.exit_code == 0
    assert completed.stdout == b""
    assert received.hexdigest() == hashlib.sha256(block * 64).hexdigest()


def test_both_outputs_may_be_larger_than_any_window(ssh: SshTransport, node: Node) -> None:
    flood = "head -c 12000000 /dev/zero >&2; head -c 12000000 /dev/zero"
    completed = ssh.run(node, script(flood), timeout=60)
    assert len(completed.stdout) == len(completed.stderr) == 12_000_000


def test_streams_survive_a_change_of_keys(
    ssh: SshTransport, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paramiko.Packetizer, "REKEY_BYTES", MEGABYTE)
    block = os.urandom(MEGABYTE)
    completed = ssh.run(node, command("cat"), stdin=[block] * 16, timeout=60)
    assert completed.stdout == block * 16


def test_a_command_that_reads_no_input_is_no_error(ssh: SshTransport, node: Node) -> None:
    completed = ssh.run(node, command("true"), stdin=(b"x" * MEGABYTE for _ in range(64)))
    assert completed.exit_code == 0
    assert ssh.run(node, command("head", "-c", "3"), stdin=b"abcdef" * MEGABYTE).stdout == b"abc"


def test_a_failing_source_of_input_fails_the_run(ssh: SshTransport, node: Node) -> None:
    def source() -> Iterator[bytes]:
        yield b"some"
        raise FileNotFoundError("model.bin went away")

    with pytest.raises(FileNotFoundError, match="went away"):
        ssh.run(node, command("cat"), stdin=source())
    assert ssh.run(node, command("echo", "next")).stdout == b"next\n"


def test_a_failing_handler_ends_the_command(ssh: SshTransport, node: Node) -> None:
    def handler(_: bytes) -> None:
        raise OSError("disk full here")

    with pytest.raises(OSError, match="disk full here"):
        ssh.run(node, command("yes"), on_stdout=handler)


def test_output_is_handed_over_while_the_command_still_runs(ssh: SshTransport, node: Node) -> None:
    seen = threading.Event()

    def answers() -> Iterator[bytes]:
        assert seen.wait(60)
        yield b"go\n"

    completed = ssh.run(
        node, script("echo ready; read line"), stdin=answers(), on_stdout=lambda _: seen.set()
    )
    assert completed.exit_code == 0


def test_silence_longer_than_the_timeout_is_unreachable(ssh: SshTransport, node: Node) -> None:
    with pytest.raises(NodeUnreachable, match=r"no data from the node for 0\.2 s while"):
        ssh.run(node, command("sleep", "100"), timeout=0.2)
    with pytest.raises(NodeUnreachable, match="no data from"):
        ssh.run(node, script("exec >&- 2>&-; sleep 100"), timeout=0.2)


def test_a_slow_command_that_says_something_is_not_silent(ssh: SshTransport, node: Node) -> None:
    ticks = "for i in 1 2 3 4 5 6 7 8 9 10 11; do sleep 0.2; echo $i; done"
    assert ssh.run(node, script(ticks), timeout=2.0).stdout.endswith(b"\n10\n11\n")


def test_many_threads_use_one_node(ssh: SshTransport, node: Node) -> None:
    """More at once than the ten sessions that OpenSSH allows on one connection."""
    together = threading.Barrier(24)

    def work(number: int) -> tuple[bytes, bytes]:
        together.wait(60)
        asked = ssh.ask(node, f"echo {number}")
        ran = ssh.run(node, script("cat; sleep 0.2; cat"), stdin=str(number).encode())
        return asked.stdout, ran.stdout

    results = fan_out(range(24), work, name=str)
    assert results == [(f"{number}\n".encode(), str(number).encode()) for number in range(24)]


def test_32_nodes_answer_side_by_side(tmp_path: Path) -> None:
    names = [f"many-worker{number}" for number in range(32)]
    with sshd_nodes(tmp_path, names) as servers, SshTransport(servers[0].identity) as ssh:
        nodes = [server.node for server in servers]
        for call in (
            lambda node: ssh.run(node, command("pwd")),
            lambda node: ssh.ask(node, "pwd"),
        ):
            homes = fan_out(nodes, call, name=lambda node: node.name)
            assert [home.stdout.decode().strip() for home in homes] == [
                str(server.home) for server in servers
            ]
        servers[3].stop()
        servers[30].stop()
        with pytest.raises(NodesError) as caught:
            fan_out(nodes, lambda node: ssh.ask(node, "true"), name=lambda node: node.name)
        assert list(caught.value.failures) == ["many-worker3", "many-worker30"]


def test_a_wrong_host_key_is_refused_before_anything_is_sent(
    server: SshdNode, tmp_path: Path
) -> None:
    other = create_identity(tmp_path / "other", [server.node.name])
    identity = dataclasses.replace(server.identity, host_keys=other.host_keys)
    with (
        SshTransport(identity) as ssh,
        pytest.raises(HostKeyMismatch, match="another machine answers at") as caught,
    ):
        ssh.run(server.node, command("touch", "executed"))
    assert caught.value.hint
    assert not (server.home / "executed").exists()


def test_a_node_without_a_pinned_key_is_refused(server: SshdNode) -> None:
    identity = dataclasses.replace(server.identity, host_keys={})
    with SshTransport(identity) as ssh, pytest.raises(HostKeyMismatch, match="no host key"):
        ssh.ask(server.node, "true")


def test_a_server_with_another_kind_of_host_key_is_refused(server: SshdNode) -> None:
    pinned = dataclasses.replace(
        server.identity.host_keys[server.node.name], public="ecdsa-sha2-nistp256 AAAA"
    )
    identity = dataclasses.replace(server.identity, host_keys={server.node.name: pinned})
    with SshTransport(identity) as ssh, pytest.raises(HostKeyMismatch, match="ecdsa"):
        ssh.ask(server.node, "true")


def test_a_user_key_that_the_node_does_not_know_is_said(server: SshdNode, tmp_path: Path) -> None:
    other = create_identity(tmp_path / "other", [])
    identity = dataclasses.replace(server.identity, private_key=other.private_key)
    with SshTransport(identity) as ssh, pytest.raises(NodeUnreachable, match="refuses") as caught:
        ssh.run(server.node, command("true"))
    assert caught.value.hint


def test_a_crash_of_the_session_is_told_and_the_next_command_connects_anew(
    ssh: SshTransport, node: Node, server: SshdNode
) -> None:
    ran = threading.Event()

    def crash() -> None:
        ran.wait(60)
        server.kill_sessions()

    thread = threading.Thread(target=crash)
    thread.start()
    with pytest.raises(NodeUnreachable, match="while `exec sh -c") as caught:
        ssh.run(node, command("sh", "-c", "echo up; sleep 100"), on_stdout=lambda _: ran.set())
    thread.join()
    assert caught.value.node == node.name
    assert caught.value.hint
    assert ssh.run(node, command("echo", "again")).stdout == b"again\n"
    assert ssh.ask(node, "echo again").stdout == b"again\n"


def test_after_a_restart_of_the_server_the_next_call_connects_anew(tmp_path: Path) -> None:
    with sshd_node(tmp_path) as server, SshTransport(server.identity) as ssh:
        assert ssh.ask(server.node, "echo 1").stdout == b"1\n"
        server.stop()
        with pytest.raises(NodeUnreachable):
            ssh.ask(server.node, "echo 2")
        with pytest.raises(NodeUnreachable, match="connection refused"):
            ssh.run(server.node, command("true"))
        server.start()
        server.await_start()
        assert ssh.ask(server.node, "echo 3").stdout == b"3\n"
        assert ssh.run(server.node, command("echo", "4")).stdout == b"4\n"


def test_close_ends_what_other_threads_wait_for(server: SshdNode) -> None:
    ssh = SshTransport(server.identity)
    running = threading.Barrier(3)
    errors: list[BaseException] = []

    def wait(call: partial[object]) -> None:
        try:
            call()
        except NodeUnreachable as error:
            errors.append(error)

    def note(_: bytes) -> None:
        running.wait(60)

    long = script("echo up; exec sleep 100")
    calls = [partial(ssh.run, server.node, long, on_stdout=note) for _ in range(2)]
    threads = [threading.Thread(target=wait, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    running.wait(60)
    ssh.close()
    for thread in threads:
        thread.join(60)
    assert len(errors) == 2
    with pytest.raises(NodeUnreachable, match="were closed"):
        ssh.ask(server.node, "true")


def test_the_key_may_be_unreadable(server: SshdNode, tmp_path: Path) -> None:
    identity = dataclasses.replace(server.identity, private_key=tmp_path / "none")
    with SshTransport(identity) as ssh, pytest.raises(Exception, match="cannot be read") as caught:
        ssh.ask(server.node, "true")
    assert caught.value.exit_code == 4  # type: ignore[attr-defined]
