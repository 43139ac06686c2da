"""What machines of a reservation and of a block that is paid in advance count with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloudtrain.cluster.plan import make_plan, plan_errors, plan_notes
from cloudtrain.core.model import ON_DEMAND, ClusterConfig, NodeGroup, Plan, Provisioning
from cloudtrain.money.estimate import estimate

BLOCK = Provisioning(market="capacity-block", name="cr-0123456789abcdef0")
RESERVED = Provisioning(market="reservation", name="cr-0123456789abcdef0")


def planned(bought: Provisioning, machine: str = "p4d.24xlarge") -> Plan:
    group = NodeGroup(machine=machine, provisioning=bought)
    config = ClusterConfig(
        name="big",
        provider="aws",
        strategy="multi_worker_mirrored",
        placement=("us-east-1",),
        nodes={"chief": group, "worker": replace(group, count=2)},
    )
    return make_plan(config)


def test_a_machine_that_is_paid_in_advance_adds_nothing_to_the_bill_and_it_is_said() -> None:
    bill = estimate(planned(BLOCK))
    assert bill is not None
    assert (bill.machines, bill.unknown) == (0.0, ())
    parts = (bill.disks or 0.0) + bill.addresses
    assert bill.per_hour == bill.most == pytest.approx(parts)
    assert parts > 0.0
    (note,) = [each for each in plan_notes(planned(BLOCK)) if "paid in advance" in each]
    assert note.startswith("capacity block cr-0123456789abcdef0 is paid in advance")


def test_a_reserved_machine_costs_at_most_the_price_on_demand() -> None:
    reserved, on_demand = estimate(planned(RESERVED)), estimate(planned(ON_DEMAND))
    assert reserved is not None
    assert on_demand is not None
    assert reserved.most == on_demand.most != 0.0


@pytest.mark.parametrize("machine", ["p4d.24xlarge", "p5.48xlarge", "p6-b300.48xlarge"])
def test_blocks_are_sold_of_the_machines_that_amazon_lists(machine: str) -> None:
    assert not plan_errors(planned(BLOCK, machine))


def test_other_machines_are_not_sold_in_blocks_but_can_be_reserved() -> None:
    (error,) = plan_errors(planned(BLOCK, "g5.xlarge"))[:1]
    assert "Amazon does not sell g5.xlarge by capacity block: only on-demand or spot" in error
    assert not plan_errors(planned(RESERVED, "g5.xlarge"))
