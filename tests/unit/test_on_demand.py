"""Spot nodes without capacity are requested on demand, where `train.spot_retries` says so."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from cloudtrain.cluster import place_choice
from cloudtrain.core.errors import CapacityError
from cloudtrain.core.model import Node, Plan
from cloudtrain.core.retry import Retry
from tests.support.drift_parts import User, cloudtrain, user, worker
from tests.support.fakes import FakeProvider

__all__ = ["user"]


@dataclass
class NoSpot(FakeProvider):
    """A cloud with room on demand alone. `wishes`: each request for nodes that do not exist."""

    wishes: list[list[bool]] = field(default_factory=list)
    has_spot: bool = False

    def create(self, plan: Plan, *rest: Any) -> tuple[Node, ...]:
        there = {node.name for node in self.nodes(plan.config.name)}
        wished = [node.spot for node in plan.nodes if node.name not in there]
        self.wishes.append(wished)
        if any(wished) and not self.has_spot:
            raise CapacityError("us-east4-c has no spot n1-standard-2")
        return super().create(plan, *rest)


@pytest.fixture
def cloud(user: User, monkeypatch: pytest.MonkeyPatch) -> NoSpot:
    """No cluster, and a file that asks for two spot nodes; the rounds of `--wait` are short."""
    assert cloudtrain("down", "deep", "--yes").exit_code == 0
    cloud = NoSpot(place="us-east4-c")
    user.cloud = cloud
    monkeypatch.setattr("cloudtrain.cluster.session.open_provider", lambda config: cloud)
    monkeypatch.setattr(place_choice, "ROUNDS", Retry(pause=0.0, tries=6))
    user.write(**worker(spot=True), train={"command": "echo", "spot_retries": 2})
    return cloud


def test_up_that_waits_requests_them_on_demand_after_so_many_rounds(
    user: User, cloud: NoSpot
) -> None:
    done = user.up("--wait", "1h")
    assert done.exit_code == 0, done.stderr
    assert cloud.wishes == [[True, True], [True, True], [False, False]]
    assert (
        "deep-worker0, deep-worker1: refused 2 times as spot (train.spot_retries); requesting it "
        "on demand: 0.24 $/hour instead of 0.0733 $/hour" in done.stderr
    )
    assert {node.spot for node in cloud.nodes("deep")} == {False}


def test_they_are_no_difference_from_the_file_as_long_as_it_says_so(
    user: User, cloud: NoSpot
) -> None:
    user.up("--wait", "1h")
    cloud.wishes.clear()
    assert user.up().exit_code == 0
    assert cloud.wishes == [[]]
    assert "differs" not in cloudtrain("plan", "deep.yaml").stdout
    user.write(train={"command": "echo"})
    refused = user.up()
    assert refused.exit_code == 2
    assert f"on demand, deep.yaml:{user.line('spot:')} says spot" in refused.stderr
    assert "on demand" in cloudtrain("plan", "deep.yaml").stdout


def test_only_missing_nodes_are_requested_on_demand(user: User, cloud: NoSpot) -> None:
    cloud.has_spot = True
    user.write(**worker(spot=True, count=1))
    assert user.up().exit_code == 0
    cloud.has_spot = False
    user.write(**worker(spot=True, count=2))
    done = user.up("--wait", "1h")
    assert done.exit_code == 0, done.stderr
    assert [node.spot for node in cloud.nodes("deep")] == [True, False]
    assert user.up().exit_code == 0


@pytest.mark.parametrize(
    ("changes", "flags", "said"),
    [
        ({"train": {"command": "echo"}}, ["--wait", "1h"], "spot n1-standard-2"),
        ({}, [], "spot n1-standard-2"),
        (
            {"limits": {"max_price": 0.1}},
            ["--wait", "1h"],
            "on demand the cluster would cost 0.24 $/hour, limits.max_price is 0.1 $/hour: "
            "requesting spot again",
        ),
    ],
)
def test_nothing_is_requested_on_demand_that_the_user_did_not_agree_to(
    user: User, cloud: NoSpot, changes: dict[str, Any], flags: list[str], said: str
) -> None:
    user.write(**changes)
    done = user.up(*flags)
    assert done.exit_code == 3
    assert said in done.stderr
    assert all(all(wished) for wished in cloud.wishes)
    assert cloud.nodes("deep") == ()


def test_one_of_several_candidates_waits_for_its_own_market(user: User, cloud: NoSpot) -> None:
    place = {"provider": "gcp", "project": "p"}
    candidates = [{**place, "placement": [name]} for name in ("us-east4-c", "us-east4-a")]
    candidates[1]["nodes"] = {"worker": {"disk_gb": 70}}
    values = {k: v for k, v in user.values.items() if k not in ("provider", "project", "placement")}
    user.values = values
    user.write(any_of=candidates)
    assert user.up("--wait", "1h").exit_code == 3
    assert all(all(wished) for wished in cloud.wishes)


def test_who_is_asked_to_confirm_reads_what_it_may_cost(user: User, cloud: NoSpot) -> None:
    assert (
        "on demand, 0.24 $/hour, after 2 refusals (train.spot_retries)"
        in cloudtrain("up", "deep.yaml").output
    )
    note = "note: spot nodes may become on demand, 0.24 $/hour, after 2 refusals"
    assert note in cloudtrain("plan", "deep.yaml").stdout
