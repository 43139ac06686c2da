"""Nodes that wait for a lost one are kept, or given back, by what waiting costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cloudtrain.artifacts.land import Pending
from cloudtrain.cluster import provision
from cloudtrain.core.errors import CapacityError, NotLanded
from cloudtrain.core.events import (
    AttemptBegun,
    AttemptStarted,
    ClusterGone,
    RemovalBegun,
    UpBegun,
    UpCompleted,
    from_line,
    nodes_leaving,
    was_ready,
)
from cloudtrain.core.model import SPOT, Accelerator, Limits, NodeGroup, Train
from cloudtrain.runs import node_replacement
from cloudtrain.runs.node_replacement import AT_LEAST, keeping, ready_time, replace_lost_nodes
from tests.support.fakes import line_of
from tests.unit.test_node_replacement import RUN, World, home, refusals

__all__ = ["home"]

TRAIN = Train(checkpoints="ckpt")


class Cloud(World):
    """A chief on demand that is left, a spot worker that was lost, on Google Cloud."""

    def __init__(self, *, ready: float | None = 600.0, **changes: Any) -> None:
        machine = NodeGroup(machine="n1-standard-8")
        changes.setdefault("train", TRAIN)
        groups = {"chief": machine, "worker": replace(machine, provisioning=SPOT)}
        super().__init__(
            **{"provider": "gcp", "placement": ("us-east4-c",), "nodes": groups, **changes}
        )
        nodes = tuple(replace(node, machine="n1-standard-8") for node in self.plan.nodes)
        self.session = replace(self.session, plan=replace(self.plan, nodes=nodes))
        cloud = self.provider.cloud["mnist"]
        cloud["mnist-chief0"] = replace(
            cloud["mnist-chief0"], machine="n1-standard-8", placement="us-east4-c"
        )
        self.session = self.session.refreshed()
        self.unlanded: list[tuple[str, ...]] = []
        """What each question for files that are only on the nodes finds."""
        self.landed: list[str] = []
        self.ready = ready

    def go(self) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(provision, "await_first_login", lambda *given, **named: None)
            patch.setattr(node_replacement, "ready_time", lambda events: self.ready)
            patch.setattr(node_replacement, "end_orphans", lambda session: frozenset())
            patch.setattr(node_replacement, "ask_unlanded", self._ask)
            patch.setattr(node_replacement, "landing_of", lambda session: None)
            patch.setattr(
                node_replacement, "land_so_far", lambda _, run, nodes: self.landed.append(run.id)
            )
            clock = replace(self.session.clock, now=lambda: self.now, sleep=self.sleep)
            session = replace(self.session, clock=clock)
            return replace_lost_nodes(session, RUN, keep=keeping(session))

    def _ask(self, session: Any) -> Any:
        if self.unlanded and self.unlanded[0] == ("silent",):
            raise NotLanded("mnist-chief0 does not answer")
        return self.unlanded.pop(0) if self.unlanded else ()

    def _land(self, landing: Any, run: Any, nodes: Any) -> None:
        self.landed.append(run.id)

    @property
    def events(self) -> list[Any]:
        return [from_line(line) for line in self.records.events()]


def test_they_are_given_back_once_waiting_has_cost_what_creating_them_does() -> None:
    world = Cloud()
    world.provider.errors = refusals(8)
    world.unlanded = [(Pending(f"{RUN.id}/chief0/output/a", 1),)]
    assert world.go() is not None
    assert world.landed == [RUN.id]
    (said,) = [text for text in world.heard.warned if "deleting them" in text]
    assert said == (
        "mnist-chief0: waiting has cost 0.0734 $ in 10m, making them ready took 10m (0.0734 $): "
        "landing what they hold and deleting them, so that nothing is billed while the wait goes "
        "on (limits.give_back: auto)"
    )
    assert world.provider.deeds[-3:] == [
        ("destroy", "mnist-chief0"),
        ("create", "mnist-chief0"),
        ("create", "mnist-worker0"),
    ]
    before, after = world.heard.warned[0], world.heard.warned[-1]
    assert before.endswith(
        "; billed meanwhile: mnist-chief0, 0.44 $/hour, until 00:43 UTC at most (limits.give_back)"
    )
    assert after.startswith("mnist-chief0, mnist-worker0 cannot be recreated yet: ")
    assert after.endswith("; nothing is billed meanwhile")
    assert world.heard.said[-1] == "mnist-chief0, mnist-worker0: recreated"


def test_what_has_not_landed_is_never_deleted() -> None:
    for only_there in ([(Pending(f"{RUN.id}/chief0/a", 1),)] * 2, [("silent",)]):
        world = Cloud()
        world.provider.errors = refusals(8)
        world.unlanded = list(only_there)
        assert world.go() is not None
        assert ("destroy", "mnist-chief0") not in world.provider.deeds
        assert any("mnist-chief0 kept: " in text for text in world.heard.warned)
        assert not any(isinstance(event, RemovalBegun) for event in world.events)


@pytest.mark.parametrize(
    ("changes", "ready", "seconds"),
    [
        ({}, 600.0, 600.0),
        ({}, 20.0, AT_LEAST),
        ({}, None, None),
        ({"limits": Limits(give_back=None)}, 600.0, None),
        ({"limits": Limits(give_back=5.0)}, None, 5.0),
        ({"train": Train()}, 600.0, None),
        ({"train": Train(), "limits": Limits(give_back=5.0)}, 600.0, None),
        ({"provider": "local", "placement": ()}, 600.0, None),
    ],
)
def test_how_long_they_are_kept(
    changes: dict[str, Any],
    ready: float | None,
    seconds: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_replacement, "ready_time", lambda events: ready)
    assert keeping(Cloud(**changes).session).seconds == seconds


def test_nodes_on_demand_with_gpus_are_kept_as_they_may_not_be_had_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_replacement, "ready_time", lambda events: 600.0)
    session = Cloud().session
    with_gpu = tuple(
        replace(node, accelerator=Accelerator(kind="T4")) for node in session.plan.nodes
    )
    session = replace(session, plan=replace(session.plan, nodes=with_gpu))
    assert keeping(session).seconds is None
    spot = tuple(replace(node, provisioning=SPOT) for node in session.nodes)
    assert keeping(replace(session, nodes=spot)).seconds == 600.0


def test_a_wait_that_is_over_before_keeps_them() -> None:
    world = Cloud(limits=Limits(wait=300.0))
    world.provider.errors = refusals(1000)
    with pytest.raises(CapacityError) as caught:
        world.go()
    assert "limits.wait" in str(caught.value.hint)
    assert world.now == 2000.0 + 300
    assert [node.name for node in world.provider.nodes("mnist")] == ["mnist-chief0"]


def test_the_wait_goes_on_for_all_of_them_until_its_own_end() -> None:
    world = Cloud(limits=Limits(wait=3600.0))
    cloud = world.provider.cloud["mnist"]
    cloud["mnist-chief0"] = replace(cloud["mnist-chief0"], expires=2000.0 + 1200)
    world.session = world.session.refreshed()
    world.provider.errors = refusals(1000)
    with pytest.raises(CapacityError) as caught:
        world.go()
    assert world.now == 2000.0 + 3600, "the end of a node that is gone does not count"
    assert "no placement had room for all nodes" in str(caught.value.hint)
    assert world.provider.nodes("mnist") == ()


def test_stop_run_ends_the_wait_before_and_after() -> None:
    for moment in (2100.0, 2900.0):
        world = Cloud()
        world.provider.errors = refusals(1000)
        world.then[moment] = lambda world=world: world.records.ask_stop(RUN.id)
        assert world.go() is None
        assert world.now <= moment + 1


def test_no_other_command_takes_them_for_nodes_with_work_until_the_attempt_goes_on() -> None:
    world = Cloud()
    world.records.journal(AttemptBegun(run=RUN.id, attempt=2))
    world.provider.errors = refusals(8)
    assert world.go() is not None
    lines = world.records.events()
    assert not was_ready(lines)
    world.records.journal(AttemptBegun(run=RUN.id, attempt=2))  # as start_attempt does
    lines = world.records.events()
    assert (was_ready(lines), nodes_leaving(lines)) == (True, frozenset())


def test_how_long_it_took_to_make_the_cluster_ready() -> None:
    lines = [
        line_of(UpBegun(), 100.0),
        line_of(UpCompleted(), 400.0),
        line_of(UpBegun(), 1000.0),
        line_of(UpCompleted(), 1001.0),
        line_of(AttemptBegun(run="r", attempt=1), 1100.0),
        line_of(AttemptStarted(run="r", attempt=1), 1130.0),
        line_of(AttemptBegun(run="r", attempt=2), 2000.0),
        line_of(AttemptStarted(run="r", attempt=2), 3000.0),
    ]
    assert ready_time(lines) == 330.0
    assert ready_time(lines[:1]) is None
    assert ready_time([*lines, line_of(ClusterGone(), 4000.0)]) is None
    of_run = [lines[0], line_of(AttemptBegun(run="r", attempt=1), 350.0)]
    assert ready_time(of_run) == 250.0
