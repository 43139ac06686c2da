"""The lock that several machines heed: who has it is told, and it never ends or blocks for good."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cloudtrain.cli.app import cli
from cloudtrain.cluster import lease
from cloudtrain.cluster.lease import holding_lease
from cloudtrain.cluster.session import Handle
from cloudtrain.config import to_json
from cloudtrain.core import fence, moments
from cloudtrain.core.errors import CloudtrainError, LeasedError, StoreError
from cloudtrain.core.model import ArtifactRules, ClusterConfig
from cloudtrain.core.owner import login
from cloudtrain.core.protocols import Swapped
from cloudtrain.providers.base.provider import CloudProvider
from cloudtrain.state import Records
from cloudtrain.stores import open_store
from tests.support.fake_account import FakeAccount, cloud_plan
from tests.support.fakes import FakeProvider, eventually, make_identity, make_plan, no_journal

PLACE = ".leases/gcp/mnist.json"


class Told:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


class Machines:
    """Two of them, with one store."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.uri = (folder / "store").as_uri()
        self.told: Any = Told()
        self.config = ClusterConfig(
            name="mnist",
            provider="gcp",
            strategy="custom",
            nodes={},
            artifacts=ArtifactRules(store=self.uri),
        )
        self.be("one")

    def be(self, name: str) -> None:
        self.monkeypatch.setenv("CLOUDTRAIN_HOME", str(self.folder / name))

    @contextmanager
    def holding(self, doing: str = "train", **changes: Any) -> Iterator[None]:
        must = changes.pop("must", True)
        config = replace(self.config, **changes)
        with holding_lease(Handle(config), doing, self.told, must=must):
            yield

    def is_refused(self) -> bool:
        try:
            with self.holding("up"):
                return False
        except LeasedError:
            return True

    def on_store(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "store" / PLACE).read_text())
        return found

    def written(self) -> float:
        return (self.folder / "store" / PLACE).stat().st_mtime

    def leave(self, data: str, *, ago: float = 0.0) -> None:
        """By the store's clock, so many seconds ago."""
        store = open_store(self.uri)
        there = store.swap(PLACE, data.encode(), "")
        while not there.done:  # replaced in one step: a renewer takes one that is gone for a moment
            there = store.swap(PLACE, data.encode(), there.version)
        then = self.written() - ago
        os.utime(self.folder / "store" / PLACE, (then, then))


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    return Machines(tmp_path, monkeypatch)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes between two renewals."""
    monkeypatch.setattr(lease, "EVERY", 0.001)


def test_another_machine_is_told_who_is_at_work_and_gets_in_once_it_has_ended(
    machines: Machines,
) -> None:
    with machines.holding("train"):
        machines.be("two")
        with pytest.raises(LeasedError) as raised, machines.holding("down"):
            pass
        assert f"`cloudtrain train` (pid {machines.on_store()['pid']}, of {login()} on" in str(
            raised.value
        )
        assert raised.value.exit_code == 2
        assert "wait 60 s" in str(raised.value.hint)
    with machines.holding("down"):
        assert machines.on_store()["doing"] == "down"
    assert not (machines.folder / "store" / PLACE).exists()


def test_one_command_costs_two_requests(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bytes | None] = []
    store = open_store(machines.uri)
    whole = store.swap

    def swap(path: str, data: bytes | None, version: str) -> Swapped:
        calls.append(data)
        return whole(path, data, version)

    monkeypatch.setattr(store, "swap", swap)
    monkeypatch.setattr("cloudtrain.cluster.session.artifact_store", lambda *_: store)
    with machines.holding():
        pass
    assert [data is None for data in calls] == [False, True]


def test_a_holder_that_crashed_blocks_another_machine_no_longer_than_its_lease(
    machines: Machines,
) -> None:
    with machines.holding():
        left = json.dumps(machines.on_store())
    machines.be("two")
    machines.leave(left, ago=lease.LASTS / 2)
    assert machines.is_refused()
    machines.leave(left, ago=lease.LASTS + 0.1)
    assert not machines.is_refused()


def test_a_holder_that_crashed_on_this_machine_blocks_nobody_there(machines: Machines) -> None:
    with machines.holding():
        left = json.dumps(machines.on_store())
    machines.leave(left)
    assert not machines.is_refused()
    other = {**json.loads(left), "boot": "of a copy of this machine, or before it was started"}
    machines.leave(json.dumps(other))
    assert machines.is_refused()


@pytest.mark.usefixtures("hasty")
def test_it_is_renewed_as_long_as_the_command_goes_on(machines: Machines) -> None:
    with machines.holding():
        number, at = machines.on_store()["renewed"], machines.written()
        eventually(lambda: machines.on_store()["renewed"] > number + 2)
        eventually(lambda: machines.written() > at)
        machines.be("two")
        assert machines.is_refused()
    assert not machines.is_refused()


@pytest.mark.usefixtures("hasty")
def test_one_that_was_lost_ends_nothing_and_is_taken_again_when_it_is_free(
    machines: Machines,
) -> None:
    """As after a laptop has slept: another machine has come and gone meanwhile."""
    with machines.holding():
        pass
    machines.be("two")
    with machines.holding("down"):
        theirs = json.dumps(machines.on_store())
    machines.be("one")
    with machines.holding():
        machines.leave(theirs)
        eventually(lambda: machines.told.lines)
        assert "another machine works on it too: `cloudtrain down`" in machines.told.lines[0]
        assert machines.on_store()["doing"] == "down", "it is not taken from them"
        open_store(machines.uri).delete(PLACE)
        eventually(lambda: (machines.folder / "store" / PLACE).exists())
        assert machines.on_store()["doing"] == "train"
    assert len(machines.told.lines) == 1, "said once"


# ── deletions ────────────────────────────────────────────────────────────────


@pytest.fixture
def gaps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each entry stands for one time that the process stood still."""
    found: list[str] = []
    monkeypatch.setattr(moments, "gaps", lambda: len(found))
    return found


