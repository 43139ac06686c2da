"""A lost node for which there is no capacity now is requested again before the next attempt."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.cluster.rollback import billed
from cloudtrain.cluster.session import Session, adopt_identity
from cloudtrain.core.errors import (
    CapacityError,
    CloudError,
    NotFoundError,
    PlaceRefusal,
    QuotaError,
)
from cloudtrain.core.events import UpCompleted
from cloudtrain.core.model import ON_DEMAND, SPOT, Limits, Node, Plan, Train
from cloudtrain.core.retry import Clock
from cloudtrain.core.run_record import Run
from cloudtrain.runs.node_replacement import _queued_briefly, replace_lost_nodes
from cloudtrain.state import Records
from tests.support.fakes import FakeProvider, make_plan
from tests.support.landing_parts import Heard

RUN = Run(
    id="20261121-062404-k3f9",
    cluster="mnist",
    command="python train.py",
    tasks=(),
    state="starting",
    created=1000.0,
)


@dataclass
class Full(FakeProvider):
    """Refuses as often as there are errors; `wishes` is how each missing node was asked for."""

    errors: list[CloudError] = field(default_factory=list)
    wishes: list[bool] = field(default_factory=list)

    def create(self, plan: Plan, *rest: Any) -> tuple[Node, ...]:
        there = {node.name for node in self.nodes(plan.config.name)}
        self.wishes += [node.spot for node in plan.nodes if node.name not in there]
        if self.errors:
            raise self.errors.pop(0)
        return super().create(plan, *rest)


class World:
    """A session whose worker was lost, on a clock that only sleeping moves."""

    def __init__(self, **changes: Any) -> None:
        self.now = 2000.0
        self.slept: list[float] = []
        self.then: dict[float, Any] = {}
        self.heard = Heard()
        plan = make_plan(workers=1)
        config = replace(plan.config, **changes)
        nodes = tuple(
            replace(node, provisioning=SPOT if node.role == "worker" else ON_DEMAND)
            for node in plan.nodes
        )
        self.plan = replace(plan, config=config, nodes=nodes)
        self.records = Records("mnist")
        self.records.create()
        self.records.save_run(RUN)
        self.provider = Full()
        self.session = Session(
            plan=self.plan,
            records=self.records,
            provider=self.provider,
            store=None,  # type: ignore[arg-type]
            console=self.heard,
            identity=adopt_identity(self.records, self.plan, ()),
            transport=None,  # type: ignore[arg-type]
            host_keys=None,  # type: ignore[arg-type]
            nodes=(),
        )
        self.records.journal(UpCompleted())
        self.provider.create(replace(self.plan, nodes=nodes[:1]), None, lambda *_, **__: None)  # type: ignore[arg-type]
        self.provider.wishes.clear()
        self.session = self.session.refreshed()

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)
        for moment in [m for m in self.then if m <= self.now]:
            self.then.pop(moment)()

    def go(self) -> Session | None:
        clock = Clock(now=lambda: self.now, sleep=self.sleep)
        return replace_lost_nodes(replace(self.session, clock=clock), RUN)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path))


def refusals(count: int) -> list[CloudError]:
    return [CapacityError("us-east-1a has no g5.xlarge", hint="add zones") for _ in range(count)]


def test_it_is_asked_for_again_until_it_can_be_had_with_a_line_each_round() -> None:
    world = World()
    refused = PlaceRefusal(place="east", error=QuotaError("spot quota is 0 just now"))
    everywhere = QuotaError("no placement can provide the nodes").copy_with(refusals=(refused,))
    world.provider.errors = [*refusals(2), everywhere]
    whole = world.go()
    assert whole is not None
    assert [node.name for node in whole.nodes] == ["mnist-chief0", "mnist-worker0"]
    assert whole.console is world.heard
    assert world.now == 2000.0 + 15 + 30 + 60
    assert max(world.slept) <= 0.5, "Ctrl-C is heard at once"
    assert world.heard.warned == [
        "mnist-worker0 cannot be recreated yet: us-east-1a has no g5.xlarge; "
        "retrying in 15 s, until 01:03 UTC (limits.wait)",
        "mnist-worker0 cannot be recreated yet: us-east-1a has no g5.xlarge; "
        "retrying in 30 s, until 01:03 UTC (limits.wait)",
        "mnist-worker0 cannot be recreated yet: east: spot quota is 0 just now; "
        "retrying in 60 s, until 01:03 UTC (limits.wait)",
    ]
    assert world.heard.said[-1] == "mnist-worker0: recreated"


@pytest.mark.parametrize(
    ("changes", "expires", "lasts", "why"),
    [
        ({}, None, 1800, "limits.wait"),
        ({"limits": Limits(wait=60.0)}, None, 60, "limits.wait"),
        ({"limits": Limits(wait=None)}, None, 0, "limits.wait"),
        ({"train": Train(deadline=1200.0)}, None, 200, "train.deadline"),
        ({}, 2500.0, 500, "limits.max_lifetime"),
    ],
)
def test_it_ends_with_the_wait_the_deadline_or_the_life_of_the_others(
    changes: dict[str, Any], expires: float | None, lasts: float, why: str
) -> None:
    world = World(**changes)
    cloud = world.provider.cloud["mnist"]
    cloud["mnist-chief0"] = replace(cloud["mnist-chief0"], expires=expires)
    world.session = world.session.refreshed()
    world.provider.errors = refusals(1000)
    with pytest.raises(CapacityError) as caught:
        world.go()
    assert world.now - 2000.0 == lasts
    assert "add zones" not in str(caught.value.hint)
    assert why in str(caught.value.hint)
    assert [node.name for node in world.provider.nodes("mnist")] == ["mnist-chief0"]


def test_after_so_many_refusals_as_spot_it_is_made_on_demand_where_that_is_wanted() -> None:
    world = World(train=Train(spot_retries=2))
    world.provider.errors = refusals(3)
    assert world.go() is not None
    assert world.provider.wishes == [True, True, False, False]
    told = "mnist-worker0: refused 2 times as spot (train.spot_retries); requesting it on demand"
    assert world.heard.warned.count(told) == 1


def test_after_no_refusal_means_after_the_first() -> None:
    world = World(train=Train(spot_retries=0))
    world.provider.errors = refusals(1)
    assert world.go() is not None
    assert world.provider.wishes == [True, False]


def test_without_that_wish_it_stays_spot() -> None:
    world = World()
    world.provider.errors = refusals(4)
    assert world.go() is not None
    assert set(world.provider.wishes) == {True}


def test_a_price_limit_keeps_it_spot(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(train=Train(spot_retries=1), limits=Limits(max_price=1.0))
    monkeypatch.setattr(
        "cloudtrain.cluster.plan.estimate",
        lambda plan: type("Bill", (), {"most": 3.0, "per_hour": 3.0})(),
    )
    world.provider.errors = refusals(2)
    assert world.go() is not None
    assert set(world.provider.wishes) == {True}
    assert any(
        "limits.max_price is 1 $/hour: requesting spot again" in text for text in world.heard.warned
    )


def test_stop_run_ends_the_wait_within_a_moment() -> None:
    world = World()
    world.provider.errors = refusals(1000)
    world.then[2100.0] = lambda: world.records.ask_stop(RUN.id)
    assert world.go() is None
    assert world.now <= 2101.0


def test_who_is_still_billed_is_said_with_price_and_end() -> None:
    config = replace(make_plan().config, provider="aws")
    node = Node(
        name="m-chief0",
        role="chief",
        index=0,
        state="running",
        address="",
        internal="",
        machine="m5.large",
        placement="us-east-1a",
        expires=1_800_000_000.0,
    )
    text = billed(config, (node, replace(node, name="m-worker0")))
    assert text.startswith("still billed: m-chief0, m-worker0, 0.21 $/hour, until 2027-01-15 08:00")
    endless = billed(config, (replace(node, expires=None, machine="unheard.of"),))
    assert endless == (
        "still billed: m-chief0, price not known, without a limit (limits.max_lifetime is off)"
    )


def test_a_node_that_was_listed_as_stopped_while_the_cloud_deleted_it_is_created_again() -> None:
    world = World()
    world.provider.create(world.plan, None, lambda *_, **__: None)  # type: ignore[arg-type]
    cluster = world.provider.cloud["mnist"]
    cluster["mnist-worker0"] = replace(cluster["mnist-worker0"], state="stopped")
    world.session = world.session.refreshed()
    world.provider.errors = [NotFoundError("starting mnist-worker0: it was not found")]
    del cluster["mnist-worker0"]
    whole = world.go()
    assert whole is not None
    assert [node.state for node in whole.nodes] == ["running", "running"]
    assert world.slept == []


def test_what_else_is_not_found_is_an_error_at_once() -> None:
    world = World()
    world.provider.errors = [NotFoundError("the security group sg-1 was not found")]
    with pytest.raises(NotFoundError, match="sg-1"):
        world.go()
    assert world.slept == []


def test_a_request_waits_in_the_queue_of_a_cloud_only_briefly() -> None:
    """So that a stop request is seen, and no longer than the wait for the node is."""

    def waits(limit: float | None, left: float) -> float | None:
        plan = make_plan()
        config = replace(plan.config, limits=Limits(wait=limit))
        return _queued_briefly(replace(plan, config=config), left).config.limits.wait

    assert waits(1800.0, 1700.0) == 300.0
    assert waits(1800.0, 100.0) == 100.0
    assert waits(60.0, 60.0) == 60.0
    assert waits(None, 0.0) is None
