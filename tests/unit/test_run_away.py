"""`run --away` on the machine that sends a run away: what it clears before, and after a failure."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.away.desk_cluster import desk_config
from cloudtrain.away.published import AwayState, Phase, write_state
from cloudtrain.away.store_paths import new_desk_id
from cloudtrain.cluster import lease
from cloudtrain.cluster.session import record_cluster
from cloudtrain.commands import run_away as away_command
from cloudtrain.console.quiet import QuietConsole
from cloudtrain.errors import (
    CapacityError,
    CloudtrainError,
    LeasedError,
    LeftoverError,
    NodesError,
    NotLanded,
    UsageError,
)
from cloudtrain.model import ArtifactRules, Away, ClusterConfig, NodeGroup, Train
from cloudtrain.playbooks.archive import Archive
from cloudtrain.playbooks.code import FolderCode
from cloudtrain.retry import Clock
from cloudtrain.state import Records
from cloudtrain.stores import open_store
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
        code=FolderCode(root=Path("/p"), digest="d", archive=Archive(lambda tar: None)),
        secrets={},
        resume=None,
        ignore=(),
        wait=None,
    )


def sent_from_here(away: away_command.AwayPlan, cloud: FakeProvider) -> Records:
    """Records of a cluster whose desk this machine has created."""
    records, desk = Records("mnist"), Records("mnist-desk")
    away_command.record_away(away, records, Clock(now=lambda: NOW))
    record_cluster(away.desk.config, desk)
    (desk.folder / "key").write_text("")
    cloud.cloud["mnist-desk"] = {"mnist-desk-desk0": node("mnist-desk-desk0")}
    return records


def reports(away: away_command.AwayPlan, phase: Phase) -> None:
    state = AwayState(
        cluster="mnist", desk=DESK, phase=phase, as_of=NOW, began=NOW, node="mnist-desk"
    )
    write_state(open_store(away.config.artifacts.store or ""), state)


def has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The desk answers, and its process does not run."""
    nothing = contextlib.nullcontext()
    monkeypatch.setattr(away_command, "open_session", lambda handle, console: nothing)
    monkeypatch.setattr(away_command, "process_of", lambda session, name: "ended")


def fails_with(*failures: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    left = list(failures)

    def fail(*given: object) -> Any:
        raise left.pop(0)

    monkeypatch.setattr(away_command, "_begin", fail)


# ── what an earlier desk has left ────────────────────────────────────────────


def test_a_desk_whose_process_has_ended_is_deleted_before_the_next_one(
    away: away_command.AwayPlan, cloud: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = sent_from_here(away, cloud)
    reports(away, "waiting")
    has_ended(monkeypatch)
    away_command.clear_ended_desk(away, records, QuietConsole())
    assert cloud.cloud == {}


@pytest.mark.parametrize("phase", ["training", "ended"])
def test_it_is_kept_while_there_are_nodes_whose_keys_it_has(
    phase: Phase,
    away: away_command.AwayPlan,
    cloud: FakeProvider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = sent_from_here(away, cloud)
    cloud.cloud["mnist"] = {"mnist-worker0": node("mnist-worker0")}
    reports(away, phase)
    has_ended(monkeypatch)
    with pytest.raises(NotLanded, match="the keys of mnist-worker0 are on its disk alone"):
        away_command.clear_ended_desk(away, records, QuietConsole())
    assert set(cloud.cloud) == {"mnist", "mnist-desk"}


@pytest.mark.parametrize("earlier", [None, "ended"])
def test_a_desk_that_another_machine_may_be_creating_is_not_deleted(
    earlier: Phase | None, away: away_command.AwayPlan, cloud: FakeProvider
) -> None:
    cloud.cloud["mnist-desk"] = {"mnist-desk-desk0": node("mnist-desk-desk0")}
    if earlier is not None:
        reports(away, earlier)
    with pytest.raises(UsageError, match="mnist-desk exists, and this machine did not create it"):
        away_command.clear_ended_desk(away, Records("mnist"), QuietConsole())
    assert set(cloud.cloud) == {"mnist-desk"}


def test_it_is_not_deleted_while_another_machine_works_on_it(
    away: away_command.AwayPlan, cloud: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = sent_from_here(away, cloud)
    with monkeypatch.context() as other:
        other.setattr(lease, "this_machine", lambda: "other")
        held = lease.holding_lease(away.desk, "down", QuietConsole())
        held.__enter__()
    with pytest.raises(LeasedError):
        away_command.clear_ended_desk(away, records, QuietConsole())
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
            away_command.begin(away, "", False, QuietConsole(), Clock())
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
        away_command.begin(away, "", False, console, Clock())
    assert set(cloud.cloud) == {"mnist"}
    assert records.is_open()
    assert console.warned[-1] == (
        "mnist-worker0 may have been created by the desk: `cloudtrain down mnist --discard` "
        "deletes what is left"
    )


def test_another_machines_desk_is_not_deleted_by_the_one_that_came_second(
    away: away_command.AwayPlan, cloud: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails_with(LeasedError("mnist-desk is in use"), monkeypatch=monkeypatch)
    records = Records("mnist")
    away_command.record_away(away, records, Clock())
    cloud.cloud["mnist-desk"] = {"mnist-desk-desk0": node("mnist-desk-desk0")}
    with pytest.raises(LeasedError):
        away_command.begin(away, "", False, QuietConsole(), Clock())
    assert set(cloud.cloud) == {"mnist-desk"}
    assert not records.is_open()


def test_errors_of_both_are_told(
    away: away_command.AwayPlan, cloud: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    def destroy(*given: object, **named: object) -> None:
        raise LeftoverError("not deleted: instance mnist-desk-desk0")

    monkeypatch.setattr(away_command, "destroy_cluster", destroy)
    with pytest.raises(NodesError) as both:
        away_command.clean_up(away, Records("mnist"), QuietConsole(), CloudtrainError("first"))
    words: Sequence[str] = str(both.value).splitlines()
    assert any("first" in line for line in words)
    assert any("mnist-desk-desk0" in line for line in words)
