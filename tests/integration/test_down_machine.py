"""The real `down` and `stop-run` over nodes that are folders here, while anything happens to them.

Tasks are real processes under the real supervisor, the store is a folder, the provider a fake.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from cloudtrain.cluster.session import Handle, adopt_identity
from cloudtrain.commands.down import destroy_cluster
from cloudtrain.commands.stop_run import stop_run
from cloudtrain.config import to_json
from cloudtrain.core import paths
from cloudtrain.core.errors import CloudtrainError, NodeUnreachable, NotLanded, StoreError
from cloudtrain.core.events import AttemptBegun, UpBegun, UpCompleted
from cloudtrain.core.model import ClusterConfig, Node, NodeGroup, NodePlan, Plan
from cloudtrain.core.run_record import Run, RunAttempt, Task
from cloudtrain.runs import task_commands
from cloudtrain.state import Records
from cloudtrain.stores import open_store
from tests.support.fakes import FakeProvider, eventually, no_journal
from tests.support.landing_parts import RUN, FaultyStore, FolderTransport, Heard

NODES = ("worker0", "worker1")
CONFIG = ClusterConfig(
    name="mnist", provider="local", strategy="custom", nodes={"worker": NodeGroup(count=2)}
)
PLAN = Plan(
    config=CONFIG,
    nodes=tuple(
        NodePlan(name=f"mnist-worker{index}", role="worker", index=index, port=8900 + index)
        for index in range(2)
    ),
)
TASKS = tuple(
    Task(role="worker", index=index, node=f"mnist-worker{index}", port=8900 + index, attempt=1)
    for index in range(2)
)
LINE = "n=0; while :; do n=$((n+1)); echo $n >output/$n; sleep 0.05; done"


class Nodes(FolderTransport):
    """Nodes of which some do not answer."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.away: set[str] = set()

    def __call__(self, identity: object) -> Nodes:
        return self

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, node: Node, command: Any, **named: Any) -> Any:
        if node.name in self.away:
            raise NodeUnreachable(node.name, "no answer")
        return super().run(node, command, **named)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="down"))
        self.patch = pytest.MonkeyPatch()
        self.patch.setenv("CLOUDTRAIN_HOME", str(self.folder / "home"))
        self.provider = FakeProvider()
        self.nodes = Nodes(self.folder / "nodes")
        self.store = FaultyStore(open_store((self.folder / "store").as_uri()))
        self.patch.setattr("cloudtrain.cluster.session.open_provider", lambda _: self.provider)
        self.patch.setattr("cloudtrain.ssh.transport.SshTransport", self.nodes)
        self.patch.setattr("cloudtrain.cluster.session.open_store", lambda *_, **__: self.store)
        self.records = Records("mnist")
        self.records.create()
        self.records.save_config(to_json(CONFIG))
        self.records.journal(UpBegun())
        self.identity = adopt_identity(self.records, PLAN, ())
        self.provider.create(PLAN, self.identity, no_journal)
        self.records.journal(UpCompleted())
        self.began = False

    # ── What happens ─────────────────────────────────────────────────────────

    @precondition(lambda self: not self.began and self.provider.nodes("mnist"))
    @rule(state=st.sampled_from(["landing", "failed"]))
    def tasks_run_of_a_run_that_was_given_up(self, state: Any) -> None:
        self.began = True
        ended = None if state == "landing" else 2.0
        run = Run(
            id=RUN,
            cluster="mnist",
            command=LINE,
            tasks=TASKS,
            state=state,
            created=1.0,
            ended=ended,
            attempts=(RunAttempt(number=1, started=1.0),),
        )
        self.records.save_run(run)
        self.records.journal(AttemptBegun(run=RUN, attempt=1))
        for task, node in zip(TASKS, self.provider.nodes("mnist"), strict=True):
            work = paths.work_folder("mnist", RUN, task.name)
            (self.nodes.home(node) / work / "output").mkdir(parents=True)
            remote = task_commands.start(
                paths.attempt_folder("mnist", RUN, task.name, 1),
                tag=paths.tag("mnist", RUN, task.name, 1),
                work=work,
                command=LINE,
                environment={},
            )
            FolderTransport.run(self.nodes, node, remote.command, stdin=remote.stdin)
        eventually(lambda: all(self.made(name) for name in NODES))

    @rule(index=st.integers(0, 1))
    def a_node_is_away(self, index: int) -> None:
        self.nodes.away.add(f"mnist-worker{index}")

    @rule(index=st.integers(0, 1))
    def a_node_is_back(self, index: int) -> None:
        self.nodes.away.discard(f"mnist-worker{index}")

    @rule(stop=st.booleans())
    def tasks_are_frozen_or_killed(self, stop: bool) -> None:
        for pid in self.pids():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGSTOP if stop else signal.SIGKILL)

    @rule(full=st.booleans())
    def the_store_is_full_or_has_room(self, full: bool) -> None:
        self.store.uploads_left = 0 if full else None

    @precondition(lambda self: self.began)
    @rule(torn=st.booleans())
    def the_record_of_the_run_is_lost(self, torn: bool) -> None:
        path = self.records.folder / "runs" / RUN / "run.json"
        if path.exists():
            path.write_text("{") if torn else path.unlink()

    # ── What the user does ───────────────────────────────────────────────────

    @rule()
    def stop_run(self) -> None:
        with contextlib.suppress(CloudtrainError):
            stop_run("mnist", console=Heard())
        self.nothing_is_lost()

    @rule()
    def down(self) -> None:
        there = self.provider.nodes("mnist")
        try:
            destroy_cluster(Handle(CONFIG), discard=False, console=Heard())
        except (NotLanded, StoreError):
            assert self.nodes.away or self.store.uploads_left == 0
            assert self.provider.nodes("mnist") == there
        else:
            assert self.provider.nodes("mnist") == ()
        self.nothing_is_lost()

    def nothing_is_lost(self) -> None:
        """What was made on a node that was destroyed is in the store."""
        if self.provider.nodes("mnist"):
            return
        assert not self.pids()
        for name in NODES:
            top = self.folder / "store" / RUN / name / "output"
            stored = {path.name: path.read_bytes() for path in top.glob("*")}
            assert self.made(name) == stored

    def teardown(self) -> None:
        """Once everything answers, one more `down` leaves nothing."""
        try:
            self.nodes.away.clear()
            self.store.uploads_left = None
            self.down()
            assert self.provider.nodes("mnist") == ()
        finally:
            while pids := self.pids():
                for pid in pids:
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.01)
            self.patch.undo()
            shutil.rmtree(self.folder, ignore_errors=True)

    # ── What is there ────────────────────────────────────────────────────────

    def made(self, name: str) -> dict[str, bytes]:
        node = self.folder / "nodes" / f"mnist-{name}"
        top = node / paths.work_folder("mnist", RUN, name) / "output"
        return {path.name: path.read_bytes() for path in top.glob("*")}

    def pids(self) -> list[int]:
        """Processes of tasks whose home is one of these nodes."""
        mark = f"HOME={self.folder}/nodes/".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (folder / "environ").read_bytes().split(b"\0")
                tagged = any(word.startswith(b"CLOUDTRAIN_TASK=") for word in words)
                if tagged and any(word.startswith(mark) for word in words):
                    found.append(int(folder.name))
        return found


Machine.TestCase.settings = settings(
    max_examples=15,
    stateful_step_count=8,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a smaller example takes minutes to find
    suppress_health_check=list(HealthCheck),
)
TestDown = Machine.TestCase
