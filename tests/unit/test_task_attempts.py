"""Each task has an attempt of its own: one can be at its second, the others at their first."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.cluster.session import Session, adopt_identity
from cloudtrain.cluster.task_launch import TaskLaunch
from cloudtrain.commands.logs import logs
from cloudtrain.core import paths, ship
from cloudtrain.core.codec import decode
from cloudtrain.core.model import Node
from cloudtrain.core.protocols import Completed
from cloudtrain.core.run_record import Run, RunAttempt, Task, run_to_json
from cloudtrain.core.shell import Command
from cloudtrain.runs.monitor import (
    monitor,
    new_attempt_state,
    report_grpc,
    save_observed,
    take,
    warn_of_full_disks,
)
from cloudtrain.runs.node_agents import agent_order
from cloudtrain.runs.observers import Watched
from cloudtrain.runs.start import next_attempts, record_attempt, set_work_aside, start_tasks
from cloudtrain.runs.tail import Event
from cloudtrain.runs.task_commands import AttemptEnd, DiskLow
from cloudtrain.runs.tasks import all_ends_known, dump_stacks, log_files, stop_tasks, task_statuses
from cloudtrain.state import Records
from cloudtrain.state.followed import append
from cloudtrain.stores import open_store
from cloudtrain.training.log_text import reduces_over_grpc
from tests.support.fakes import FakeProvider, make_plan
from tests.support.landing_parts import Heard

CHIEF = Task(role="chief", index=0, node="mnist-chief0", port=8900, attempt=1)
FIRST = Task(role="worker", index=0, node="mnist-worker0", port=8901, attempt=1)
SECOND = replace(FIRST, attempt=2)
OTHER = Task(role="worker", index=1, node="mnist-worker1", port=8902, attempt=1)
RUN = Run(
    id="20261121-062404-k3f9",
    cluster="mnist",
    command="python train.py",
    tasks=(CHIEF, SECOND, OTHER),
    state="running",
    created=1000.0,
    attempts=(RunAttempt(number=1, started=1000.0),),
)
FOLDERS = {
    "mnist-chief0": f".cloudtrain/mnist/runs/{RUN.id}/chief0/attempt-1",
    "mnist-worker0": f".cloudtrain/mnist/runs/{RUN.id}/worker0/attempt-2",
    "mnist-worker1": f".cloudtrain/mnist/runs/{RUN.id}/worker1/attempt-1",
}


@dataclass
class Nodes:
    """A transport to nodes whose tasks all run; `asked` is what was asked of each node."""

    asked: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def run(
        self,
        node: Node,
        command: Command,
        *,
        on_stdout: Callable[[bytes], None] | None = None,
        on_stderr: Callable[[bytes], None] | None = None,
        **_: Any,
    ) -> Completed:
        verb, *arguments = command.arguments[4:]
        if verb == ship.BOOT:
            verb, *arguments = arguments
        verbs = {"cloudtrain.node.follower": "follow", "cloudtrain.node.starter": "start"}
        verb = verbs.get(verb, verb)
        folder = next(
            word for word in arguments if word.startswith(".cloudtrain/") and "attempt-" in word
        )
        self.asked.append((node.name, (verb, folder)))
        if on_stdout and on_stderr:  # a task that ends at once, with its attempt as exit code
            on_stdout(f"in {folder[-9:]}\n".encode())
            on_stderr(f"end {folder[-1]}\n".encode())
        words = {"status": f"running - 12 0 1000 0 {folder}\n", "start": "started 12\n"}
        out = words.get(verb, "stopped 1 0\n" if verb == "stop" else "")
        return Completed(exit_code=0, stdout=out.encode(), stderr=b"")

    def ask(self, node: Node, script: str, *, timeout: float = 30.0) -> Completed:
        return Completed(exit_code=0, stdout=b"", stderr=b"")

    def folders(self, verb: str) -> dict[str, str]:
        return {node: words[1] for node, words in self.asked if words[0] == verb}


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: Nodes) -> Session:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path))
    plan, provider, records = make_plan(workers=2), FakeProvider(), Records("mnist")
    provider.create(plan, None, lambda *_, **__: None)  # type: ignore[arg-type]
    records.create()
    records.save_config({"name": "mnist", "provider": "local", "strategy": "custom"})
    records.save_run(RUN)
    console = Heard()
    console.task_output = lambda task, data: None  # type: ignore[method-assign]
    made = Session(
        plan=plan,
        records=records,
        provider=provider,
        store=open_store((tmp_path / "store").as_uri()),
        console=console,
        identity=adopt_identity(records, plan, ()),
        transport=nodes,  # type: ignore[arg-type]
        host_keys=None,  # type: ignore[arg-type]
        nodes=(),
    )
    return made.refreshed()


# ── the record ───────────────────────────────────────────────────────────────


def test_the_record_has_each_tasks_own_attempt() -> None:
    told = json.loads(json.dumps(run_to_json(RUN)))
    assert [task["attempt"] for task in told["tasks"]] == [1, 2, 1]
    assert [attempt["number"] for attempt in told["attempts"]] == [1]
    assert decode(Run, told) == RUN


@pytest.mark.parametrize("count", [0, 1, 3])
def test_in_a_record_of_an_earlier_version_all_are_at_the_runs_last_attempt(count: int) -> None:
    attempts = tuple(RunAttempt(number=n + 1, started=1000.0 + n) for n in range(count))
    told = run_to_json(replace(RUN, attempts=attempts))
    for task in told["tasks"]:
        del task["attempt"]
    assert [task.attempt for task in decode(Run, told).tasks] == [count] * 3


@pytest.mark.parametrize("value", [None, "1", True, [], 1.5, -1, 10**9])
def test_an_attempt_that_is_no_number_is_refused(value: object) -> None:
    told = run_to_json(RUN)
    told["tasks"][1]["attempt"] = value
    with pytest.raises(ValueError, match="attempt"):
        decode(Run, told)


def test_a_start_of_the_run_takes_every_task_to_its_next_attempt(session: Session) -> None:
    new = replace(RUN, attempts=(), tasks=tuple(replace(task, attempt=0) for task in RUN.tasks))
    run = record_attempt(session, new)
    assert [task.attempt for task in run.tasks] == [1, 1, 1]
    assert record_attempt(session, run) == run, "one that was begun is continued"
    over = replace(RUN, attempts=(replace(RUN.attempts[0], ended=1001.0),))
    again = record_attempt(session, over)
    assert [attempt.number for attempt in again.attempts] == [1, 2]
    assert [task.attempt for task in again.tasks] == [2, 3, 2]
    assert session.records.run(RUN.id) == again


def test_one_task_alone_goes_to_its_next_attempt() -> None:
    run = next_attempts(RUN, {"worker1"})
    assert run.tasks == (CHIEF, SECOND, replace(OTHER, attempt=2))
    assert run.attempts == RUN.attempts


def test_of_a_task_that_was_started_alone_the_earlier_end_is_not_known() -> None:
    exits = {"chief0": 0, "worker0": 0, "worker1": 0}
    ended = (replace(RUN.attempts[0], exits=exits),)
    assert all_ends_known(replace(RUN, attempts=ended, tasks=(CHIEF, FIRST, OTHER)))
    assert not all_ends_known(replace(RUN, attempts=ended))


# ── on the nodes ─────────────────────────────────────────────────────────────


def test_states_are_those_of_each_tasks_own_attempt(session: Session, nodes: Nodes) -> None:
    statuses = task_statuses(session, RUN)
    assert nodes.folders("status") == FOLDERS
    assert statuses["worker0"].folder.endswith("attempt-2")


def test_each_task_is_stopped_in_its_own_attempt(session: Session, nodes: Nodes) -> None:
    stop_tasks(session, RUN, RUN.tasks)
    assert nodes.folders("stop") == FOLDERS
    dump_stacks(session, RUN, RUN.tasks)
    assert nodes.folders("stacks") == FOLDERS
    log = session.records.log_path(RUN.id, "worker0", 2)
    assert log.with_suffix(".stacks").exists()


def test_a_task_that_has_never_begun_is_not_stopped(session: Session, nodes: Nodes) -> None:
    stop_tasks(session, RUN, [replace(CHIEF, attempt=0)])
    assert nodes.asked == []


def test_one_task_is_started_alone(session: Session, nodes: Nodes) -> None:
    start_tasks(session, RUN, (TaskLaunch(task=SECOND, command="true", environment={}),))
    assert nodes.folders("start") == {"mnist-worker0": FOLDERS["mnist-worker0"]}
    assert [node for node, _ in nodes.asked] == ["mnist-worker0"]


def test_the_work_folder_is_set_aside_under_the_tasks_last_attempt() -> None:
    assert set_work_aside(RUN, replace(SECOND, attempt=3)).arguments[-1] == "code.attempt-2"


def test_an_agent_watches_its_tasks_own_attempt(session: Session) -> None:
    node = session.node("mnist-worker0")
    assert node is not None
    assert agent_order(session, RUN, SECOND, node, (), 1000.0)["attempt"] == 2


# ── while it runs ────────────────────────────────────────────────────────────


def test_each_task_is_followed_in_its_own_attempt(session: Session, nodes: Nodes) -> None:
    session.records.log_path(RUN.id, "worker0", 1).write_bytes(b"what it said at first\n")
    _, state, cause = monitor(session, RUN)
    assert nodes.folders("follow") == FOLDERS
    assert {name: view.exit_code for name, view in state.tasks.items()} == {
        "chief0": 1,
        "worker0": 2,
        "worker1": 1,
    }
    assert state.tasks["worker0"].tail == b"in attempt-2\n"
    assert session.records.log_path(RUN.id, "worker0", 2).read_bytes() == b"in attempt-2\n"
    assert session.records.log_path(RUN.id, "chief0", 1).read_bytes() == b"in attempt-1\n"
    assert cause is not None


def test_a_task_whose_node_is_gone_when_another_process_takes_over_is_lost(
    session: Session, nodes: Nodes
) -> None:
    assert isinstance(session.provider, FakeProvider)
    del session.provider.cloud["mnist"]["mnist-chief0"]
    _, state, _ = monitor(session.refreshed(), RUN)
    assert state.tasks["chief0"].lost == "its node is gone"
    assert "mnist-chief0" not in nodes.folders("follow")


def test_late_news_of_a_tasks_earlier_attempt_change_nothing(session: Session) -> None:
    state = new_attempt_state(session, RUN)
    take(state, Event(FIRST, b"old"), 1.0)
    take(state, Event(FIRST, AttemptEnd(state="exited", exit_code=1)), 1.0)
    assert (state.tasks["worker0"].tail, state.tasks["worker0"].ended) == (b"", False)
    take(state, Event(SECOND, b"new"), 1.0)
    take(state, Event(SECOND, AttemptEnd(state="exited", exit_code=0)), 1.0)
    assert (state.tasks["worker0"].tail, state.tasks["worker0"].exit_code) == (b"new", 0)


# ── logs ─────────────────────────────────────────────────────────────────────


def test_logs_of_all_attempts_of_each_task_land_and_are_shown(session: Session) -> None:
    for task in (CHIEF, FIRST, SECOND, OTHER):
        path = session.records.log_path(RUN.id, task.name, task.attempt)
        path.write_text(f"{task.name} in {task.attempt}\n")
    assert list(log_files(session, RUN)) == [
        "chief0.attempt-1.log",
        "worker0.attempt-1.log",
        "worker1.attempt-1.log",
        "worker0.attempt-2.log",
    ]
    shown: list[bytes] = []
    console = Heard()
    console.task_output = lambda task, data: shown.append(data)  # type: ignore[method-assign]
    logs("mnist", console=console)
    assert b"".join(shown).decode().splitlines() == [
        "chief0 in 1",
        "worker0 in 1",
        "worker1 in 1",
        "worker0 in 2",
    ]


def test_folders_keep_their_names() -> None:
    assert paths.attempt_folder("mnist", RUN.id, "worker0", 2) == FOLDERS["mnist-worker0"]


STARTED = (
    "INFO:tensorflow:MultiWorkerMirroredStrategy with cluster_spec = {'worker': ['10.0.0.4:8900']},"
    " task_type = 'worker', task_id = 0, num_workers = 2, local_devices = "
    "('/job:worker/task:0/device:GPU:0', '/job:worker/task:0/device:GPU:1'), "
    "communication = CommunicationImplementation.AUTO\n"
)


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        (STARTED, "communication_options=tf"),
        (
            STARTED.replace("CommunicationImplementation", "CollectiveCommunication"),
            "communication=tf",
        ),
        (STARTED.replace("AUTO", "NCCL"), None),
        (STARTED.replace("AUTO", "RING"), None),
        (STARTED.replace("GPU", "CPU"), None),
        (STARTED.replace("num_workers = 2", "num_workers = 1"), None),
    ],
)
def test_a_log_tells_that_gradients_go_over_grpc(line: str, advice: str | None) -> None:
    found = reduces_over_grpc(b"before\n" + line.encode())
    assert (found or "").startswith(advice or "")
    assert bool(found) is bool(advice)


def test_gradients_over_grpc_are_warned_of_once_in_a_run_and_recorded(session: Session) -> None:
    assert isinstance(session.console, Heard)
    warned = session.console.warned
    session.records.save_run(RUN)
    state, watched = new_attempt_state(session, RUN), Watched(session=session, run=RUN)
    for part in (STARTED[:300], STARTED[300:], STARTED):
        for task in (CHIEF, OTHER):
            take(state, Event(task, part.encode()), 5.0)
        report_grpc(watched, state)
    (words,) = warned
    assert "gradients are reduced over gRPC" in words
    assert "CommunicationImplementation.NCCL) to tf.distribute.MultiWorkerMirrored" in words
    state.formed_after = 3.0
    save_observed(watched, state)
    (attempt,) = session.records.run(RUN.id).attempts
    assert (attempt.collectives, attempt.clustered) == ("grpc", True)

    again = replace(RUN, attempts=(attempt, RunAttempt(number=2, started=2000.0)))
    second = new_attempt_state(session, again)
    take(second, Event(CHIEF, STARTED.encode()), 5.0)
    report_grpc(Watched(session=session, run=again), second)
    assert len(warned) == 1


def test_a_disk_that_fills_is_warned_of_once(session: Session) -> None:
    assert isinstance(session.console, Heard)
    state = new_attempt_state(session, RUN)
    for free in (400_000_000, 300_000_000):
        take(state, Event(CHIEF, DiskLow(free=free)), 5.0)
        warn_of_full_disks(session, state)
    (words,) = session.console.warned
    assert words.startswith("mnist-chief0: 400 MB are free on its disk")


def test_what_a_node_has_deleted_of_a_log_takes_no_room_here(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    for data in (b"first\n", bytes(1 << 24), b"[cut]\0\0", b"last\n"):
        with path.open("ab") as file:
            append(file, data)
    assert path.read_bytes() == b"first\n" + bytes(1 << 24) + b"[cut]\0\0last\n"
    assert path.stat().st_blocks * 512 < 1 << 20
