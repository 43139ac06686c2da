"""Capacity Reservations and Capacity Blocks on EC2's stand-in, through driver and provider."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.cluster.drift import drift
from cloudtrain.core.errors import CapacityError, CloudConfigError
from cloudtrain.core.model import ON_DEMAND, Limits, Network, Node, NodeGroup, Plan, Provisioning
from cloudtrain.core.protocols import Finding
from cloudtrain.providers.aws import reservations
from tests.standins.cloud import Cloud
from tests.support.aws_parts import account_of, plan_of, provider_of, silent, stand_in
from tests.support.fakes import make_identity

CR, BLOCK = "cr-0123456789abcdef0", "cr-00000000000b10c50"
ARN = "arn:aws:resource-groups:us-east-1:123456789012:group/training"
RESERVED = Provisioning(market="reservation", name=CR)
IN_BLOCK = Provisioning(market="capacity-block", name=BLOCK)
HOUR = 3600.0


@pytest.fixture(scope="module")
def one_cloud() -> Iterator[Cloud]:
    with stand_in() as aws:
        yield aws


@pytest.fixture
def aws(one_cloud: Cloud) -> Cloud:
    one_cloud.app.__init__()
    one_cloud.app.delay = 0.0
    one_cloud.forget_calls()
    return one_cloud


def reserve(aws: Cloud, id: str = CR, **details: Any) -> None:
    """Three g4dn.xlarge in us-east-1b, unless told otherwise."""
    here = {"zone": "us-east-1b", "machine": "g4dn.xlarge", "count": 3, **details}
    aws.app.reservations[id] = here


def block(aws: Cloud, **details: Any) -> float:
    """Two p5.48xlarge, and the moment at which it ends."""
    ends = time.time() + 10 * HOUR
    here = {"zone": "us-east-1a", "machine": "p5.48xlarge", "count": 2, "block": True}
    aws.app.reservations[BLOCK] = {**here, "ends": ends, **details}
    return float(aws.app.reservations[BLOCK]["ends"])


def plan_in(
    aws: Cloud, bought: Provisioning, machine: str = "g4dn.xlarge", workers: int = 2, **changes: Any
) -> Plan:
    group = NodeGroup(machine=machine, disk_gb=100, provisioning=bought)
    nodes = {"chief": group, "worker": replace(group, count=workers)}
    return plan_of(aws, placement=("us-east-1",), nodes=nodes, **changes)


def in_block(aws: Cloud, **changes: Any) -> Plan:
    changes = {"network": Network(), **changes}
    return plan_in(aws, IN_BLOCK, machine="p5.48xlarge", workers=1, **changes)


def up(plan: Plan, folder: Path, journal: Any = silent) -> tuple[Node, ...]:
    return provider_of(plan).create(plan, make_identity(folder, plan), journal)


def finding(plan: Plan, what: str) -> Finding:
    (found,) = [each for each in account_of(plan).check(plan) if each.what == what]
    return found


def actions(aws: Cloud) -> list[str]:
    return [call["action"].partition(" ")[0] for call in aws.calls()]


# ── Capacity Reservations ────────────────────────────────────────────────────


@pytest.mark.parametrize("name", [CR, ARN])
def test_a_cluster_goes_up_in_its_reservation_and_down_makes_that_free(
    aws: Cloud, tmp_path: Path, name: str
) -> None:
    reserve(aws)
    aws.app.reservation_groups[ARN] = [CR]
    plan = plan_in(aws, Provisioning(market="reservation", name=name))
    nodes = up(plan, tmp_path)
    assert {(node.placement, node.provisioning.name) for node in nodes} == {("us-east-1b", name)}
    assert not drift(plan, nodes, ()).changes
    left = reservations.find(account_of(plan)._ec2, "us-east-1", CR)
    assert "0 of 3" in reservations.described(left)  # type: ignore[arg-type]
    aws.forget_calls()
    assert up(plan, tmp_path) == nodes
    assert "RunInstances" not in actions(aws)
    provider_of(plan).destroy("mnist", silent)
    assert aws.holdings() == []
    assert "3 of 3" in finding(plan_in(aws, RESERVED), "reservation").text


def test_a_lost_node_comes_back_into_the_same_reservation(aws: Cloud, tmp_path: Path) -> None:
    reserve(aws)
    plan = plan_in(aws, RESERVED)
    up(plan, tmp_path)
    aws.app.shut_down("mnist-worker1")
    nodes = up(plan, tmp_path)
    assert [node.provisioning for node in nodes] == [RESERVED] * 3


def test_a_full_reservation_is_no_capacity_there_and_leaves_nothing(
    aws: Cloud, tmp_path: Path
) -> None:
    reserve(aws, count=2)
    plan = plan_in(aws, RESERVED)
    with pytest.raises(CapacityError, match="does not have sufficient compatible and available"):
        up(plan, tmp_path)
    assert aws.holdings() == []
    told = finding(plan, "reservation")
    assert (told.ok, told.error) == (False, CapacityError)
    assert told.text == f"{CR}: 2 of 2 g4dn.xlarge free in us-east-1b, 3 needed"


def test_nodes_run_on_when_their_reservation_has_ended(aws: Cloud, tmp_path: Path) -> None:
    reserve(aws, ends=time.time() + HOUR)
    plan = plan_in(aws, RESERVED)
    nodes = up(plan, tmp_path)
    aws.advance(HOUR + 1.0)
    assert up(plan, tmp_path) == nodes
    provider_of(plan).remove("mnist", ["mnist-worker1"], silent)
    with pytest.raises(CapacityError, match="is expired"):
        up(plan, tmp_path)
    assert len(provider_of(plan).nodes("mnist")) == 2


def test_a_group_without_room_is_never_left_to_run_on_demand(aws: Cloud, tmp_path: Path) -> None:
    """EC2 does just that with a launch that does not demand otherwise."""
    aws.app.reservation_groups[ARN] = []
    plan = plan_in(aws, Provisioning(market="reservation", name=ARN))
    with pytest.raises(CapacityError):
        up(plan, tmp_path)
    assert aws.holdings() == []


def test_a_reservation_needs_no_quota_of_its_nodes(aws: Cloud, tmp_path: Path) -> None:
    reserve(aws)
    aws.app.quotas["L-DB2E81BA"] = 12.0  # what the reservation took
    plan = plan_in(aws, RESERVED)
    assert finding(plan, "quota").text == "us-east-1: nothing more needed: all of it is reserved"
    assert len(up(plan, tmp_path)) == 3


@pytest.mark.parametrize(
    ("details", "error", "words"),
    [
        ({"machine": "g5.xlarge"}, CloudConfigError, "is for g5.xlarge, not g4dn.xlarge"),
        ({"tenancy": "dedicated"}, CloudConfigError, "has dedicated tenancy"),
        ({"block": True}, CloudConfigError, "is a Capacity Block"),
        ({"state": "cancelled"}, CapacityError, "is cancelled"),
        ({"ends": 1.7e9}, CapacityError, "is expired, until 2023-11-14 22:13 UTC"),
    ],
)
def test_a_reservation_that_does_not_fit_is_told_before_anything_is_made(
    aws: Cloud, tmp_path: Path, details: dict[str, Any], error: type[Exception], words: str
) -> None:
    reserve(aws, **details)
    plan = plan_in(aws, RESERVED)
    told = finding(plan, "reservation")
    assert (told.ok, told.error) == (False, error)
    assert words in told.text
    with pytest.raises(error, match=words):
        up(plan, tmp_path)
    assert aws.holdings() == []


def test_a_reservation_that_ends_before_its_nodes_is_said_so(aws: Cloud) -> None:
    words = ", before its nodes end: they run on then, on demand"
    reserve(aws, ends=time.time() + HOUR)
    assert finding(plan_in(aws, RESERVED), "reservation").text.endswith(words)
    reserve(aws, ends=time.time() + 13 * HOUR)  # max_lifetime is 12 h
    assert words not in finding(plan_in(aws, RESERVED), "reservation").text


@pytest.mark.parametrize("zone", ["us-west-2a", None])
def test_a_reservation_that_is_not_in_the_placement_is_told(aws: Cloud, zone: str | None) -> None:
    if zone:
        reserve(aws, zone=zone)
    told = finding(plan_in(aws, RESERVED), "placement")
    assert not told.ok
    assert told.text.startswith(f"reservation {CR}: not in us-east-1, or not all in one zone")


def test_two_reservations_in_two_zones_cannot_hold_one_cluster(aws: Cloud) -> None:
    reserve(aws)
    reserve(aws, BLOCK, zone="us-east-1a")
    other = Provisioning(market="reservation", name=BLOCK)
    group = NodeGroup(machine="g4dn.xlarge", provisioning=RESERVED)
    plan = plan_in(aws, RESERVED)
    nodes = {"chief": group, "worker": replace(group, provisioning=other)}
    plan = plan_of(aws, placement=("us-east-1",), nodes=nodes)
    with pytest.raises(CloudConfigError, match="not all in one zone"):
        account_of(plan).places(plan)


def test_nodes_go_into_the_placement_group_of_their_reservation(aws: Cloud, tmp_path: Path) -> None:
    plan = plan_in(aws, RESERVED)
    client = account_of(plan)._ec2
    client.ask("us-east-1", "CreatePlacementGroup", {"GroupName": "ours", "Strategy": "cluster"})
    reserve(aws, placement_group="ours")
    nodes = up(plan, tmp_path)
    assert len(nodes) == 3
    provider_of(plan).destroy("mnist", silent)
    assert aws.holdings() == ["placement group ours us-east-1"]


def test_a_node_on_demand_in_an_open_reservation_is_on_demand(aws: Cloud, tmp_path: Path) -> None:
    """EC2 puts it there by itself: that is no drift."""
    reserve(aws, zone="us-east-1a", open=True)
    plan = plan_in(aws, ON_DEMAND)
    nodes = up(plan, tmp_path)
    assert {node.provisioning for node in nodes} == {ON_DEMAND}
    assert not drift(plan, nodes, ()).changes


# ── Capacity Blocks ──────────────────────────────────────────────────────────


def test_nodes_in_a_block_end_before_it_ends_them(aws: Cloud, tmp_path: Path) -> None:
    ends = block(aws)
    plan = in_block(aws)
    last = ends - 1800.0 - 120.0
    by = finding(plan, "lifetime").text
    assert by.endswith(f"at {reservations.moment(last)} at the latest, before their block ends")
    nodes = up(plan, tmp_path)
    assert {node.provisioning for node in nodes} == {IN_BLOCK}
    assert {int(node.expires or 0) for node in nodes} == {int(last)}  # max_lifetime is 12 h
    assert not drift(plan, nodes, ()).changes
    assert [line for line in aws.holdings() if line.startswith("placement group")] == []
    aws.advance(ends - 1790.0 - time.time())
    assert not [line for line in aws.holdings() if line.startswith("instance")]


@pytest.mark.parametrize(("lifetime", "first"), [(2 * HOUR, "lifetime"), (None, "block")])
def test_the_earlier_end_counts(
    aws: Cloud, tmp_path: Path, lifetime: float | None, first: str
) -> None:
    last = block(aws) - 1920.0
    plan = in_block(aws, limits=Limits(max_lifetime=lifetime))
    begun = time.time()
    (end,) = {node.expires for node in up(plan, tmp_path)}
    wanted = last if first == "block" else begun + 2 * HOUR
    assert abs((end or 0.0) - wanted) < 60.0


def test_a_block_needs_no_quota_and_is_asked_for_by_dry_run(aws: Cloud) -> None:
    block(aws)
    aws.app.quotas["L-417A185B"] = 0.0
    plan = in_block(aws)
    assert all(each.ok for each in account_of(plan).check(plan))
    assert f"RunInstances p5.48xlarge capacity block {BLOCK}" in finding(plan, "permissions").text


def test_a_block_that_has_not_begun_is_no_capacity_yet(aws: Cloud, tmp_path: Path) -> None:
    """So `up --wait` waits for it, and the next candidate of `any_of` is tried."""
    starts = time.time() + HOUR
    block(aws, starts=starts)
    plan = in_block(aws)
    with pytest.raises(CapacityError, match=r"is scheduled, from .* UTC, its nodes end at"):
        up(plan, tmp_path)
    aws.advance(HOUR + 1.0)
    assert len(up(plan, tmp_path)) == 2


def test_a_block_that_ends_in_minutes_starts_no_node(aws: Cloud, tmp_path: Path) -> None:
    block(aws, ends=time.time() + 1800.0 + 300.0)
    with pytest.raises(CapacityError, match="is active, its nodes end at"):
        up(in_block(aws), tmp_path)
    assert aws.holdings() == []


def test_the_end_of_nodes_is_not_moved_past_their_block(aws: Cloud, tmp_path: Path) -> None:
    last = block(aws) - 1920.0
    plan = in_block(aws)
    nodes = up(plan, tmp_path)
    provider, names = provider_of(plan), [node.name for node in nodes]
    told: list[str] = []

    def tell(node: Node, line: str) -> None:
        told.append(node.name)

    for wrong in (last + 1.0, None):
        with pytest.raises(CloudConfigError, match="ends its nodes at"):
            provider.move_ends("mnist", names, wrong, tell)
    assert told == []
    provider.move_ends("mnist", names, last - HOUR, tell)
    assert told


def test_a_reservation_that_is_no_block_is_told_as_such(aws: Cloud) -> None:
    reserve(aws, BLOCK, machine="p5.48xlarge")
    told = finding(in_block(aws), "reservation")
    assert told.text == f"us-east-1: {BLOCK} is a Capacity Reservation"
    assert told.hint == f"write `provisioning: {{reservation: {BLOCK}}}`"


def test_nodes_in_a_block_get_fabric_adapters_without_a_placement_group(
    aws: Cloud, tmp_path: Path
) -> None:
    block(aws)
    plan = in_block(aws, network=Network(private=True))
    account = account_of(plan)
    (place,) = account.places(plan)
    ground = account.create_network(plan, place, "203.0.113.7/32", silent)
    assert (ground.placement_group, len(ground.efa_cards)) == ("", 32)
