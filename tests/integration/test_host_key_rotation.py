"""A node's host key is rotated on a real sshd; a crash on the way never locks us out."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.cluster.bootstrap import RELOADED, SECOND_WAY, rotate_host_key
from cloudtrain.core.errors import HostKeyMismatch, NodeUnreachable, StepFailed
from cloudtrain.core.model import HostKey, Identity
from cloudtrain.core.retry import Clock
from cloudtrain.ssh import keys
from cloudtrain.ssh.keys import load_identity, new_host_key, ssh_config, write_known_hosts
from cloudtrain.ssh.transport import SshTransport
from tests.support.sshd import SshdNode, eventually, sshd_node

pytestmark = pytest.mark.openssh


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SshdNode]:
    """With keys in memory until it is told (-r), as OpenSSH 9.8 does; older ones read the file
    for each connection."""
    with sshd_node(tmp_path) as node:
        node.stop()
        node.start("-r")
        node.await_start()
        yield node


def folder(server: SshdNode) -> Path:
    return server.identity.private_key.parent


def identity(server: SshdNode) -> Identity:
    """As the next command reads it from disk."""
    return load_identity(folder(server))


def host_key(server: SshdNode) -> HostKey:
    return identity(server).host_keys[server.node.name]


def change(server: SshdNode, transport: Any, **options: Any) -> None:
    place = str(server.folder / "host_key")
    keys_of = (host_key(server), folder(server))
    rotate_host_key(server.node, *keys_of, transport, transport, place=place, **options)


def test_a_changed_host_key_is_the_only_one_that_is_accepted_and_offered(server: SshdNode) -> None:
    boot = host_key(server)
    with SshTransport(identity(server)) as transport:
        change(server, transport)
        assert transport.ask(server.node, "echo here").stdout == b"here\n"
    after = host_key(server)
    assert after.public == boot.public, "the key that it was made with is kept apart"
    assert after.rotated
    assert len(after.pins) == 1
    assert answers(server, identity(server))
    old = dataclasses.replace(boot, accepted=())
    with pytest.raises(HostKeyMismatch):
        answers(server, pinned(server, old))


def test_the_private_half_is_on_the_node_alone_and_only_its_owner_reads_it(
    server: SshdNode, tmp_path: Path
) -> None:
    with SshTransport(identity(server)) as transport:
        change(server, transport)
    private = (server.folder / "host_key").read_bytes()
    assert b"PRIVATE" in private
    assert (server.folder / "host_key").stat().st_mode & 0o777 == 0o600
    assert list(server.folder.glob("host_key.*")) == [server.folder / "host_key.pub"]
    here = [path for path in folder(server).rglob("*") if path.is_file()]
    assert not [path for path in here if private in path.read_bytes()]


def test_known_hosts_has_every_key_that_is_accepted(server: SshdNode) -> None:
    with SshTransport(identity(server)) as transport:
        change(server, transport)
    write_known_hosts(identity(server), [server.node])
    config = folder(server) / "ssh_config"
    config.write_text(ssh_config(identity(server), [server.node]))
    done = subprocess.run(
        ["ssh", "-F", config, server.node.name, "echo here"], capture_output=True, timeout=30
    )
    assert (done.stdout, done.returncode) == (b"here\n", 0), done.stderr


CRASHES = range(12)
"""More than there are: an sshd that is away for a moment is asked again, which makes two more."""


class Crash(BaseException):
    """The tool dies."""


@pytest.mark.sweep(4)
@pytest.mark.parametrize("number", CRASHES)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_point_leaves_a_node_that_lets_us_in(
    server: SshdNode, monkeypatch: pytest.MonkeyPatch, number: int, when: str
) -> None:
    points = crash_points(monkeypatch, number, when)
    with SshTransport(identity(server)) as transport:
        try:
            change(server, Dying(transport, points))
        except Crash:
            crashed = True
        else:
            crashed = False
    assert crashed == (number < points.seen), "every point up to the last is tried"
    assert number < len(CRASHES) - 1 or not crashed, "there are more points than are tried"
    assert answers(server, identity(server))
    monkeypatch.undo()
    if not host_key(server).rotated:
        with SshTransport(identity(server)) as transport:
            change(server, transport)
    assert host_key(server).rotated
    assert len(host_key(server).pins) == 1
    assert answers(server, identity(server))
    with pytest.raises(HostKeyMismatch):
        answers(server, pinned(server, dataclasses.replace(host_key(server), accepted=())))


def test_an_sshd_that_goes_on_with_its_old_key_is_told_a_second_time(server: SshdNode) -> None:
    waits: list[float] = []

    class Deaf(Dying):
        def run(self, *arguments: Any, **options: Any) -> Any:
            if "systemctl" in arguments[1].shell():
                return None
            return self.transport.run(*arguments, **options)

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) >= SECOND_WAY:
            time.sleep(0.1)

    with SshTransport(identity(server)) as transport:
        change(server, Deaf(transport, Points(99, "before")), clock=Clock(sleep=sleep))
    assert waits[:SECOND_WAY] == [RELOADED.pause_after(n) for n in range(1, SECOND_WAY + 1)]
    assert host_key(server).rotated


def test_an_sshd_that_never_takes_the_new_key_is_an_error_and_stays_reachable(
    server: SshdNode,
) -> None:
    class Deaf(Dying):
        def run(self, *arguments: Any, **options: Any) -> Any:
            if "kill -HUP" in arguments[1].shell():
                return None
            return self.transport.run(*arguments, **options)

    with SshTransport(identity(server)) as transport:
        with pytest.raises(HostKeyMismatch):
            change(server, Deaf(transport, Points(99, "before")), clock=Clock(sleep=lambda _: None))
        assert transport.ask(server.node, "echo here").stdout == b"here\n"
    assert not host_key(server).rotated
    assert answers(server, identity(server))


def test_a_node_that_refuses_the_change_is_an_error_with_its_own_words(server: SshdNode) -> None:
    with SshTransport(identity(server)) as transport, pytest.raises(StepFailed) as caught:
        rotate_host_key(
            server.node,
            host_key(server),
            folder(server),
            transport,
            transport,
            place=str(server.folder / "nowhere" / "key"),
        )
    assert caught.value.step == "host key"
    assert answers(server, identity(server))


def test_half_a_key_is_never_installed(server: SshdNode) -> None:
    before = (server.folder / "host_key").read_bytes()

    class Cut(Dying):
        def run(self, *arguments: Any, **options: Any) -> Any:
            options["stdin"] = options.get("stdin", b"")[:200]
            return self.transport.run(*arguments, **options)

    with SshTransport(identity(server)) as transport, pytest.raises(StepFailed):
        change(server, Cut(transport, Points(99, "before")))
    assert (server.folder / "host_key").read_bytes() == before
    assert list(server.folder.glob("host_key.*")) == []


def test_a_node_made_again_gets_a_first_key_that_nobody_has_seen(tmp_path: Path) -> None:
    first = keys.create_identity(tmp_path, ["mnist-chief0", "mnist-worker0"])
    keys.accept_host_key(tmp_path, "mnist-chief0", (new_host_key().public,))
    assert load_identity(tmp_path).host_keys["mnist-chief0"].rotated
    made = keys.renew_host_key(tmp_path, "mnist-chief0")
    now = load_identity(tmp_path)
    assert list(now.host_keys) == ["mnist-chief0", "mnist-worker0"]
    assert now.host_keys["mnist-chief0"].pins == (made.public,)
    assert made.public != first.host_keys["mnist-chief0"].public
    assert now.host_keys["mnist-worker0"].pins == first.host_keys["mnist-worker0"].pins


def test_renewal_cut_off_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys.create_identity(tmp_path, ["mnist-chief0"])
    keys.accept_host_key(tmp_path, "mnist-chief0", (new_host_key().public,))

    def die(self: Path, **_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", die)
        with pytest.raises(Crash):
            keys.renew_host_key(tmp_path, "mnist-chief0")
    assert load_identity(tmp_path).host_keys["mnist-chief0"].accepted, "seen as still to be renewed"


def answers(server: SshdNode, known: Identity) -> bool:
    """A new process with these keys gets in; an sshd that reads its keys again is away briefly."""

    def asked() -> bool:
        with contextlib.suppress(NodeUnreachable), SshTransport(known) as transport:
            return transport.ask(server.node, "echo here").stdout == b"here\n"
        return False

    eventually(asked)
    return True


def pinned(server: SshdNode, key: HostKey) -> Identity:
    return dataclasses.replace(identity(server), host_keys={server.node.name: key})


@dataclasses.dataclass
class Points:
    """Counts what is done; dies before or after the one of that number."""

    number: int
    when: str
    seen: int = 0

    def at(self, work: Callable[[], Any]) -> Any:
        mine = self.seen == self.number
        self.seen += 1
        if mine and self.when == "before":
            raise Crash
        try:
            return work()
        finally:
            if mine:
                raise Crash


@dataclasses.dataclass
class Dying:
    """The transport, with each of its calls as a point to die at."""

    transport: SshTransport
    points: Points

    def run(self, *arguments: Any, **options: Any) -> Any:
        return self.points.at(lambda: self.transport.run(*arguments, **options))

    def ask(self, *arguments: Any, **options: Any) -> Any:
        return self.points.at(lambda: self.transport.ask(*arguments, **options))

    def trust(self, *arguments: Any) -> None:
        self.points.at(lambda: self.transport.trust(*arguments))


def crash_points(monkeypatch: pytest.MonkeyPatch, number: int, when: str) -> Points:
    points = Points(number, when)
    original = keys.accept_host_key
    monkeypatch.setattr(keys, "accept_host_key", lambda *given: points.at(lambda: original(*given)))
    return points
