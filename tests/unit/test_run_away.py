"""`run --away` on the machine that sends a run away: what it clears before, and after a failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.away.desk_cluster import desk_config
from cloudtrain.away.job import Process
from cloudtrain.away.orders import load_order_key
from cloudtrain.away.published import AwayState, write_state
from cloudtrain.away.signatures import new_desk_id
from cloudtrain.cluster import lease
from cloudtrain.cluster.session import record_cluster
from cloudtrain.commands import run_away as away_command
from cloudtrain.console.logging_console import LoggingConsole
from cloudtrain.core import moments
from cloudtrain.core.errors import (
    CapacityError,
    CloudtrainError,
    LeasedError,
    LeftoverError,
    NodesError,
    NotLanded,
    UsageError,
)
from cloudtrain.core.model import ArtifactRules, Away, ClusterConfig, Code, NodeGroup, Train
from cloudtrain.core.retry import Clock
from cloudtrain.playbooks.code import CodeArchive, FolderCode
from cloudtrain.state import Records
from cloudtrain.state.away_record import AwayRecord, away_record, desk_mark, mark_of
from cloudtrain.state.folder import ORDER_KEY
from cloudtrain.stores import open_store
from tests.support.desk_parts import desk_node, record_desk
from tests.support.fakes import FakeProvider
from tests.support.landing_parts import Heard
from tests.support.nodes_here import node

NOW = 1_795_000_000.0
DESK = new_desk_id(NOW)


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeProvider:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "home"))
    fake = FakeProvider()
    monkeypatch.setattr("cloudtrain.cluster.session.open_provider", lambda config: fake)
    return fake


@pytest.fixture
def away(cloud: FakeProvider, tmp_path: Path) -> away_command.AwayPlan:
    config = ClusterConfig(
        name="mnist",
        provider="aws",
        strategy="multi_worker_mirrored",
        nodes={"worker": NodeGroup(count=2, machine="m6i.xlarge")},
        placement=("us-east-1a",),
        train=Train(command="python train.py"),
        artifacts=ArtifactRules(store=(tmp_path / "store").as_uri()),
        away=Away(identity="desk"),
        source=str(tmp_path / "mnist.yaml"),
    )
    return away_command.AwayPlan(
        config=config,
        desk=away_command.Handle(desk_config(config, Path("/p"))),
        id=DESK,
        code=FolderCode(root=Path("/p"), digest="d", archive=CodeArchive(lambda tar: None)),
        secrets={},
        resume=None,
        ignore=(),
        wait=None,
    )


def sent_from_here(away: away_command.AwayPlan, cloud: FakeProvider) -> Records:
    """Records of a cluster whose desk this machine has created."""
    records = Records("mnist")
    record = away_command.record_away(away, records, Clock(now=lambda: NOW))
    (record_desk(away.config).folder / "key").write_text("")
    cloud.cloud["mnist-desk"] = desk_node("mnist", mark_of(record))
    return records


def answers(monkeypatch: pytest.MonkeyPatch, process: Process | None) -> None:
    """The desk's machine says so of its process; None: it does not answer."""
    monkeypatch.setattr(away_command, "process_there", lambda desk, console: process)


def record_of(records: Records) -> AwayRecord:
    found = away_record(records)
    assert found is not None
    return found


