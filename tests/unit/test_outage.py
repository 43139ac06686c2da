"""What is away at the end is waited for, and what only a user can mend is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.artifacts.land import not_landed
from cloudtrain.core.errors import (
    CloudtrainError,
    CredentialsError,
    HostKeyMismatch,
    NoBucketError,
    NodesError,
    NodeUnreachable,
    NotAskedError,
    NotLanded,
    RunFailed,
    StoreAway,
    StoreError,
    TransientError,
)
from cloudtrain.core.events import down_fault
from cloudtrain.core.model import Plan
from cloudtrain.core.retry import Clock
from cloudtrain.runs.supervise import TRIES, passes, retry_outage
from cloudtrain.state import Records
from tests.support.fakes import make_plan
from tests.support.landing_parts import Heard

AWAY = StoreAway("s3://b: connection refused")
HALF_AN_HOUR = replace(TRIES, within=1800.0)


def caused(kind: type[CloudtrainError], cause: CloudtrainError) -> CloudtrainError:
    error = kind("not landed")
    error.__cause__ = cause
    return error


def caused_by_landing(cause: CloudtrainError) -> CloudtrainError:
    error = not_landed(cause)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        AWAY,
        TransientError("no route to host"),
        NotAskedError("us-east-1 does not answer"),
        NodesError({"run": AWAY, "landing": TransientError("503")}),
        caused(NotLanded, NodesError({"a": AWAY, "b": TransientError("503")})),
        caused(StoreError, AWAY),
    ],
)
def test_what_is_away_passes(error: CloudtrainError) -> None:
    assert passes(error)


@pytest.mark.parametrize(
    "error",
    [
        StoreError("no space left"),
        NoBucketError("b"),
        CredentialsError("expired"),
        NotLanded("more than artifacts.limit"),
        NodeUnreachable("a", "no answer"),
        HostKeyMismatch("a", "another key"),
        RunFailed("exit code 1"),
        NodesError({"a": AWAY, "b": NotLanded("unreadable")}),
        caused(NotLanded, NodeUnreachable("a", "no answer")),
        caused_by_landing(StoreError("not a directory")),
    ],
)
def test_what_a_user_must_mend_does_not(error: CloudtrainError) -> None:
    assert not passes(error)


def rented() -> Plan:
    plan = make_plan()
    config = replace(plan.config, provider="gcp", placement=("us-central1-a",))
    nodes = tuple(replace(node, machine="n1-standard-4", disk_gb=100) for node in plan.nodes)
    return replace(plan, config=config, nodes=nodes)


class World:
    """A store that is away until a moment, on a clock that only sleeping moves."""

    def __init__(self, back: float) -> None:
        self.back, self.now, self.console = back, 0.0, Heard()
        self.clock = Clock(now=lambda: 1e9 + self.now, monotonic=lambda: self.now, sleep=self.sleep)
        self.records = Records("mnist")
        self.records.create()

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def land(self) -> str:
        if self.now < self.back:
            raise AWAY
        return "landed"

    def retry_outage(self) -> str:
        return retry_outage(
            self.land,
            self.records,
            rented,
            self.console,
            clock=self.clock,
            tries=HALF_AN_HOUR,
        )


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path))


def test_a_store_that_is_away_for_minutes_is_waited_for_with_a_line_each_minute() -> None:
    world = World(back=600.0)
    assert world.retry_outage() == "landed"
    assert world.now < 600.0 + TRIES.longest
    assert 5 <= len(world.console.warned) <= 10
    first = world.console.warned[0]
    assert first.startswith("s3://b: connection refused\ntrying again in 10 s, until ")
    assert "; the nodes cost at most " in first


def test_status_can_tell_what_is_waited_for_and_when_it_is_tried_next() -> None:
    world = World(back=1e6)
    with pytest.raises(StoreAway):
        world.retry_outage()
    assert world.now == 1800.0
    failed = down_fault(world.records.events())
    assert failed is not None
    assert (failed.why, failed.again) == (AWAY.message, 1e9 + 1800.0)


def test_what_does_not_pass_is_raised_at_once() -> None:
    world = World(back=0.0)

    def land() -> None:
        raise NoBucketError("b")

    with pytest.raises(NoBucketError):
        retry_outage(land, world.records, make_plan, world.console, tries=HALF_AN_HOUR)
    assert world.console.warned == []
