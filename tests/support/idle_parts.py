"""A cluster with `limits.idle`, on a clock that only sleeping moves."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.commands import idle as verb
from cloudtrain.config import to_json
from cloudtrain.core.events import UpCompleted
from cloudtrain.core.model import ClusterConfig, Limits, NodeGroup
from cloudtrain.core.retry import Clock
from cloudtrain.core.run_record import Run
from cloudtrain.state import Records
from tests.support.landing_parts import Heard

LIMIT = 1800.0

RUN = Run(
    id="20261121-062404-k3f9",
    cluster="mnist",
    command="python train.py",
    tasks=(),
    state="running",
    created=1.0,
)


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Records:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "home"))
    return up(LIMIT)


def up(limit: float | None) -> Records:
    records = Records("mnist")
    records.create()
    config = ClusterConfig(
        name="mnist",
        provider="local",
        strategy="custom",
        nodes={"worker": NodeGroup()},
        limits=Limits(idle=limit),
    )
    records.save_config(to_json(config))
    records.journal(UpCompleted())
    return records


class World:
    """A clock that only sleeping moves, and `down` as somebody saw it done.

    `then` is what happens at a moment (seconds from now); one that is the last ends the watching.
    """

    def __init__(self, records: Records) -> None:
        self.records = records
        self.begun = self.now = time.time()
        self.then: dict[float, Callable[[], object]] = {}
        self.faults: list[Exception] = []
        self.tried: list[float] = []
        self.attended: list[float] = []
        self.console = Heard()

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for moment in [m for m in self.then if self.begun + m <= self.now]:
            self.then.pop(moment)()

    def down(self, *_: object, discard: bool, **__: object) -> None:
        assert not discard
        holder = self.records.holder()
        assert holder is not None
        assert holder.doing == "idle"
        self.tried.append(round(self.now - self.begun))
        if self.faults:
            raise self.faults.pop(0)
        self.records.close()

    def attend(self, *_: object, **__: object) -> None:
        self.attended.append(round(self.now - self.begun))
        self.records.save_run(replace(RUN, state="stopped", ended=self.now))
        event_at(self, "ended")
        if self.faults:
            raise self.faults.pop(0)

    def run_idle_process(self) -> None:
        verb.idle("mnist", console=self.console, clock=Clock(now=self.clock, sleep=self.sleep))


@pytest.fixture
def world(records: Records, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(records)
    monkeypatch.setattr(verb, "destroy_cluster", world.down)
    monkeypatch.setattr(verb, "attend", world.attend)
    monkeypatch.setattr(verb, "POLL", 20.0)
    return world


def event_at(world: World, event: str) -> None:
    with (world.records.folder / "events.jsonl").open("a") as file:
        file.write(json.dumps({"time": world.now, "event": event}) + "\n")
