"""New nodes are waited for while they boot; no other machine is ever accepted as one."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.cluster import bootstrap
from cloudtrain.cluster.bootstrap import BOOT, await_first_login
from cloudtrain.core.errors import HostKeyMismatch, NodesError, NodeUnreachable
from cloudtrain.core.model import Identity, Node
from cloudtrain.core.retry import Clock, waits_reported_to
from cloudtrain.ssh.keys import load_identity, write_known_hosts
from cloudtrain.ssh.transport import SshTransport
from tests.support.nodes_here import Remembered
from tests.support.sshd import SshdNode, sshd_node

pytestmark = pytest.mark.openssh


@dataclasses.dataclass
class Passing:
    """Time that passes where somebody sleeps; `events` happen at their time."""

    events: dict[float, Callable[[], object]] = dataclasses.field(default_factory=dict)
    time: float = 0.0
    sleeps: list[float] = dataclasses.field(default_factory=list)

    def clock(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.time += seconds
        for due in [time for time in self.events if time <= self.time]:
            self.events.pop(due)()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SshdNode]:
    with sshd_node(tmp_path) as node:
        yield node


def enter(server: SshdNode, time: Passing, stage: Remembered | None = None) -> Remembered:
    stage = stage or Remembered()

    def sleep(seconds: float) -> None:
        """An sshd that reads its keys again is away for a moment of real time."""
        time.sleep(seconds)
        if server.runs:
            server.await_start()

    folder = server.identity.private_key.parent
    identity = load_identity(folder)
    with SshTransport(identity) as transport:
        await_first_login(
            [server.node],
            identity,
            folder,
            transport,
            transport,
            stage,
            clock=Clock(monotonic=time.clock, sleep=sleep),
            place=str(server.folder / "host_key"),
        )
    return stage


def kept(server: SshdNode) -> Identity:
    return load_identity(server.identity.private_key.parent)


def test_a_node_that_answers_is_entered_at_once_and_its_host_key_changed(server: SshdNode) -> None:
    time = Passing()
    stage = enter(server, time)
    assert kept(server).host_keys[server.node.name].rotated
    assert stage.ended == [
        (server.node.name, f"answers at {server.node.address} after {time.time:.0f} s")
    ]
    assert ("test-chief0", "changing its host key") in stage.lines


def test_a_node_whose_key_was_changed_is_only_greeted(server: SshdNode) -> None:
    enter(server, Passing())
    before = kept(server).host_keys[server.node.name].pins
    stage = enter(server, Passing())
    assert kept(server).host_keys[server.node.name].pins == before
    assert stage.lines == []


def test_a_node_that_boots_is_looked_at_ever_less_often(server: SshdNode) -> None:
    server.stop()

    def up() -> None:
        server.start()
        server.await_start()

    time = Passing({90.0: up})
    stage = enter(server, time)
    waits = time.sleeps[: time.sleeps.index(BOOT.longest) + 1]
    assert waits == sorted(waits)
    assert max(time.sleeps) == BOOT.longest
    name, text = stage.lines[0]
    assert name == server.node.name
    assert text.startswith("booting: nothing listens for SSH at ")
    assert kept(server).host_keys[server.node.name].rotated


def test_another_machine_at_the_address_is_not_the_node_yet(server: SshdNode) -> None:
    """As an image does whose sshd starts before cloud-init has put the key there."""
    right = (server.folder / "host_key").read_text()
    stranger(server)

    def ready() -> None:
        server.stop()
        (server.folder / "host_key").write_text(right)
        server.start()
        server.await_start()

    stage = enter(server, Passing({30.0: ready}))
    assert "another machine answers at" in stage.lines[0][1]
    assert kept(server).host_keys[server.node.name].rotated


def test_another_machine_is_never_accepted_and_is_told_in_the_end(server: SshdNode) -> None:
    stranger(server)
    time = Passing()
    with pytest.raises(HostKeyMismatch, match=r"no login within 600 s: another machine") as caught:
        enter(server, time)
    assert "cloud-init" in (caught.value.hint or "")
    assert time.time == BOOT.within
    assert not kept(server).host_keys[server.node.name].accepted


def test_a_node_that_never_answers_is_told_with_where_to_look(server: SshdNode) -> None:
    server.stop()
    time = Passing()
    with pytest.raises(NodeUnreachable, match=r"no login within 600 s: nothing listens") as caught:
        enter(server, time)
    assert "network.ssh_from" in (caught.value.hint or "")
    assert time.time == BOOT.within


def test_our_key_may_come_later_than_sshd(server: SshdNode) -> None:
    authorized = server.folder / "authorized_keys"
    shutil.copy(authorized, server.folder / "ours")
    authorized.write_text("")
    enter(server, Passing({20.0: lambda: shutil.copy(server.folder / "ours", authorized)}))
    assert kept(server).host_keys[server.node.name].rotated


def test_cloud_init_is_let_finish_but_not_for_ever(
    server: SshdNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "_CLOUD_INIT_WORKS", "true")
    time = Passing()
    said: list[str] = []
    with waits_reported_to(said.append):
        stage = enter(server, time)
    assert ("test-chief0", "cloud-init is running") in stage.lines
    assert said == ["test-chief0: its cloud-init still runs after 120 s; continuing"]
    assert bootstrap.SETTLE.within <= time.time < bootstrap.SETTLE.within + 60
    assert kept(server).host_keys[server.node.name].rotated


def test_every_node_that_never_comes_is_named(server: SshdNode) -> None:
    server.stop()
    other = dataclasses.replace(server.node, name="test-worker0", role="worker")
    identity = kept(server)
    keys = {**identity.host_keys, other.name: identity.host_keys[server.node.name]}
    identity = dataclasses.replace(identity, host_keys=keys)
    folder = identity.private_key.parent
    time = Passing()
    with SshTransport(identity) as transport, pytest.raises(NodesError) as caught:
        await_first_login(
            [server.node, other],
            identity,
            folder,
            transport,
            transport,
            Remembered(),
            clock=Clock(monotonic=time.clock, sleep=time.sleep),
        )
    assert set(caught.value.failures) == {"test-chief0", "test-worker0"}


def test_ctrl_c_ends_the_wait_at_once(server: SshdNode, monkeypatch: pytest.MonkeyPatch) -> None:
    server.stop()
    nodes = [server.node, dataclasses.replace(server.node, name="test-worker0")]
    waiting = threading.Barrier(3, timeout=20)
    ended: list[Any] = []

    class Stage(Remembered):
        def node(self, name: str, text: str) -> None:
            if len(self.lines) < 2:
                super().node(name, text)
                waiting.wait()

    def interrupted(batch: Any, *_: object) -> None:
        waiting.wait()
        raise KeyboardInterrupt

    identity = kept(server)
    with SshTransport(identity) as transport:
        monkeypatch.setattr("cloudtrain.core.parallel._Batch._wait", once(interrupted))
        with contextlib.suppress(KeyboardInterrupt):
            keys = dict.fromkeys([n.name for n in nodes], identity.host_keys[server.node.name])
            await_first_login(
                nodes,
                dataclasses.replace(identity, host_keys=keys),
                identity.private_key.parent,
                transport,
                transport,
                Stage(),
            )
            ended.append("not interrupted")
    assert ended == []
    assert not [t for t in threading.enumerate() if "_drain" in t.name]


def once(first: Callable[..., None]) -> Callable[..., None]:
    """`first` for the first call of fan_out's wait, and the real one afterwards."""
    from cloudtrain.core.parallel import _Batch

    real = _Batch._wait
    calls: list[None] = []

    def wait(batch: Any) -> None:
        calls.append(None)
        return first(batch) if len(calls) == 1 else real(batch)

    return wait


def stranger(server: SshdNode) -> None:
    """The same address, with a host key of somebody else's."""
    from tests.support.fakes import key_pair

    server.stop()
    (server.folder / "host_key").write_text(key_pair()[0])
    server.start()
    server.await_start()


def test_the_address_is_pinned_for_openssh_with_what_the_node_answers_now(
    server: SshdNode,
) -> None:
    enter(server, Passing())
    identity = kept(server)
    nodes: list[Node] = [server.node]
    write_known_hosts(identity, nodes)
    (line,) = identity.known_hosts.read_text().splitlines()
    assert line.endswith(identity.host_keys[server.node.name].pins[0])
