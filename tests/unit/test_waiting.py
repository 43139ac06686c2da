"""Who waits for another process, for a node or for a lock, on a clock that only sleeping moves."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.cluster.provision import ANSWERS, await_known_states, await_started
from cloudtrain.cluster.session import Session, adopt_identity
from cloudtrain.commands.logs import logs
from cloudtrain.commands.stop_run import stop_run
from cloudtrain.commands.train import refuse_second_run
from cloudtrain.core.errors import LockedError, NodeUnreachable, TransientError, UsageError
from cloudtrain.core.model import Node, NodeState
from cloudtrain.core.protocols import Completed
from cloudtrain.core.retry import AWAY, NODE_STARTS, PROVIDER_SILENT, STOP_HANDED_OVER, Clock
from cloudtrain.core.run_record import Run, RunAttempt, Task
from cloudtrain.core.shell import command
from cloudtrain.runs import node_replacement
from cloudtrain.runs.attempt_state import AttemptState, TaskView
from cloudtrain.runs.observers import Probes, Watched
from cloudtrain.runs.tasks import task_statuses
from cloudtrain.ssh.transport import RetryingTransport
from cloudtrain.state import Records
from cloudtrain.state.lock import ATTEND, PASSING
from tests.support.fakes import FakeProvider, make_plan
from tests.support.landing_parts import Heard

TASK = Task(role="chief", index=0, node="mnist-chief0", port=2222)
RUN = Run(
    id="20261121-062404-k3f9",
    cluster="mnist",
    command="python train.py",
    tasks=(TASK,),
    state="running",
    created=1000.0,
    attempts=(RunAttempt(number=1, started=1000.0),),
)


@dataclass
class Time:
    """`then` is what happens once so many seconds are over."""

    passed: float = 0.0
    then: dict[float, Callable[[], object]] = field(default_factory=dict)

    def sleep(self, seconds: float) -> None:
        self.passed += seconds
        for moment in [m for m in self.then if m <= self.passed]:
            self.then.pop(moment)()

    def clock(self) -> Clock:
        return Clock(now=self.now, monotonic=self.now, awake=self.now, sleep=self.sleep)

    def now(self) -> float:
        return self.passed


@dataclass
class Deaf:
    """A transport whose node lets nobody in for the first `times`."""

    times: int
    began: bool = False
    asked: int = 0

    def run(self, node: Node, *_: Any, **__: Any) -> Completed:
        self.asked += 1
        if self.asked <= self.times:
            error = NodeUnreachable(node.name, "connection refused")
            error.began = self.began
            raise error
        return Completed(exit_code=0, stdout=b"running\n", stderr=b"")

    ask = run


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path))


@pytest.fixture
def records() -> Records:
    records = Records("mnist")
    records.create()
    records.save_config({"name": "mnist", "provider": "local", "strategy": "custom"})
    records.save_run(RUN)
    return records


def session(records: Records, time: Time, transport: Any = None) -> Session:
    plan, provider = make_plan(), FakeProvider()
    provider.create(plan, None, lambda *_, **__: None)  # type: ignore[arg-type]
    made = Session(
        plan=plan,
        records=records,
        provider=provider,
        store=None,  # type: ignore[arg-type]
        console=Heard(),
        identity=adopt_identity(records, plan, ()),
        transport=transport,
        host_keys=None,  # type: ignore[arg-type]
        nodes=(),
        clock=time.clock(),
    )
    return made.refreshed()


def over(records: Records) -> None:
    records.save_run(replace(RUN, state="stopped", ended=1010.0))


def test_stop_run_waits_for_who_attends_to_the_run(records: Records, time: Time) -> None:
    time.then[30.0] = lambda: over(records)
    with records.lock("train"):
        run = stop_run("mnist", console=Heard(), clock=time.clock())
    assert run.ended == 1010.0
    assert records.stop_asked(RUN.id)
    assert 30.0 <= time.passed <= 30.5


def test_stop_run_names_a_process_that_does_not_stop_it(
    records: Records, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer looks than the 20,000 of an hour, each of which reads the record."""
    module = importlib.import_module("cloudtrain.commands.stop_run")
    monkeypatch.setattr(module, "POLL", replace(module.POLL, pause=5.0))
    with records.lock("train"), pytest.raises(LockedError, match="asked to stop it") as caught:
        stop_run("mnist", console=Heard(), clock=time.clock())
    assert "`cloudtrain train` (pid" in caught.value.message
    assert STOP_HANDED_OVER <= time.passed <= STOP_HANDED_OVER + 1


