"""How one task is restarted alone: recorded first, and only where it can be reached again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.cluster.session import Session, adopt_identity
from cloudtrain.core.errors import (
    AddressTakenError,
    CapacityError,
    CloudConfigError,
    CloudError,
    NodeError,
    NodeUnreachable,
)
from cloudtrain.core.events import pending_nodes
from cloudtrain.core.model import Limits, Node, Train
from cloudtrain.core.protocols import Completed
from cloudtrain.core.retry import Retry
from cloudtrain.core.run_record import Run, RunAttempt, Task
from cloudtrain.core.shell import Command
from cloudtrain.runs.attempt_state import AttemptState, End
from cloudtrain.runs.monitor import (
    OBSERVERS,
    give_up_restarts,
    is_unstarted,
    new_attempt_state,
    take,
)
from cloudtrain.runs.node_agents import task_stop
from cloudtrain.runs.observers import LimitWatch, NodeAgents, Observer, Watched
from cloudtrain.runs.start import next_attempts
from cloudtrain.runs.tail import Event
from cloudtrain.runs.task_commands import AttemptEnd
from cloudtrain.runs.task_restart import Restarted, TaskRestarts, record_restart
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

    ask = run


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
    take(state, Event(WORKER, AttemptEnd(state="exited", exit_code=-9)), 10.0)
    return state


def outcome(restarts: TaskRestarts) -> Restarted:
    found: list[Restarted] = []
    eventually(lambda: found.extend(restarts.take()) or found)
    return found[0]


@pytest.fixture
def restarts(session: Session) -> Iterator[TaskRestarts]:
    made = TaskRestarts(session, RUN)
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
    take(state, Event(WORKER, AttemptEnd(state="exited", exit_code=-9)), 11.0)
    assert not view.ended, "late news of the attempt that has failed"


def test_who_takes_over_starts_a_recorded_restart_that_was_not_begun(session: Session) -> None:
    run = record_restart(session, RUN, failed(session), "worker0")
    state = new_attempt_state(session, run)
    again = run.tasks[1]
    assert state.restarts["worker0"] == 1
    assert not state.tasks["worker0"].port_open
    assert state.tasks["ps0"].port_open
    take(state, Event(again, AttemptEnd(state="absent")), 20.0)
    view = state.tasks["worker0"]
    assert (view.begun, view.ended) == (True, False)
    assert is_unstarted(view, None), "also where its node was about to be recreated"
    assert not is_unstarted(state.tasks["ps0"], None)
    session.records.log_path(run.id, "worker0", 2).write_bytes(b"it has run\n")
    ran = new_attempt_state(session, run)
    take(ran, Event(again, AttemptEnd(state="absent")), 20.0)
    assert ran.tasks["worker0"].lost == "its node has no trace of it any more"


@pytest.mark.parametrize("observer", OBSERVERS)
def test_an_observer_holds_nothing_of_the_session_that_a_restart_replaces(
    session: Session, observer: type[Observer]
) -> None:
    watched = Watched(session=session, run=RUN)
    made = observer(watched)
    assert (made.is_anew(), made.is_anew()) == (True, False)
    watched.restarted(session.refreshed())
    assert made.session is watched.session is not session
    assert made.is_anew()
    old = (session, session.transport, session.provider, session.nodes, session.records)
    assert not [name for name, held in vars(made).items() if any(held is each for each in old)]


def test_an_agent_stays_with_the_attempt_that_ended_until_the_next_one_is_started(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside an attempt without a folder it would see no end, and archive nothing after it."""
    watched = Watched(session=session, run=RUN)
    begun: list[Run] = []
    monkeypatch.setattr(
        "cloudtrain.runs.observers.start_agents", lambda _, run: float(begun.append(run) is None)
    )
    agents = NodeAgents(watched)
    watched.run = recorded = next_attempts(RUN, {WORKER.name})
    agents._keep()
    watched.restarted(session)
    agents._keep()
    assert begun == [RUN, recorded]


def test_a_look_at_the_limits_tells_when_each_ends_the_run(session: Session) -> None:
    ends = [5000.0, 9000.0]
    nodes = [replace(session.nodes[0], created=1000.0, expires=each) for each in ends]
    limited = replace(session.config, train=replace(session.config.train, deadline=60.0))
    plan = replace(session.plan, config=limited)
    state, session = failed(session), replace(session, plan=plan, nodes=tuple(nodes))
    LimitWatch(Watched(session=session, run=RUN)).look(state)
    assert state.ends["deadline"] == End(at=1060.0, limit=60.0)
    first = min(task_stop(limited, node, RUN.created) for node in nodes)
    assert 4000.0 < first < state.ends["expired"].at < 5000.0
    assert "budget" not in state.ends


def test_the_monitor_asks_every_observer() -> None:
    assert set(Observer.__subclasses__()) == set(OBSERVERS)


@pytest.fixture
def gone(session: Session, monkeypatch: pytest.MonkeyPatch) -> FakeProvider:
    """The session's cloud, which has deleted worker 0's node; new nodes are logged in to at once.

    As in a cloud, a new node gets the next free address unless it asks for one.
    """
    monkeypatch.setattr("cloudtrain.cluster.provision.await_first_login", lambda *_, **__: None)
    assert isinstance(session.provider, FakeProvider)
    del session.provider.cloud["mnist"]["mnist-worker0"]
    session.provider.deeds.clear()
    return session.provider


