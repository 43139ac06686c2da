"""What the SSH transport makes of machines and networks that do not behave."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
import pytest

from cloudtrain.core.errors import NodeUnreachable
from cloudtrain.core.model import Identity, Node
from cloudtrain.core.shell import command
from cloudtrain.ssh.connection import BROKEN
from cloudtrain.ssh.keys import create_identity
from cloudtrain.ssh.transport import SshTransport
from tests.support.sshd import SshdNode, eventually, free_place


@pytest.fixture
def identity(tmp_path: Path) -> Identity:
    return create_identity(tmp_path / "identity", ["test-chief0"])


def node_at(address: str, port: int) -> Node:
    return Node(
        name="test-chief0",
        role="chief",
        index=0,
        state="running",
        address=address,
        internal=address,
        ssh_port=port,
    )


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[Node]:
    """A server that does `serve` with each connection."""
    address, port = free_place()
    with socket.create_server((address, port)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    serve(listener.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        yield node_at(address, port)
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def reason(identity: Identity, node: Node, timeout: float = 10.0) -> NodeUnreachable:
    with (
        SshTransport(identity, connect_timeout=timeout) as ssh,
        pytest.raises(NodeUnreachable) as caught,
    ):
        ssh.run(node, command("true"))
    assert caught.value.hint, "says what to do next"
    return caught.value


def test_a_closed_port_is_said_as_such(identity: Identity) -> None:
    address, port = free_place()
    assert str(reason(identity, node_at(address, port))) == (
        f"test-chief0: nothing listens for SSH at {address}:{port} (connection refused)"
    )


def test_a_name_that_does_not_resolve_is_said_as_such(identity: Identity) -> None:
    assert "'no such host' cannot be resolved" in str(reason(identity, node_at("no such host", 22)))


def test_a_server_that_says_nothing_is_given_up(identity: Identity) -> None:
    kept: list[socket.socket] = []
    with listening(kept.append) as node:
        assert "the SSH handshake" in str(reason(identity, node, timeout=0.3))


def test_a_server_that_stops_after_its_greeting_is_given_up(identity: Identity) -> None:
    kept: list[socket.socket] = []

    def greet(near: socket.socket) -> None:
        near.sendall(b"SSH-2.0-Frozen\r\n")
        kept.append(near)

    with listening(greet) as node:
        assert "the SSH handshake" in str(reason(identity, node, timeout=0.3))


def test_a_server_that_hangs_up_is_said_as_such(identity: Identity) -> None:
    with listening(socket.socket.close) as node:
        assert "something answers" in str(reason(identity, node))


def test_a_web_server_is_no_node(identity: Identity) -> None:
    def serve(near: socket.socket) -> None:
        near.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
        near.close()

    with listening(serve) as node:
        assert "something answers" in str(reason(identity, node))


def test_paramiko_prints_nothing_of_its_own(
    identity: Identity, capfd: pytest.CaptureFixture[str]
) -> None:
    with listening(socket.socket.close) as node:
        reason(identity, node)
    logging.getLogger("paramiko.transport").error("a line that nobody asked for")
    assert capfd.readouterr() == ("", "")


MASKED = """
import sys
import cloudtrain.ssh.connection
slow = {"invoke", "importlib.metadata", "email", "zipfile"} & sys.modules.keys()
from importlib import metadata
print(slow, metadata.version("paramiko") == metadata.version("paramiko"), metadata.__file__ != "")
mask = cloudtrain.ssh.connection._Metadata("importlib.metadata")
print(mask.version("paramiko"), mask.version("click") == metadata.version("click"))
"""


def test_paramiko_s_import_loads_no_invoke_and_no_metadata_and_leaves_the_real_ones() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MASKED], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set() True True\ncloudtrain True\n"


def test_everything_that_paramiko_raises_is_mapped() -> None:
    errors = dict(inspect.getmembers(paramiko.ssh_exception, inspect.isclass))
    strangers = {
        name
        for name, error in errors.items()
        if issubclass(error, Exception) and not issubclass(error, BROKEN)
    }
    assert len(errors) > 8
    assert strangers == set()


class Cable:
    """A TCP proxy to a node that can be cut (reset) or go dark (a black hole)."""

    def __init__(self, server: SshdNode) -> None:
        self._light = threading.Event()
        self._light.set()
        self._ends: list[socket.socket] = []
        address, port = free_place()
        self._listener = socket.create_server((address, port))
        self._target = server.place
        self.node = dataclasses.replace(server.node, address=address, ssh_port=port)
        threading.Thread(target=self._accept, daemon=True).start()

    def go_dark(self) -> None:
        self._light.clear()

    def light_up(self) -> None:
        self._light.set()

    def cut(self) -> None:
        for end in self._ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._ends.clear()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.light_up()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                far = socket.create_connection(self._target)
                self._ends += (near, far)
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._light.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@pytest.fixture
def cable(server: SshdNode) -> Iterator[Cable]:
    cable = Cable(server)
    yield cable
    cable.close()


@pytest.mark.openssh
def test_a_reset_in_the_middle_of_a_command_is_unreachable(server: SshdNode, cable: Cable) -> None:
    def cut(_: bytes) -> None:
        cable.cut()

    with SshTransport(server.identity) as ssh:
        with pytest.raises(NodeUnreachable, match="while `exec yes` ran"):
            ssh.run(cable.node, command("yes"), on_stdout=cut)
        assert ssh.run(cable.node, command("echo", "again")).stdout == b"again\n"


def breaking(patch: pytest.MonkeyPatch, number: int) -> None:
    """From now on paramiko finds the socket closed at its n-th message and at all later ones, which
    it tells whoever sends by an EOFError; its reading thread may notice only later.
    """
    send, sent = paramiko.Transport._send_user_message, itertools.count(1)  # type: ignore[attr-defined]

    def broken(transport: paramiko.Transport, data: paramiko.Message) -> None:
        if next(sent) >= number:
            raise EOFError
        send(transport, data)

    patch.setattr(paramiko.Transport, "_send_user_message", broken)


@pytest.mark.openssh
@pytest.mark.parametrize("number", range(1, 6))
def test_a_connection_that_breaks_at_any_message_of_a_command_is_unreachable(
    server: SshdNode, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A session's opening, the command, the end of its input, then room for more output."""
    with SshTransport(server.identity) as ssh:
        ssh.run(server.node, command("true"))
        with monkeypatch.context() as patch:
            breaking(patch, number)
            with pytest.raises(NodeUnreachable):
                ssh.run(server.node, command("yes"))


