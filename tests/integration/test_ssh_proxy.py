"""SSH through a jump host, against OpenSSH's own programs: nodes that nothing else reaches."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.core.errors import HostKeyMismatch, NodeUnreachable
from cloudtrain.core.model import Node
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.shell import command, script
from cloudtrain.ssh import sockets
from cloudtrain.ssh.keys import create_identity, ssh_config, write_known_hosts
from cloudtrain.ssh.sockets import AT_ONCE, ProxySocket, connect
from cloudtrain.ssh.ssh_proxy import ProxyFailed, jump_command
from cloudtrain.ssh.transport import SshTransport
from tests.support.behind import Behind, behind_jump_host, users_ssh
from tests.support.sshd import eventually

pytestmark = pytest.mark.openssh

NAMES = [f"mnist-worker{number}" for number in range(12)]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    with behind_jump_host(tmp_path_factory.mktemp("behind"), NAMES) as found:
        yield found


@pytest.fixture
def behind(servers: Behind, monkeypatch: pytest.MonkeyPatch) -> Iterator[Behind]:
    monkeypatch.setenv("PATH", f"{servers.programs}:{os.environ['PATH']}")
    servers.jump.options = ()
    servers.jump.logins = servers.jump.at_once = 0
    yield servers
    eventually(lambda: not proxies(servers))
    servers.jump.cut()


def through(behind: Behind, number: int = 0) -> Node:
    """The node as a provider lists it."""
    node = behind.nodes[number].node
    words = jump_command(behind.jump.name, node.address, node.ssh_port)
    return dataclasses.replace(node, ssh_proxy=words)


def proxies(behind: Behind) -> list[str]:
    """Programs that connections of this process go through."""
    return [line for line in running(behind.programs) if " -W " in line]


def running(path: Path) -> list[str]:
    """Command lines that name the path."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(line.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if str(path) in line]


def test_a_node_that_nothing_else_reaches_is_reached_through_the_jump_host(behind: Behind) -> None:
    node = through(behind)
    with SshTransport(behind.nodes[0].identity, connect_timeout=2.0) as ssh:
        with pytest.raises(NodeUnreachable, match="connection refused"):
            ssh.ask(dataclasses.replace(node, ssh_proxy=()), ":")
        assert ssh.ask(node, "pwd").stdout.decode() == f"{behind.nodes[0].home}\n"
        sent = os.urandom(8 << 20)
        done = ssh.run(node, command("sha256sum"), stdin=sent)
        assert done.stdout.decode().split()[0] == hashlib.sha256(sent).hexdigest()
        assert len(ssh.run(node, script("head -c 8388608 /dev/zero")).stdout) == 8 << 20
    assert behind.jump.logins == 1, "one connection for all of it"


def test_the_hosts_key_stays_pinned_behind_the_jump_host(behind: Behind, tmp_path: Path) -> None:
    stranger = create_identity(tmp_path, [NAMES[0]])
    with SshTransport(stranger) as ssh, pytest.raises(HostKeyMismatch, match="another machine"):
        ssh.ask(through(behind), ":")


def test_the_program_ends_with_its_connection(behind: Behind) -> None:
    with SshTransport(behind.nodes[0].identity) as ssh:
        ssh.ask(through(behind), ":")
        assert len(proxies(behind)) == 1
    eventually(lambda: not proxies(behind))
    eventually(lambda: not behind.jump.alive())


def test_a_connection_that_breaks_is_an_error_and_the_next_command_opens_another(
    behind: Behind,
) -> None:
    node = through(behind)
    with SshTransport(behind.nodes[0].identity) as ssh:
        ssh.ask(node, ":")
        threading.Timer(0.5, behind.jump.cut).start()
        with pytest.raises(NodeUnreachable, match="while `exec sleep 30` ran"):
            ssh.run(node, command("sleep", "30"))
        assert ssh.ask(node, "echo again").stdout == b"again\n"


def test_many_nodes_log_in_to_the_jump_host_a_few_at_a_time(behind: Behind) -> None:
    nodes = [through(behind, number) for number in range(len(NAMES))]
    with SshTransport(behind.nodes[0].identity) as ssh:
        asked = fan_out(nodes, lambda node: ssh.ask(node, "echo here").stdout, name=str)
        assert asked == [b"here\n"] * len(nodes)
        assert behind.jump.logins == len(nodes)
    assert AT_ONCE < 10, "below the default of MaxStartups, 10:30:100"