def test_down_waits_for_nodes_that_are_starting_up_to_a_limit(records: Records, time: Time) -> None:
    started = session(records, time)
    cloud = started.provider.cloud["mnist"]  # type: ignore[attr-defined]

    def becomes(state: NodeState) -> None:
        cloud["mnist-worker0"] = replace(cloud["mnist-worker0"], state=state)

    becomes("starting")
    time.then[20.0] = lambda: becomes("running")
    after = await_started(started)
    assert {node.state for node in after.nodes} == {"running"}
    assert time.passed <= 22.0
    becomes("starting")
    begun = time.passed
    assert "starting" in {node.state for node in await_started(started).nodes}
    assert time.passed - begun == NODE_STARTS


def test_a_run_is_not_followed_for_ever_without_its_nodes_and_its_provider(
    records: Records, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    time.passed = 1.0
    here = session(records, time)

    def nobody(cluster: str) -> tuple[Node, ...]:
        raise TransientError("no route to host")

    monkeypatch.setattr(here.provider, "nodes", nobody)
    view = TaskView(
        task=Task(role="worker", index=0, node="mnist-worker0", port=8900),
        unreachable_since=here.clock.now(),
    )
    state = AttemptState(config=here.config, tasks={"worker0": view}, started=0.0)
    probes = Probes(Watched(session=here, run=RUN))
    probes.look(state)
    time.sleep(PROVIDER_SILENT - 10)
    probes.look(state)
    assert view.lost is None
    time.sleep(10.0)
    probes.look(state)
    assert view.lost == "neither its node nor the provider answered for 86400 s"


def test_a_port_that_the_preflight_of_a_restart_opens_is_not_taken_for_the_tasks(
    records: Records, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = session(records, time)
    monkeypatch.setattr(
        "cloudtrain.runs.observers.listening_ports",
        lambda tasks, *_: frozenset(task.name for task in tasks),
    )
    worker = Task(role="worker", index=0, node="mnist-worker0", port=8900)
    view = TaskView(task=worker)
    view.begin_again(replace(worker, attempt=2), time.now())
    tasks = {"chief0": TaskView(task=TASK), "worker0": view}
    config = replace(here.config, strategy="multi_worker_mirrored")
    state = AttemptState(config=config, tasks=tasks, started=0.0)
    probes = Probes(Watched(session=here, run=RUN))
    probes.look(state)
    assert not view.port_open
    view.restarted_at = time.now()
    time.sleep(1.0)
    probes.look(state)
    assert view.port_open


def test_logs_follow_what_is_written_until_the_run_has_ended(records: Records, time: Time) -> None:
    log = records.log_path(RUN.id, "chief0", 1)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"one\n")

    def add() -> None:
        with log.open("ab") as file:
            file.write(b"two\n")

    time.then = {5.0: add, 60.0: lambda: over(records)}
    heard = Heard()
    shown: list[bytes] = []
    heard.task_output = lambda task, data: shown.append(data)  # type: ignore[method-assign]
    with records.lock("train"):
        logs("mnist", follow=True, console=heard, clock=time.clock())
    assert b"".join(shown) == b"one\ntwo\n"
    assert 60.0 <= time.passed <= 60.5


def test_a_lock_is_waited_for_as_long_as_was_asked(records: Records, time: Time) -> None:
    with records.lock("up"), pytest.raises(LockedError, match="`cloudtrain up`"):
        records.lock("attend", wait=30.0, clock=time.clock()).__enter__()
    assert 30.0 <= time.passed <= 30.1


def test_a_lock_of_nobody_is_tried_a_little_longer(records: Records, time: Time) -> None:
    with records.lock("up"):
        (Path(records.folder).parent / "mnist.lock").write_text("")
        with pytest.raises(LockedError, match="another command is working"):
            records.lock("down", clock=time.clock()).__enter__()
    assert PASSING <= time.passed <= PASSING + 0.1


@pytest.mark.parametrize("command", ["down", "train"])
def test_a_process_in_the_background_whose_run_has_ended_is_waited_for(
    records: Records, time: Time, command: str
) -> None:
    """The end is on record a moment before its process lets the cluster go."""
    records.save_run(RUN)
    attending = ExitStack()
    attending.enter_context(records.lock(ATTEND))
    with pytest.raises(LockedError, match="supervises its detached run"):
        records.lock(command, clock=time.clock()).__enter__()
    assert time.passed == 0
    records.save_run(replace(RUN, state="stopped", ended=1001.0))
    time.then[5.0] = attending.close
    with records.lock(command, clock=time.clock()):
        assert time.passed == pytest.approx(5.0, abs=0.1)


def test_a_question_to_a_task_is_asked_again_for_a_minute(records: Records, time: Time) -> None:
    deaf = Deaf(times=10**6)
    with pytest.raises(NodeUnreachable):
        task_statuses(session(records, time, deaf), RUN)
    assert time.passed == AWAY.within


def test_a_command_runs_once_a_connection_can_be_had(records: Records, time: Time) -> None:
    deaf, waits = Deaf(times=3), []
    node = session(records, time).nodes[0]
    transport = RetryingTransport(deaf, waits=waits.append, clock=time.clock())  # type: ignore[arg-type]
    assert transport.run(node, command("true")).exit_code == 0
    assert (time.passed, deaf.asked) == (3.0, 4)
    deaf.asked = 0
    assert transport.ask(node, "true").exit_code == 0
    assert waits == ["mnist-chief0: connection refused: retrying for up to 60 s"]


def test_a_node_that_stayed_away_is_not_waited_for_again(records: Records, time: Time) -> None:
    deaf = Deaf(times=63)
    node = session(records, time).nodes[0]
    transport = RetryingTransport(deaf, clock=time.clock())  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(NodeUnreachable):
            transport.run(node, command("true"))
    assert (time.passed, deaf.asked) == (AWAY.within, 62)
    with pytest.raises(NodeUnreachable):
        transport.run(node, command("true"))
    assert transport.run(node, command("true")).exit_code == 0
    deaf.times, deaf.asked = 2, 0
    assert transport.run(node, command("true")).exit_code == 0


def test_a_command_that_may_have_begun_is_not_run_again(records: Records, time: Time) -> None:
    deaf = Deaf(times=1, began=True)
    transport = RetryingTransport(deaf, clock=time.clock())  # type: ignore[arg-type]
    with pytest.raises(NodeUnreachable):
        transport.run(session(records, time).nodes[0], command("true"))
    assert deaf.asked == 1


def test_a_node_under_notice_is_waited_for_three_minutes_at_most(
    records: Records, time: Time
) -> None:
    here = session(records, time)
    node_replacement.await_nodes_gone(here, {TASK.node})
    assert time.passed == node_replacement.TAKEN.within


def test_a_machine_of_the_users_own_is_awaited_for_a_minute(records: Records, time: Time) -> None:
    here = session(records, time)
    cloud = here.provider.cloud["mnist"]  # type: ignore[attr-defined]
    cloud["mnist-chief0"] = replace(cloud["mnist-chief0"], state="unknown")
    assert await_known_states(here.refreshed()).nodes[0].state == "unknown"
    assert time.passed == ANSWERS.within
    known = replace(cloud["mnist-chief0"], state="running")
    time.then = {time.passed + 5.0: lambda: cloud.update({"mnist-chief0": known})}
    assert await_known_states(here.refreshed()).nodes[0].state == "running"
    assert time.passed == ANSWERS.within + 5.0


def test_train_says_who_can_go_on_with_a_run_whose_command_was_killed(
    records: Records, time: Time
) -> None:
    records.save_run(replace(RUN, state="running"))
    with pytest.raises(UsageError, match="is active, and no command supervises it") as refused:
        refuse_second_run(session(records, time))
    for words in ("logs -f mnist` takes it over", "stop-run mnist` ends", "down mnist` too"):
        assert words in (refused.value.hint or "")