@pytest.mark.openssh
@pytest.mark.parametrize("number", range(1, 6))
def test_a_connection_that_breaks_at_any_message_of_a_script_is_unreachable(
    server: SshdNode, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with SshTransport(server.identity) as ssh:
        ssh.run(server.node, command("true"))
        with monkeypatch.context() as patch:
            breaking(patch, number)
            with pytest.raises(NodeUnreachable):
                ssh.ask(server.node, "yes | head -c 20000000")


@pytest.mark.openssh
def test_an_error_of_a_handler_is_no_broken_connection(server: SshdNode) -> None:
    def full(_: bytes) -> None:
        raise OSError(28, "No space left on device")

    with SshTransport(server.identity) as ssh:
        with pytest.raises(OSError, match="No space left"):
            ssh.run(server.node, command("yes"), on_stdout=full)
        assert ssh.run(server.node, command("echo", "next")).stdout == b"next\n"


@pytest.mark.openssh
def test_a_black_hole_is_noticed_by_every_kind_of_call(server: SshdNode, cable: Cable) -> None:
    dark = threading.Event()

    def go_dark(_: bytes) -> None:
        cable.go_dark()
        dark.set()

    with SshTransport(server.identity, connect_timeout=1.5) as ssh:
        ssh.ask(cable.node, "true")
        with pytest.raises(NodeUnreachable, match="no data from"):
            ssh.run(cable.node, command("yes"), on_stdout=go_dark, timeout=1.0)
        assert dark.is_set()
        with pytest.raises(NodeUnreachable, match="no answer within"):
            ssh.ask(cable.node, "true", timeout=0.3)
        with pytest.raises(NodeUnreachable):
            ssh.ask(cable.node, "true", timeout=0.3)
        with pytest.raises(NodeUnreachable):
            ssh.run(cable.node, command("true"), timeout=0.3)
        cable.light_up()

        def answers() -> bool:  # in 1.5 s, which a busy machine may need a while for
            with contextlib.suppress(NodeUnreachable):
                return ssh.ask(cable.node, ":").exit_code == 0
            return False

        eventually(answers)
        assert ssh.run(cable.node, command("echo", "back")).stdout == b"back\n"
        assert ssh.ask(cable.node, "echo back").stdout == b"back\n"


@pytest.mark.openssh
def test_an_upload_into_a_black_hole_is_noticed(server: SshdNode, cable: Cable) -> None:
    def source() -> Iterator[bytes]:
        for number in range(1000):
            if number == 5:
                cable.go_dark()
            yield b"x" * (1 << 20)

    with (
        SshTransport(server.identity) as ssh,
        pytest.raises(NodeUnreachable, match="no data from"),
    ):
        ssh.run(cable.node, command("cat"), stdin=source(), timeout=0.5)


@pytest.mark.openssh
def test_an_idle_connection_that_broke_is_opened_anew(server: SshdNode, cable: Cable) -> None:
    with SshTransport(server.identity) as ssh:
        for _ in range(3):
            assert ssh.run(cable.node, command("echo", "here")).stdout == b"here\n"
            cable.cut()


@pytest.mark.openssh
def test_close_does_not_wait_for_a_node_that_is_cut_off(server: SshdNode, cable: Cable) -> None:
    ssh = SshTransport(server.identity)
    ssh.ask(cable.node, "true")
    cable.go_dark()
    closed = threading.Thread(target=ssh.close)
    closed.start()
    closed.join(20)  # of the minutes that TCP would wait
    assert not closed.is_alive()
