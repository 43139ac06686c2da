"""Task commands and preflight over real SSH connections that break."""

from __future__ import annotations

import hashlib
import os
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cloudtrain.core import paths
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.model import Node
from cloudtrain.core.run_record import Run as RunRecord
from cloudtrain.core.run_record import Task
from cloudtrain.core.shell import command
from cloudtrain.runs import task_commands
from cloudtrain.runs.preflight import preflight
from cloudtrain.runs.tail import Follower
from cloudtrain.runs.task_commands import AttemptEnd, FollowReader, Heartbeat
from cloudtrain.ssh.transport import SshTransport
from tests.support.fakes import eventually
from tests.support.landing_parts import Heard
from tests.support.local_cluster import LocalCluster, local_cluster
from tests.support.ports import free_ports


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    cluster = local_cluster(tmp_path, monkeypatch, name=f"ssh{os.getpid()}", workers=2)
    cluster.create()
    yield cluster
    cluster.destroy()


class Run:
    """One task on one node, over connections that a test may cut."""

    def __init__(self, cluster: LocalCluster, node: Node) -> None:
        self.cluster = cluster
        self.node = node
        self.tag = paths.tag(cluster.name, "r1", node.task, 1)
        self.folder = paths.attempt_folder(cluster.name, "r1", node.task, 1)

    def start(self, ssh: SshTransport, line: str) -> str:
        ssh.run(self.node, command("mkdir", "-p", "work"))
        remote = task_commands.start(
            self.folder, tag=self.tag, work="work", command=line, environment={}
        )
        done = ssh.run(self.node, remote.command, stdin=remote.stdin)
        return task_commands.parse_start(self.node.name, done)

    def status(self, ssh: SshTransport) -> task_commands.TaskStatus:
        done = ssh.ask(self.node, task_commands.status(self.folder).shell())
        return task_commands.parse_status(self.node.name, done)[0]

    def follow(
        self, ssh: SshTransport, got: bytearray, cut_after: int
    ) -> tuple[Heartbeat | AttemptEnd, ...]:
        """Adds to `got`; the connection breaks once it has `cut_after` bytes more."""
        limit = len(got) + cut_after
        reader = FollowReader()
        told: list[Heartbeat | AttemptEnd] = []

        def take(data: bytes) -> None:
            got.extend(data)
            if len(got) >= limit:
                threading.Thread(target=ssh.close).start()

        with suppress(CloudtrainError):
            ssh.run(
                self.node,
                task_commands.follow(self.folder, len(got), interval=1),
                on_stdout=take,
                on_stderr=lambda data: told.extend(reader.feed(data)),
                timeout=20,
            )
        return tuple(told)


def test_a_log_over_broken_connections_is_whole_and_no_follower_stays(
    cluster: LocalCluster,
) -> None:
    run = Run(cluster, cluster.nodes[0])
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    got = bytearray()
    with SshTransport(cluster.identity) as ssh:
        line = "for i in 1 2 3 4 5 6 7 8; do head -c 400000 /dev/urandom; sleep 0.1; done; exit 4"
        assert run.start(ssh, line) == "started"
        assert run.start(ssh, line) == "already"
    for _ in range(12):
        with SshTransport(cluster.identity) as ssh:
            run.follow(ssh, got, chance.randrange(1, 300_000))
    with SshTransport(cluster.identity) as ssh:
        told = run.follow(ssh, got, 1 << 40)
        assert told[-1] == AttemptEnd(state="exited", exit_code=4), seed
        assert run.status(ssh).state == "exited"
        left = command("sh", "-c", "ps -eo args | grep -c '[F]ollows one attempt'")
        eventually(lambda: ssh.run(run.node, left).stdout.strip() == b"0")
    written = ssh_log(cluster, run)
    assert hashlib.sha256(got).digest() == hashlib.sha256(written).digest(), seed


CHATTY = "i=0; while [ $i -lt 3000 ]; do echo step $i; i=$((i + 1)); done; exit 4"


def test_chatty_nodes_are_followed_line_by_line_and_their_ends_are_pushed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """A write a line: each node's lines arrive in order, in few messages, and none is lost."""
    console, tasks = Counting(), []
    with SshTransport(cluster.identity) as ssh:
        for node in cluster.nodes:
            tasks.append(Task(role=node.role, index=node.index, node=node.name, port=1, attempt=1))
            assert Run(cluster, node).start(ssh, CHATTY) == "started"
        record = RunRecord(
            id="r1",
            cluster=cluster.name,
            command="",
            tasks=tuple(tasks),
            state="running",
            created=0,
        )
        follower = Follower(record, ssh, lambda task: tmp_path / f"{task.name}.log", console)
        for task, node in zip(tasks, cluster.nodes, strict=True):
            follower.follow(task, node)
        ends = []
        while len(ends) < len(tasks):
            event = follower.events.get(60)
            if isinstance(event.news, AttemptEnd):
                ends.append((event.task.name, event.news.exit_code))
    assert sorted(ends) == sorted((task.name, 4) for task in tasks)
    lines = b"".join(b"step %d\n" % n for n in range(3000))
    for task in tasks:
        assert (tmp_path / f"{task.name}.log").read_bytes() == lines
        assert console.shown[task.name] == lines
        assert console.messages[task.name] < 300


class Counting(Heard):
    """Counts the messages of each task."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: dict[str, bytes] = defaultdict(bytes)
        self.messages: Counter[str] = Counter()

    def task_output(self, task: str, data: bytes) -> None:
        self.shown[task] += data
        self.messages[task] += 1


def ssh_log(cluster: LocalCluster, run: Run) -> bytes:
    with SshTransport(cluster.identity) as ssh:
        return ssh.run(run.node, command("cat", f"{run.folder}/log")).stdout


def test_a_task_outlives_the_connection_and_is_stopped_over_another(cluster: LocalCluster) -> None:
    run = Run(cluster, cluster.nodes[1])
    with SshTransport(cluster.identity) as ssh:
        run.start(ssh, "trap '' TERM HUP; while :; do sleep 0.1; done")
    with SshTransport(cluster.identity) as ssh:
        assert run.status(ssh).state == "running"
        done = ssh.run(run.node, task_commands.stop(run.folder, tag=run.tag, grace=0))
        assert task_commands.parse_stop(run.node.name, done).killed >= 1
        assert run.status(ssh).exit_code == -9


def test_preflight_passes_between_nodes_over_ssh_and_frees_their_ports(
    cluster: LocalCluster,
) -> None:
    first = free_ports(len(cluster.nodes))
    tasks = [
        (Task(role=node.role, index=node.index, node=node.name, port=port), node)
        for port, node in enumerate(cluster.nodes, first)
    ]
    with SshTransport(cluster.identity) as ssh:
        assert preflight(tasks, ssh).warnings == ()
        assert preflight(tasks, ssh).warnings == ()
