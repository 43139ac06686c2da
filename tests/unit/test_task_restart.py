"""How one task is restarted alone: recorded first, and only where it can be reached again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.cluster.session import Session, adopt_identity
from cloudtrain.errors import NodeError, NodeUnreachable
from cloudtrain.model import Node, Train
from cloudtrain.protocols import Completed
from cloudtrain.run_record import Run, RunAttempt, Task
from cloudtrain.runs.attempt_state import AttemptState
from cloudtrain.runs.monitor import give_up_restarts, is_unstarted, new_attempt_state, take
from cloudtrain.runs.tail import AttemptEnded
from cloudtrain.runs.task_commands import AttemptEnd
from cloudtrain.runs.task_restart import Restarted, TaskRestarts, record_restart
from cloudtrain.shell import Command
from cloudtrain.state import Records
from tests.support.fakes import FakeProvider, eventually, make_plan
from tests.support.landing_parts import Heard

CHIEF = Task(role="chief", index=0, node="mnist-chief0", port=8900, attempt=1)
WORKER = Task(role="worker", index=0, node="mnist-worker0", port=8901, attempt=1)
PS = Task(role="ps", index=0, node="mnist-ps0", port=8902, attempt=1)
RUN = Run(
    id="20261121-062404-k3f9",
    cluster="mnist",
    command="python train.py",
    tasks=(CHIEF, WORKER, PS),
    state="running",
    created=1000.0,
    attempts=(RunAttempt(number=1, started=1000.0, clustered=True, formed_after=3.0),),
)


class Silent:
    """A transport to nodes that do not answer."""

    def run(self, node: object, *_: object, **__: object) -> None:
        raise NodeUnreachable("mnist-worker0", "no answer")


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path))
    plan, provider, records = make_plan(workers=1, ps=1), FakeProvider(), Records("mnist")
    train = Train(command="x", max_restarts=2)
    config = replace(plan.config, strategy="parameter_server", provider="gcp", train=train)
    plan = replace(plan, config=config)
    provider.create(plan, None, lambda *_, **__: None)  # type: ignore[arg-type]
    records.create()
    records.save_run(RUN)
    made = Session(
        plan=plan,
        records=records,
        provider=provider,
        store=None,  # type: ignore[arg-type]
        console=Heard(),
        identity=adopt_identity(records, plan, ()),
        transport=Silent(),  # type: ignore[arg-type]
        host_keys=None,  # type: ignore[arg-type]
        nodes=(),
    )
    return made.refreshed()


def failed(session: Session) -> AttemptState:
    """The state of an attempt whose worker was killed."""
    state = new_attempt_state(session, RUN)
    take(state, AttemptEnded(WORKER, AttemptEnd(state="exited", exit_code=-9)), 10.0)
    return state


def outcome(restarts: TaskRestarts) -> Restarted:
    found: list[Restarted] = []
    eventually(lambda: found.extend(restarts.take()) or found)
    return found[0]


@pytest.fixture
def restarts(session: Session) -> Iterator[TaskRestarts]:
    made = TaskRestarts(session)
    yield made
    made.end()


def test_a_restart_is_recorded_with_its_reason_before_anything_of_it_exists(
    session: Session,
) -> None:
    state = failed(session)
    run = record_restart(session, RUN, state, "worker0")
    assert session.records.run(RUN.id) == run
    assert [task.attempt for task in run.tasks] == [1, 2, 1]
    (cause,) = run.attempts[-1].restarted
    assert (cause.task, cause.kind, cause.text) == ("worker0", "signal", "killed by SIGKILL")
    assert run.attempts[-1].formed_after == 3.0
    view = state.tasks["worker0"]
    assert (view.task.attempt, view.begun, view.ended) == (2, True, False)
    assert state.restarts == {"chief0": 0, "worker0": 1, "ps0": 0}
    assert session.records.events()[-1]["event"] == "restart"
    take(state, AttemptEnded(WORKER, AttemptEnd(state="exited", exit_code=-9)), 11.0)
    assert not view.ended, "late news of the attempt that has failed"


def test_who_takes_over_starts_a_recorded_restart_that_was_not_begun(session: Session) -> None:
    run = record_restart(session, RUN, failed(session), "worker0")
    state = new_attempt_state(session, run)
    again = run.tasks[1]
    assert state.restarts["worker0"] == 1
    assert not state.tasks["worker0"].port_open
    assert state.tasks["ps0"].port_open
    take(state, AttemptEnded(again, AttemptEnd(state="absent")), 20.0)
    view = state.tasks["worker0"]
    assert (view.begun, view.ended) == (True, False)
    assert is_unstarted(view, None), "also where its node was about to be recreated"
    assert not is_unstarted(state.tasks["ps0"], None)
    session.records.log_path(run.id, "worker0", 2).write_bytes(b"it has run\n")
    ran = new_attempt_state(session, run)
    take(ran, AttemptEnded(again, AttemptEnd(state="absent")), 20.0)
    assert ran.tasks["worker0"].lost == "its node has no trace of it any more"


def test_a_clouds_node_that_is_gone_is_not_recreated_for_one_worker(
    session: Session, restarts: TaskRestarts
) -> None:
    state = failed(session)
    run = record_restart(session, RUN, state, "worker0")
    assert isinstance(session.provider, FakeProvider)
    del session.provider.cloud["mnist"]["mnist-worker0"]
    session.provider.deeds.clear()
    restarts.begin(session, run, state, state.tasks["worker0"])
    done = outcome(restarts)
    assert done.session is None
    assert (done.final or "").startswith("mnist-worker0 is gone: a new node would have another")
    assert session.provider.deeds == []


def test_a_node_that_does_not_answer_is_a_failure_of_this_restart_alone(
    session: Session, restarts: TaskRestarts
) -> None:
    state = failed(session)
    run = record_restart(session, RUN, state, "worker0")
    quick = replace(session, clock=replace(session.clock, now=iter(range(10**6)).__next__))
    restarts.begin(quick, run, state, state.tasks["worker0"])
    restarts.end()
    done = outcome(restarts)
    assert done.session is None
    assert done.final or isinstance(done.error, NodeUnreachable)


def test_whatever_is_left_of_earlier_attempts_is_ended_first_and_nothing_else(
    session: Session,
) -> None:
    asked: list[tuple[str, ...]] = []

    class Answers(Silent):
        def run(self, node: Node, command: Command, **_: object) -> Completed:  # type: ignore[override]
            asked.append((node.name, *command.arguments[4:]))
            if len(asked) == 1:
                return Completed(exit_code=0, stdout=b"", stderr=b"")
            raise NodeError(node.name, "no more")

    there = replace(session, transport=Answers())  # type: ignore[arg-type]
    restarts, state = TaskRestarts(there), failed(session)
    run = record_restart(session, RUN, state, "worker0")
    restarts.begin(there, run, state, state.tasks["worker0"])
    assert isinstance(outcome(restarts).error, NodeError)
    node, verb, cluster, *rest = asked[0]
    assert (node, verb, cluster) == ("mnist-worker0", "orphans", "mnist")
    assert rest[2:] == [f"mnist/{RUN.id}/{each}" for each in ("chief0/1", "worker0/2", "ps0/1")]


def test_after_the_attempts_end_nothing_is_started(
    session: Session, restarts: TaskRestarts
) -> None:
    state = failed(session)
    run = record_restart(session, RUN, state, "worker0")
    restarts.end()
    restarts.begin(session, run, state, state.tasks["worker0"])
    assert "its attempt has ended" in (outcome(restarts).final or "")
    give_up_restarts(state, 30.0)
    assert state.tasks["worker0"].lost == "the attempt ended before it was restarted"


def test_a_fault_of_our_own_is_raised_and_not_taken_for_the_nodes(
    session: Session, restarts: TaskRestarts, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = failed(session)
    run = record_restart(session, RUN, state, "worker0")
    happened = threading.Event()

    def breaks(self: Session) -> Session:
        happened.set()
        raise TypeError("ours")

    monkeypatch.setattr(Session, "refreshed", breaks)
    restarts.begin(session, run, state, state.tasks["worker0"])
    assert happened.wait(10)
    with pytest.raises(TypeError, match="ours"):
        eventually(lambda: list(restarts.take()))
