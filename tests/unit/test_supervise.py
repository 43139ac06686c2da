"""An attempt whose node is lost while it starts, and errors that have another reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.cluster.session import Session, adopt_identity
from cloudtrain.core.errors import CloudError, CloudtrainError, NodeUnreachable, PreflightError
from cloudtrain.core.model import Train
from cloudtrain.core.retry import CLOCK
from cloudtrain.core.run_record import Run, RunAttempt, Task
from cloudtrain.runs import finish, supervise
from cloudtrain.state import Records
from tests.support.fakes import FakeProvider, make_plan
from tests.support.landing_parts import Heard

RUN = Run(
    id="20261123-062404-k3f9",
    cluster="mnist",
    command="python train.py",
    tasks=(
        Task(role="chief", index=0, node="mnist-chief0", port=8900, attempt=1),
        Task(role="worker", index=0, node="mnist-worker0", port=8901, attempt=1),
    ),
    state="starting",
    created=1000.0,
    attempts=(RunAttempt(number=1, started=1000.0),),
)
SILENT = NodeUnreachable("mnist-worker0", "no answer")


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path))
    plan, provider, records = make_plan(workers=1), FakeProvider(), Records("mnist")
    plan = replace(plan, config=replace(plan.config, train=Train(command="x", max_restarts=1)))
    provider.create(plan, None, lambda *_, **__: None)  # type: ignore[arg-type]
    records.create()
    records.save_run(RUN)
    return Session(
        plan=plan,
        records=records,
        provider=provider,
        store=None,  # type: ignore[arg-type]
        console=Heard(),
        identity=adopt_identity(records, plan, ()),
        transport=None,  # type: ignore[arg-type]
        host_keys=None,  # type: ignore[arg-type]
        nodes=provider.nodes("mnist"),
        clock=replace(CLOCK, sleep=lambda _: None),
    )


def start_fails(
    monkeypatch: pytest.MonkeyPatch, session: Session, error: CloudtrainError, *, lost: bool
) -> None:
    def start_attempt(*_: object) -> None:
        if lost:
            cloud = session.provider.cloud["mnist"]  # type: ignore[attr-defined]
            cloud["mnist-worker0"] = replace(cloud["mnist-worker0"], state="stopped")
        raise error

    monkeypatch.setattr(supervise, "start_attempt", start_attempt)


@pytest.mark.parametrize(
    "error", [SILENT, PreflightError(problems=[(("mnist-chief0",), "refused")])]
)
def test_a_node_that_is_lost_while_an_attempt_starts_costs_that_attempt_alone(
    session: Session, monkeypatch: pytest.MonkeyPatch, error: CloudtrainError
) -> None:
    start_fails(monkeypatch, session, error, lost=True)
    _, run = supervise.run_attempt(session, RUN)
    assert run == session.records.run(RUN.id)
    assert run.state == "starting"
    (attempt,) = run.attempts
    assert attempt.ended is not None
    assert attempt.cause is not None
    assert (attempt.cause.kind, attempt.cause.task) == ("lost", "worker0")
    assert "restarting (1 of 1)" in session.console.warned[-1]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("lost", "restarts"), [(False, 1), (True, 0)], ids=["all nodes run", "no restart is left"]
)
def test_every_other_error_of_a_start_ends_the_run(
    session: Session, monkeypatch: pytest.MonkeyPatch, lost: bool, restarts: int
) -> None:
    train = Train(command="x", max_restarts=restarts)
    plan = replace(session.plan, config=replace(session.plan.config, train=train))
    session = replace(session, plan=plan)
    start_fails(monkeypatch, session, SILENT, lost=lost)
    with pytest.raises(NodeUnreachable):
        supervise.run_attempt(session, RUN)
    assert session.records.run(RUN.id) == RUN


def test_a_cloud_that_cannot_be_asked_does_not_hide_the_error(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nodes(*_: object) -> None:
        raise CloudError("not now")

    start_fails(monkeypatch, session, SILENT, lost=False)
    monkeypatch.setattr(session.provider, "nodes", nodes)
    with pytest.raises(NodeUnreachable):
        supervise.run_attempt(session, RUN)


def test_a_run_that_is_stopped_before_its_first_attempt_ends_as_stopped(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no cause, and its end raised IndexError."""
    new = replace(RUN, attempts=())
    session.records.save_run(new)
    session.records.ask_stop(RUN.id)
    monkeypatch.setattr(finish, "land_and_record", lambda _, run: run)
    told = list[tuple[str, str]]()
    monkeypatch.setattr(
        finish.notify, "run_ended", lambda *given: told.append((given[2].state, given[3]))
    )
    assert supervise.supervise_run(session, new).state == "stopped"
    assert told == [("stopped", "")]
