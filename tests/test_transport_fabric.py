"""Fabric's connections go through the same door as ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.errors import HostKeyMismatch, NodeUnreachable
from cloudtrain.keys import create_identity, pin
from cloudtrain.shell import command
from cloudtrain.transports.fabric import connection
from tests.sshd import SshdNode, free_place, sshd_node

pytestmark = pytest.mark.openssh


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshdNode]:
    with sshd_node(tmp_path_factory.mktemp("fabric")) as server:
        yield server


def test_a_fab_task_runs_commands_and_copies_files(server: SshdNode, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("content")
    with connection(server.node, server.identity) as fab:
        line = command("printf", "%s", "a 'b' $HOME").shell()
        assert fab.run(line, hide=True, in_stream=False).stdout == "a 'b' $HOME"
        fab.put(str(tmp_path / "a file"), str(server.home / "copied"))
    assert (server.home / "copied").read_text() == "content"
    with connection(server.node, server.identity) as fab:
        assert fab.run("exit 3", warn=True, hide=True, in_stream=False).exited == 3


def test_a_connection_can_be_opened_again(server: SshdNode) -> None:
    fab = connection(server.node, server.identity)
    for _ in range(2):
        assert fab.run("echo on", hide=True, in_stream=False).stdout == "on\n"
        fab.close()


def test_another_host_key_is_refused(server: SshdNode, tmp_path: Path) -> None:
    other = create_identity(tmp_path / "other", [server.node.name])
    pin(other, [server.node])
    identity = dataclasses.replace(server.identity, known_hosts=other.known_hosts)
    with pytest.raises(HostKeyMismatch, match="not the one that was put on the node"):
        connection(server.node, identity).run("true", hide=True, in_stream=False)


def test_a_host_that_is_not_pinned_is_refused(server: SshdNode, tmp_path: Path) -> None:
    identity = dataclasses.replace(server.identity, known_hosts=tmp_path / "none")
    with pytest.raises(HostKeyMismatch, match="no key is pinned"):
        connection(server.node, identity).run("true", hide=True, in_stream=False)


def test_a_closed_port_is_unreachable(server: SshdNode) -> None:
    address, port = free_place()
    node = dataclasses.replace(server.node, address=address, ssh_port=port)
    with pytest.raises(NodeUnreachable, match="refused"):
        connection(node, server.identity).run("true", hide=True, in_stream=False)