def restarting(session: Session, run: Run = RUN) -> tuple[TaskRestarts, Run]:
    """Restarts that have begun to restart worker 0, and the record of that."""
    state = failed(session)
    restarts = TaskRestarts(session, run)
    run = record_restart(session, run, state, "worker0")
    restarts.begin(session, run, state, state.tasks["worker0"])
    return restarts, run


def test_a_clouds_node_that_is_gone_is_created_again_with_its_old_address(
    session: Session, gone: FakeProvider
) -> None:
    restarts, _ = restarting(session)
    eventually(lambda: "mnist-worker0" in gone.cloud["mnist"])
    restarts.end()
    assert outcome(restarts).session is None, "Silent does not answer"
    assert gone.deeds == [("create", "mnist-worker0")]
    assert gone.cloud["mnist"]["mnist-worker0"].internal == "10.0.0.2"
    assert isinstance(session.console, Heard)
    assert "mnist-worker0 is being recreated; the run continues" in session.console.warned


def test_who_takes_over_asks_for_the_address_that_the_run_has_recorded(
    session: Session, gone: FakeProvider
) -> None:
    first = replace(RUN.attempts[0], addresses={"mnist-worker0": "10.0.0.77"})
    restarts, _ = restarting(session.refreshed(), replace(RUN, attempts=(first,)))
    eventually(lambda: "mnist-worker0" in gone.cloud["mnist"])
    restarts.end()
    assert gone.cloud["mnist"]["mnist-worker0"].internal == "10.0.0.77"


def test_a_node_whose_address_nobody_knows_is_not_recreated_for_one_worker(
    session: Session, gone: FakeProvider
) -> None:
    restarts, _ = restarting(session.refreshed())
    done = outcome(restarts)
    assert (done.final or "").startswith("mnist-worker0 is gone, and no record has its address")
    assert gone.deeds == []


@pytest.mark.parametrize("kind", [AddressTakenError, CloudConfigError])
def test_where_the_address_cannot_be_had_the_worker_is_given_up_in_the_clouds_words(
    session: Session, gone: FakeProvider, kind: type[CloudError]
) -> None:
    gone.create_fails = {"mnist-worker0": kind("Address 10.0.0.2 is in use.")}
    late = replace(session.clock, monotonic=iter(range(0, 10**9, 1000)).__next__)
    restarts, _ = restarting(replace(session, clock=late))
    assert outcome(restarts).final == (
        "mnist-worker0 cannot be recreated with its address 10.0.0.2, and the chief connects to "
        "restarted workers at the addresses of its TF_CONFIG only: Address 10.0.0.2 is in use."
    )


def test_without_capacity_a_restart_has_failed_and_counts_as_one(
    session: Session, gone: FakeProvider
) -> None:
    gone.create_fails = {"mnist-worker0": CapacityError("east-a has no g5.xlarge")}
    config = replace(session.config, limits=Limits(wait=None))
    full = replace(session, plan=replace(session.plan, config=config))
    restarts, run = restarting(full)
    done = outcome(restarts)
    assert isinstance(done.error, CapacityError)
    assert done.final is None
    assert run.restarts_of("worker0") == 1


def test_an_address_that_the_deleted_node_still_has_is_asked_for_again(
    session: Session, gone: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.runs.task_restart.FREED", Retry(pause=0.01, within=60.0))
    gone.create_fails = {"mnist-worker0": AddressTakenError("Address 10.0.0.2 is in use.")}
    restarts, _ = restarting(session)
    eventually(lambda: pending_nodes(session.records.events()))
    gone.create_fails = {}
    eventually(lambda: "mnist-worker0" in gone.cloud["mnist"])
    restarts.end()
    assert gone.cloud["mnist"]["mnist-worker0"].internal == "10.0.0.2"


def test_a_node_that_a_dead_process_may_have_left_half_ready_is_made_ready_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[str] = []
    begun = threading.Event()

    def prepare(there: Session, run: Run) -> None:
        prepared.extend(node.name for node in there.nodes)
        begun.set()
        raise NodeError("mnist-worker0", "enough")

    monkeypatch.setattr("cloudtrain.cluster.provision.await_first_login", lambda *_, **__: None)
    monkeypatch.setattr("cloudtrain.runs.task_restart.prepare_nodes", prepare)
    run = record_restart(session, RUN, failed(session), "worker0")
    state = new_attempt_state(session, run)
    take(state, Event(run.tasks[1], AttemptEnd(state="absent")), 20.0)
    restarts = TaskRestarts(session, run)
    restarts.begin(session, run, state, state.tasks["worker0"])
    assert isinstance(outcome(restarts).error, NodeError)
    assert prepared == ["mnist-worker0"]


def test_a_host_that_reboots_is_awaited(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudtrain.runs.task_restart.RETURNED", Retry(pause=0.01, within=60.0))
    assert isinstance(session.provider, FakeProvider)
    cluster = session.provider.cloud["mnist"]
    there = cluster["mnist-worker0"]
    cluster["mnist-worker0"] = replace(there, state="unknown")
    asked = threading.Event()

    class Answers(Silent):
        def run(self, node: Node, *_: object, **__: object) -> None:  # type: ignore[override]
            asked.set()
            raise NodeError(node.name, "enough")

    restarts, _ = restarting(replace(session, transport=Answers()))  # type: ignore[arg-type]
    assert not asked.wait(0.1)
    cluster["mnist-worker0"] = there
    assert isinstance(outcome(restarts).error, NodeError)


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
    restarts, state = TaskRestarts(there, RUN), failed(session)
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
    assert happened.wait(60)
    with pytest.raises(TypeError, match="ours"):
        eventually(lambda: list(restarts.take()))