def fails_with(*failures: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    left = list(failures)

    def fail(*given: object) -> Any:
        raise left.pop(0)

    monkeypatch.setattr("cloudtrain.away.desk_cluster.write_program", fail)  # the first step


# ── what an earlier desk has left ────────────────────────────────────────────


def test_a_desk_whose_process_has_ended_is_deleted_before_the_next_one(
    away: away_command.AwayPlan, cloud: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = sent_from_here(away, cloud)
    answers(monkeypatch, "ended")
    away_command.clear_ended_desk(away, records, LoggingConsole())
    assert cloud.cloud == {}


@pytest.mark.parametrize("process", ["ended", "none", None])
def test_it_is_kept_while_there_are_nodes_whose_keys_it_has(
    process: Process | None,
    away: away_command.AwayPlan,
    cloud: FakeProvider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = sent_from_here(away, cloud)
    cloud.cloud["mnist"] = {"mnist-worker0": node("mnist-worker0")}
    answers(monkeypatch, process)
    with pytest.raises(NotLanded, match="the keys of mnist-worker0 are on its disk alone"):
        away_command.clear_ended_desk(away, records, LoggingConsole())
    assert set(cloud.cloud) == {"mnist", "mnist-desk"}


def test_a_desk_at_work_is_not_deleted_whatever_the_store_has_of_it(
    away: away_command.AwayPlan, cloud: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its machine does not answer, its signed report says so."""
    records = sent_from_here(away, cloud)
    state = AwayState(cluster="mnist", desk=DESK, phase="waiting", as_of=moments.now(), began=NOW)
    store, key = open_store(away.config.artifacts.store or ""), records.folder / ORDER_KEY
    for process in ("running", None):
        answers(monkeypatch, process)  # type: ignore[arg-type]
        write_state(store, state, load_order_key(key) if process is None else None)
        with pytest.raises(UsageError, match="mnist is away: its controller is at work"):
            away_command.clear_ended_desk(away, records, LoggingConsole())
        assert set(cloud.cloud) == {"mnist-desk"}
    answers(monkeypatch, None)
    write_state(store, state, None)
    away_command.clear_ended_desk(away, records, LoggingConsole())  # nothing is lost with it
    assert cloud.cloud == {}


@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("role", ["chief", "desk"])
def test_the_users_own_cluster_of_the_desks_name_is_left_alone_and_named(
    role: str, sent: bool, away: away_command.AwayPlan, cloud: FakeProvider
) -> None:
    """Its keys are here too, and the run's store says that a desk of this name has ended."""
    if sent:
        sent_from_here(away, cloud)
    other = replace(away.config, name="mnist-desk", nodes={role: NodeGroup()}, code=Code())
    record_cluster(other, Records("mnist-desk"))
    (Records("mnist-desk").folder / "key").write_text("")
    for there in ({f"mnist-desk-{role}0": replace(node(f"mnist-desk-{role}0"), role=role)}, {}):
        cloud.cloud["mnist-desk"] = there
        with pytest.raises(UsageError, match="the name mnist-desk is taken") as caught:
            away_command.clear_ended_desk(away, Records("mnist"), LoggingConsole())
        assert "`cloudtrain down mnist-desk`" in (caught.value.hint or "")
        with pytest.raises(NodesError, match="the name mnist-desk is taken"):
            away_command.clean_up(
                away, Records("mnist"), LoggingConsole(), CloudtrainError("first")
            )
        assert cloud.cloud["mnist-desk"] == there
    assert cloud.deeds == []


def test_a_desk_that_another_machine_may_be_creating_is_not_deleted(
    away: away_command.AwayPlan, cloud: FakeProvider
) -> None:
    cloud.cloud["mnist-desk"] = desk_node("mnist", desk_mark(DESK, "another machine's"))
    with pytest.raises(UsageError, match="mnist-desk exists, and this machine did not create it"):
        away_command.clear_ended_desk(away, Records("mnist"), LoggingConsole())
    assert set(cloud.cloud) == {"mnist-desk"}


def test_it_is_not_deleted_while_another_machine_works_on_it(
    away: away_command.AwayPlan, cloud: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = sent_from_here(away, cloud)
    with monkeypatch.context() as other:
        other.setattr(lease, "this_machine", lambda: "other")
        held = lease.holding_lease(away.desk, "down", LoggingConsole())
        held.__enter__()
    with pytest.raises(LeasedError):
        away_command.clear_ended_desk(away, records, LoggingConsole())
    assert set(cloud.cloud) == {"mnist-desk"}
    held.__exit__(None, None, None)


# ── after a failure ──────────────────────────────────────────────────────────


def test_what_fails_before_the_desk_has_begun_ends_in_its_deletion(
    away: away_command.AwayPlan, cloud: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails_with(CapacityError("no room"), KeyboardInterrupt(), monkeypatch=monkeypatch)
    for kind in (CapacityError, KeyboardInterrupt):
        records = sent_from_here(away, cloud)
        with pytest.raises(kind):
            away_command.begin(away, record_of(records), False, LoggingConsole(), Clock())
        assert cloud.cloud == {}
        assert not records.is_open()
    assert [name for _, name in cloud.deeds] == ["mnist-desk-desk0"] * 2


def test_nodes_that_the_desk_had_requested_by_then_stay_on_record_and_are_named(
    away: away_command.AwayPlan, cloud: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process had started when the interrupt came."""
    fails_with(KeyboardInterrupt(), monkeypatch=monkeypatch)
    records, console = sent_from_here(away, cloud), Heard()
    cloud.cloud["mnist"] = {"mnist-worker0": node("mnist-worker0")}
    with pytest.raises(KeyboardInterrupt):
        away_command.begin(away, record_of(records), False, console, Clock())
    assert set(cloud.cloud) == {"mnist"}
    assert records.is_open()
    assert console.warned[-1] == (
        "mnist-worker0 may have been created by the controller: `cloudtrain down mnist --discard` "
        "deletes what is left"
    )


def test_another_machines_desk_is_not_deleted_by_the_one_that_came_second(
    away: away_command.AwayPlan, cloud: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails_with(LeasedError("mnist-desk is in use"), monkeypatch=monkeypatch)
    records = Records("mnist")
    away_command.record_away(away, records, Clock())
    cloud.cloud["mnist-desk"] = desk_node("mnist", desk_mark(DESK, "another machine's"))
    with pytest.raises(LeasedError):
        away_command.begin(away, record_of(records), False, LoggingConsole(), Clock())
    assert set(cloud.cloud) == {"mnist-desk"}
    assert not records.is_open()


def test_errors_of_both_are_told(
    away: away_command.AwayPlan, cloud: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    def destroy(*given: object, **named: object) -> None:
        raise LeftoverError("not deleted: instance mnist-desk-desk0")

    monkeypatch.setattr(away_command, "destroy_cluster", destroy)
    with pytest.raises(NodesError) as both:
        away_command.clean_up(away, Records("mnist"), LoggingConsole(), CloudtrainError("first"))
    words: Sequence[str] = str(both.value).splitlines()
    assert any("first" in line for line in words)
    assert any("mnist-desk-desk0" in line for line in words)