def test_closing_wakes_those_that_wait_for_their_turn_and_for_an_answer(
    behind: Behind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = program(tmp_path, "silent", "exec sleep 600")
    nodes = [
        dataclasses.replace(through(behind, number), ssh_proxy=(str(silent),))
        for number in range(len(NAMES))
    ]
    with SshTransport(behind.nodes[0].identity, connect_timeout=600.0) as ssh:
        ended: list[BaseException] = []

        def ask(node: Node) -> None:
            try:
                ssh.ask(node, ":")
            except NodeUnreachable as error:
                ended.append(error)

        threads = [threading.Thread(target=ask, args=(node,)) for node in nodes]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        ssh.close()
        for thread in threads:
            thread.join(60)
        assert len(ended) == len(nodes)
    eventually(lambda: not running(silent))


# ── What goes wrong at a jump host ───────────────────────────────────────────


def refusal(behind: Behind, words: tuple[str, ...]) -> NodeUnreachable:
    node = dataclasses.replace(behind.nodes[0].node, ssh_proxy=words)
    with (
        SshTransport(behind.nodes[0].identity) as ssh,
        pytest.raises(NodeUnreachable) as refused,
    ):
        ssh.ask(node, ":")
    return refused.value


def test_a_key_that_the_jump_host_does_not_know_ends_the_wait_for_a_boot(
    behind: Behind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_identity(tmp_path / "keys", ["jump"])
    (tmp_path / "keys" / "known").write_text((behind.jump.folder / "known").read_text())
    users_ssh(tmp_path, tmp_path / "keys")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    error = refusal(behind, through(behind).ssh_proxy)
    assert "Permission denied (publickey)" in error.message
    assert "the jump host accepts none of your keys" in str(error.hint)
    assert error.lasting
    assert error.exit_code == 4


def test_a_jump_host_with_another_host_key_is_refused(
    behind: Behind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_identity(tmp_path / "keys", ["jump"])
    (tmp_path / "keys" / "known").touch()
    users_ssh(tmp_path, tmp_path / "keys")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    error = refusal(behind, through(behind).ssh_proxy)
    assert "Host key verification failed" in error.message
    assert "log in to the jump host once" in str(error.hint)
    assert error.lasting


def test_a_node_that_does_not_run_yet_is_part_of_a_boot(behind: Behind) -> None:
    error = refusal(behind, jump_command(behind.jump.name, "127.9.9.9", 22))
    assert "open failed: connect failed: Connection refused" in error.message
    assert "the jump host does not reach the node" in str(error.hint)
    assert not error.lasting


def test_a_jump_host_that_forwards_nothing_is_named(behind: Behind) -> None:
    behind.jump.options = ("-o", "AllowTcpForwarding=no")
    error = refusal(behind, through(behind).ssh_proxy)
    assert "administratively prohibited" in error.message
    assert "AllowTcpForwarding" in str(error.hint)
    assert error.lasting


def test_a_jump_host_that_accepts_no_more_logins_is_tried_again(behind: Behind) -> None:
    """Its sshd drops a connection without a word: MaxStartups."""
    behind.jump.options = ("-o", "Banner=/dev/null", "-V")
    error = refusal(behind, through(behind).ssh_proxy)
    assert "kex_exchange_identification" in error.message
    assert "MaxStartups" in str(error.hint)
    assert not error.lasting


def test_no_ssh_at_all(behind: Behind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = through(behind).ssh_proxy
    monkeypatch.setenv("PATH", str(tmp_path))
    error = refusal(behind, words)
    assert error.message == f"{NAMES[0]}: ssh: command not found"
    assert error.hint == "install the OpenSSH client"
    assert error.lasting


# ── OpenSSH's own programs ───────────────────────────────────────────────────


def test_plain_ssh_and_scp_go_through_the_jump_host_by_the_written_config(
    behind: Behind, tmp_path: Path
) -> None:
    nodes = [through(behind, 0), through(behind, 1)]
    identity = dataclasses.replace(
        behind.nodes[0].identity, known_hosts=tmp_path / "a folder with 100 %h"
    )
    write_known_hosts(identity, nodes)
    config = tmp_path / "config"
    config.write_text(ssh_config(identity, nodes))
    arguments = ["-F", str(config), "-o", "BatchMode=yes"]
    done = subprocess.run(
        ["ssh", *arguments, NAMES[1], "pwd"], capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{behind.nodes[1].home}\n", done.stderr
    (tmp_path / "file").write_text("text")
    copied = ["scp", *arguments, str(tmp_path / "file"), f"{NAMES[0]}:copied"]
    subprocess.run(copied, check=True, capture_output=True)
    assert (behind.nodes[0].home / "copied").read_text() == "text"
    assert behind.jump.logins == 2


# ── Any program ──────────────────────────────────────────────────────────────


def program(folder: Path, name: str, line: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_program_that_ends_at_once_is_quoted_with_its_exit_code(tmp_path: Path) -> None:
    wrong = program(tmp_path, "wrong", "echo one >&2; printf 'two \\033[31m\\n' >&2; exit 7")
    said = "wrong ended with exit code 7: one; two  [31m"
    with pytest.raises(ProxyFailed, match=re.escape(said)):
        connect([str(wrong)])


def test_a_program_that_gives_no_connection_is_ended_at_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = program(tmp_path, "slow", "echo waiting for a browser >&2; sleep 600 & wait")
    opened = ProxySocket([str(slow)])
    with pytest.raises(ProxyFailed, match=r"no connection within 0.5 s: waiting for a browser"):
        opened.await_answer(0.5)
    opened.close()
    eventually(lambda: not running(slow))


def test_a_program_that_heeds_neither_the_end_of_its_input_nor_term_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "PROXY_END", 0.2)
    stubborn = program(
        tmp_path, "stubborn", "trap '' TERM; echo SSH-2.0-x; while :; do sleep 0.1; done"
    )
    opened = connect([str(stubborn)])
    assert opened.recv(9) == b"SSH-2.0-x"
    opened.close()
    eventually(lambda: not running(stubborn))


def test_an_argument_reaches_the_program_as_it_is_and_no_shell(tmp_path: Path) -> None:
    told = program(tmp_path, "told", 'printf "%s\\n" "$#" "$@"; cat >/dev/null')
    words = [str(told), "$(touch made)", "a b", "`id`", "%h", "'"]
    opened = connect(words)
    text = b""
    while text.count(b"\n") < 6:
        text += opened.recv(1000)
    opened.close()
    assert text.decode().splitlines() == ["5", *words[1:]]
    assert not (tmp_path / "made").exists()