def test_a_deletion_after_a_gap_asks_for_the_lease_again_and_others_ask_nothing(
    machines: Machines, gaps: list[str]
) -> None:
    with machines.holding("down"):
        before = machines.written(), machines.on_store()["renewed"]
        fence.confirm()
        assert (machines.written(), machines.on_store()["renewed"]) == before
        gaps.append("a closed lid")
        fence.confirm()
        assert machines.on_store()["renewed"] == before[1] + 1
        fence.confirm()
        assert machines.on_store()["renewed"] == before[1] + 1, "once for each gap"
    fence.confirm()


def test_a_deletion_stops_if_another_machine_has_the_lease_after_a_gap(
    machines: Machines, gaps: list[str]
) -> None:
    machines.be("two")
    with machines.holding("up"):
        theirs = json.dumps(machines.on_store())
    machines.be("one")
    with machines.holding("down"):
        machines.leave(theirs)
        gaps.append("a closed lid")
        with pytest.raises(LeasedError, match="in use on another machine by now: `cloudtrain up`"):
            fence.confirm()
        with pytest.raises(LeasedError):
            fence.confirm()
        open_store(machines.uri).delete(PLACE)
        fence.confirm()
        assert machines.on_store()["doing"] == "down"


def test_a_deletion_stops_if_the_lease_cannot_be_renewed_after_a_gap(
    machines: Machines, gaps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(machines.uri)
    monkeypatch.setattr("cloudtrain.cluster.session.artifact_store", lambda *_: store)
    with machines.holding("down"):
        whole = store.swap

        def silent(*_: object) -> Swapped:
            raise StoreError("no answer")

        monkeypatch.setattr(store, "swap", silent)
        fence.confirm()
        gaps.append("a closed lid")
        with pytest.raises(LeasedError, match="cannot renew its lease on mnist: no answer"):
            fence.confirm()
        monkeypatch.setattr(store, "swap", whole)
        fence.confirm()


def test_without_a_lease_from_the_beginning_deletions_go_on(
    machines: Machines, gaps: list[str]
) -> None:
    (machines.folder / "file").touch()
    away = ArtifactRules(store=(machines.folder / "file").as_uri())
    with machines.holding("down", artifacts=away):
        gaps.append("a closed lid")
        fence.confirm()


def test_who_only_follows_a_run_is_not_refused(machines: Machines) -> None:
    with machines.holding("up"):
        machines.be("two")
        with machines.holding("attend", must=False):
            assert machines.on_store()["doing"] == "up"


@pytest.mark.parametrize(
    "data", ["", "{}", "[]", "null", '{"format": 9}', "{" * 5000, "[" * 60_000, "\0" * 99_999]
)
def test_a_lease_that_cannot_be_read_is_somebodys_for_as_long_as_one_lasts(
    machines: Machines, data: str
) -> None:
    machines.leave(data, ago=lease.LASTS / 2)
    assert machines.is_refused()
    machines.leave(data, ago=lease.LASTS + 0.1)
    assert not machines.is_refused()


@pytest.mark.parametrize(
    ("changes", "ago"),
    [
        ({"lasts": 1e300}, lease.LASTS + 0.1),
        ({"lasts": float("nan")}, lease.LASTS + 0.1),
        ({"lasts": -1.0}, 0.0),
        ({}, -10 * lease.LASTS),
    ],
)
def test_no_lease_lasts_longer_than_a_minute_after_it_was_written(
    machines: Machines, changes: dict[str, float], ago: float
) -> None:
    """Whatever it says of itself, and if it is of the future by the store's clock."""
    with machines.holding():
        left = json.dumps({**machines.on_store(), **changes})
    machines.be("two")
    machines.leave(left, ago=ago)
    assert not machines.is_refused()


# ── breaking one ─────────────────────────────────────────────────────────────


def broken(machines: Machines, id: str) -> Any:
    return holding_lease(Handle(machines.config), "down", machines.told, breaks=id)


@pytest.mark.usefixtures("hasty")
def test_a_lease_that_is_renewed_for_ever_is_broken_by_its_id_and_its_holder_is_fenced(
    machines: Machines,
) -> None:
    """Also once the `down` that broke it has ended, and the holder could take it again."""
    with machines.holding("run"):
        fence.confirm()
        machines.be("two")
        with pytest.raises(LeasedError) as refused, machines.holding("down"):
            pass
        id = refused.value.lease
        assert f"`cloudtrain down mnist --break-lease {id}` goes on" in str(refused.value.hint)
        with pytest.raises(LeasedError), broken(machines, "0" * 8):
            pass
        with broken(machines, id):
            assert machines.on_store()["doing"] == "down"
            fence.confirm()
        eventually(lambda: any("was broken by" in line for line in machines.told.lines))
        assert any(
            "broke the lease of another machine: waiting" in line for line in machines.told.lines
        )
        with pytest.raises(LeasedError, match=r"was broken by .* nothing more is created"):
            fence.confirm()
        assert machines.on_store()["broken"] == [id]
    machines.be("three")
    assert not machines.is_refused(), "what is left of it is over"
    assert machines.on_store()["broken"] == [id], "it is kept for a holder that sleeps"


@pytest.mark.usefixtures("hasty")
def test_who_writes_to_the_store_cannot_stop_a_down_that_broke_a_lease(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by another ID each time, not by winning every race, not by breaking this one."""
    with machines.holding("run"):
        theirs = machines.on_store()
    store = open_store(machines.uri)
    whole, count = store.swap, 0

    def raced(path: str, data: bytes | None, version: str) -> Swapped:
        nonlocal count
        count += 1
        mine = json.loads(data or b"{}")
        id = lease.holder_of(Swapped(done=False, data=data or b"")).id
        machines.leave(json.dumps({**theirs, "pid": count, "broken": [id]}))
        return whole(path, data, version) if not mine else store.peek(path)

    monkeypatch.setattr(store, "swap", raced)
    monkeypatch.setattr("cloudtrain.cluster.session.artifact_store", lambda *_: store)
    machines.be("two")
    with pytest.raises(LeasedError), broken(machines, "0" * 8):
        fence.confirm()
    with broken(machines, "any"):
        fence.confirm()


def test_a_holder_that_slept_while_its_lease_was_broken_creates_and_deletes_nothing(
    machines: Machines, gaps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "EVERY", 100.0)
    with machines.holding("run"):
        id = holder(machines).id
        machines.be("two")
        monkeypatch.setattr(lease, "EVERY", 0.001)
        with broken(machines, id):
            pass
        with machines.holding("up"):
            pass
        gaps.append("a closed lid")
        for _ in range(2):
            with pytest.raises(LeasedError, match="was broken by"):
                fence.confirm()


def holder(machines: Machines) -> lease.LeaseHolder:
    return lease.holder_of(Swapped(done=False, data=json.dumps(machines.on_store()).encode()))


def test_nothing_is_created_under_a_broken_lease(machines: Machines) -> None:
    """A spot node that is lost meanwhile is not requested again."""

    def refuse() -> None:
        raise LeasedError("broken")

    account = FakeAccount()
    (machines.folder / "keys").mkdir()
    provider = CloudProvider(account, caller=lambda: "", timing=account.clock.timing())
    plan = cloud_plan(make_plan())
    with fence.confirmed_by(refuse), pytest.raises(LeasedError, match="broken"):
        provider.create(plan, make_identity(machines.folder / "keys", plan), no_journal)
    assert account.machines_ == {}


def test_one_that_is_held_for_over_a_day_is_named_with_the_way_out(machines: Machines) -> None:
    with machines.holding("train"):
        assert lease.held_long(machines.config) == ""
        then = {**machines.on_store(), "since": time.time() - 3 * 86400.0, "host": "x\nhint: y"}
    assert lease.held_long(machines.config) == ""
    machines.leave(json.dumps(then))
    said = lease.held_long(machines.config)
    assert said.startswith("its lease is held for 3 days: `cloudtrain train` (pid ")
    assert said.isprintable()
    assert f"`cloudtrain down mnist --break-lease {holder(machines).id}`" in said
    machines.leave(json.dumps(then), ago=lease.LASTS + 1)
    assert lease.held_long(machines.config) == "", "it is not renewed any more"
    machines.leave("junk")
    assert "held by a file that cannot be read" in lease.held_long(machines.config)


@pytest.mark.usefixtures("hasty")
def test_a_store_that_refuses_or_is_not_there_stops_nothing(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machines.folder / "file").touch()
    away = ArtifactRules(store=(machines.folder / "file").as_uri())
    refused: list[CloudtrainError] = []
    explain = lease.LeaseRenewer._explain

    def counted(renewer: lease.LeaseRenewer, error: CloudtrainError) -> None:
        refused.append(error)
        explain(renewer, error)

    monkeypatch.setattr(lease.LeaseRenewer, "_explain", counted)
    with machines.holding(artifacts=away):
        eventually(lambda: len(refused) > 3)
    assert len(machines.told.lines) == 1
    assert machines.told.lines[0].startswith("no lease on mnist in its store: ")


def test_a_store_that_does_not_answer_is_not_waited_for(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence = threading.Event()

    def silent(*_: object) -> object:
        silence.wait()  # a test that waited for it would not end
        raise StoreError("it never answered")

    monkeypatch.setattr("cloudtrain.cluster.session.artifact_store", silent)
    monkeypatch.setattr(lease, "FIRST_ANSWER_SECONDS", 0.01)
    monkeypatch.setattr(lease, "FAREWELL", 0.01)
    with machines.holding():
        pass
    assert machines.told.lines == ["the store does not answer: no lease on mnist yet"]
    silence.set()


@pytest.mark.parametrize(
    "changes", [{"provider": "local"}, {"provider": "hosts"}, {"artifacts": ArtifactRules()}]
)
def test_there_is_none_where_no_other_machine_could_be_at_work(
    machines: Machines, changes: dict[str, Any]
) -> None:
    with machines.holding(**changes):
        assert not (machines.folder / "store").exists()


def test_an_error_of_the_command_is_told_as_it_is(machines: Machines) -> None:
    with pytest.raises(ZeroDivisionError), machines.holding():
        raise ZeroDivisionError
    assert not machines.is_refused()


# ── the commands ─────────────────────────────────────────────────────────────


@pytest.fixture
def cloud(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> FakeProvider:
    cloud = FakeProvider(name="gcp")
    module = types.ModuleType("cloudtrain.providers.gcp.provider")
    module.__spec__ = types.SimpleNamespace(name="gcp")  # type: ignore[assignment]
    module.provider = lambda config: cloud  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cloudtrain.providers.gcp.provider", module)
    cloud.create(make_plan("mnist", workers=0), None, no_journal)  # type: ignore[arg-type]
    return cloud


def known(machines: Machines) -> None:
    records = Records("mnist")
    records.create()
    (records.folder / "key").touch(mode=0o600)
    records.save_config(to_json(replace(machines.config, project="p", placement=("a",))))


def test_a_second_machine_neither_trains_nor_ends_what_the_first_is_at_work_on(
    machines: Machines, cloud: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(machines)
    run: Callable[..., Any] = CliRunner().invoke
    with machines.holding("train"):
        machines.be("two")
        known(machines)
        for words in (
            ["train", "mnist"],
            ["down", "mnist", "--yes"],
            ["down", "mnist", "--discard", "--yes"],
        ):
            done = run(cli, words)
            assert done.exit_code == 2, done.stderr
            assert "mnist is in use on another machine: `cloudtrain train` (pid" in done.stderr
        assert run(cli, ["status", "mnist"]).exit_code in (0, 6)
        assert cloud.nodes("mnist")
        monkeypatch.setattr(lease, "EVERY", 0.001)
        words = ["down", "mnist", "--discard", "--yes", "--break-lease", holder(machines).id]
        assert run(cli, words).exit_code == 0
        assert cloud.nodes("mnist") == ()
