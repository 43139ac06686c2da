"""Capacity reservation groups and eviction rates on the stand-in of Resource Manager."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.cluster.drift import drift
from cloudtrain.core.errors import CapacityError, CloudConfigError, NodesError, PermissionsError
from cloudtrain.core.model import SPOT, Network, Node, NodeGroup, Plan, Provisioning
from cloudtrain.core.partial_list import evidence_text
from cloudtrain.core.protocols import Finding
from cloudtrain.providers.base.provider import CloudProvider
from tests.standins.cloud import Cloud
from tests.support.azure_parts import (
    CALLER,
    FAST,
    SUBSCRIPTION,
    account_of,
    plan_of,
    silent,
    stand_in,
)
from tests.support.fakes import make_identity

T4, GROUP = "Standard_NC4as_T4_v3", "capacity/t4"
ID = (
    f"/subscriptions/{SUBSCRIPTION}/resourceGroups/capacity/providers/Microsoft.Compute"
    "/capacityReservationGroups/t4"
)


@pytest.fixture
def azure() -> Iterator[Cloud]:
    with stand_in() as azure:
        yield azure


def reserve(azure: Cloud, key: str = GROUP, **details: Any) -> None:
    """Three of T4 in eastus-2, unless told otherwise."""
    group = {name: details.pop(name) for name in ("type", "region") if name in details}
    one = {"size": T4, "zone": "2", "count": 3, **details}
    azure.app.reservation_groups[key] = {"region": "eastus", **group, "reservations": {"one": one}}


def planned(
    azure: Cloud, name: str = GROUP, placement: tuple[str, ...] = ("eastus",), **changes: Any
) -> Plan:
    bought = Provisioning(market="reservation", name=name)
    group = NodeGroup(machine=T4, disk_gb=100, provisioning=bought)
    nodes = {"chief": group, "worker": replace(group, count=2)}
    return plan_of(
        azure, **{"placement": placement, "nodes": nodes, "network": Network()} | changes
    )


def provider_of(plan: Plan) -> CloudProvider[Any]:
    return CloudProvider(account_of(plan), caller=lambda: CALLER, timing=FAST)


def up(plan: Plan, folder: Path) -> tuple[Node, ...]:
    return provider_of(plan).create(plan, make_identity(folder, plan), silent)


def finding(plan: Plan, what: str = "reservation") -> Finding:
    (found,) = [each for each in account_of(plan).check(plan) if each.what == what]
    return found


@pytest.mark.parametrize("name", ["T4", GROUP, ID])
def test_a_cluster_goes_up_in_its_reservation_and_down_makes_that_free(
    azure: Cloud, tmp_path: Path, name: str
) -> None:
    reserve(azure)
    plan = planned(azure, name)
    assert finding(plan).text == f"{GROUP}: 3 of 3 {T4} free in eastus-2"
    nodes = up(plan, tmp_path)
    assert {(node.placement, node.provisioning.name) for node in nodes} == {("eastus-2", GROUP)}
    assert not drift(plan, nodes, ()).changes
    assert all(each.ok for each in account_of(plan).check(plan)), "its nodes have their places"
    azure.forget_calls()
    assert up(plan, tmp_path) == nodes
    assert not [c for c in azure.calls() if c["action"].startswith("PUT virtualMachines ")]
    provider_of(plan).destroy("mnist", silent)
    assert azure.holdings() == []
    assert finding(plan).text == f"{GROUP}: 3 of 3 {T4} free in eastus-2"


def test_a_lost_node_comes_back_into_the_same_reservation(azure: Cloud, tmp_path: Path) -> None:
    reserve(azure)
    plan = planned(azure)
    up(plan, tmp_path)
    provider_of(plan).remove("mnist", ["mnist-worker1"], silent)
    assert [node.provisioning.name for node in up(plan, tmp_path)] == [GROUP] * 3


def test_a_full_reservation_is_no_capacity_there_although_azure_would_go_on(
    azure: Cloud, tmp_path: Path
) -> None:
    """Azure creates VMs beyond the reservation, billed besides it."""
    reserve(azure, taken=1)
    plan = planned(azure)
    told = finding(plan)
    assert (told.ok, told.error) == (False, CapacityError)
    assert told.text == f"{GROUP}: 2 of 3 {T4} free in eastus-2, 3 needed"
    with pytest.raises(CapacityError, match="2 of 3"):
        up(plan, tmp_path)
    assert azure.holdings() == []


def test_nodes_that_are_there_stay_whatever_becomes_of_the_reservation(
    azure: Cloud, tmp_path: Path
) -> None:
    reserve(azure)
    plan = planned(azure)
    nodes = up(plan, tmp_path)
    reserve(azure, count=1)
    assert up(plan, tmp_path) == nodes
    provider_of(plan).remove("mnist", ["mnist-worker1"], silent)
    with pytest.raises(CapacityError, match=r"0 of 1 .* free in eastus-2, 1 needed"):
        up(plan, tmp_path)
    assert len(provider_of(plan).nodes("mnist")) == 2


def test_a_reservation_needs_neither_quota_nor_capacity_of_its_nodes(
    azure: Cloud, tmp_path: Path
) -> None:
    reserve(azure)
    azure.set(quotas={"cores": 12}, capacity={"eastus": 0})  # the reservation took both
    plan = planned(azure)
    assert all(each.ok for each in account_of(plan).check(plan))
    assert len(up(plan, tmp_path)) == 3


def test_a_regional_reservation_is_for_vms_without_a_zone(azure: Cloud, tmp_path: Path) -> None:
    reserve(azure, zone="")
    plan = planned(azure)
    assert [str(place) for place in account_of(plan).places(plan)] == ["eastus"]
    assert {node.placement for node in up(plan, tmp_path)} == {"eastus"}


@pytest.mark.parametrize(
    ("details", "words"),
    [
        ({"size": "Standard_D4s_v5"}, "has 3 × Standard_D4s_v5 in eastus-2: nothing for"),
        ({"region": "westeurope"}, f"has 3 × {T4} in westeurope-2: nothing for {T4} in eastus"),
        ({"type": "Block"}, "is of type Block: cloudtrain uses those of type Targeted only"),
    ],
)
def test_a_group_that_does_not_fit_is_told_before_anything_is_made(
    azure: Cloud, tmp_path: Path, details: dict[str, Any], words: str
) -> None:
    reserve(azure, **details)
    plan = planned(azure)
    with pytest.raises(CloudConfigError, match=words):
        up(plan, tmp_path)
    told = finding(plan, "placement")
    assert not told.ok
    assert words in told.text
    assert azure.holdings() == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("capacity/other", "no capacity reservation group capacity/other"),
        ("other", "no capacity reservation group other in this subscription"),
        ("t4", "2 capacity reservation groups are called t4"),
    ],
)
def test_a_group_is_found_by_a_name_that_is_there_once(azure: Cloud, name: str, words: str) -> None:
    reserve(azure)
    reserve(azure, "others/t4")
    told = finding(planned(azure, name), "placement")
    assert words in told.text
    assert "az capacity reservation group list" in (told.hint or "")


def test_a_placement_group_is_not_asked_for_beside_a_reservation(azure: Cloud) -> None:
    """Azure supports no proximity placement group there."""
    reserve(azure, size="Standard_ND96isr_H100_v5")
    bought = Provisioning(market="reservation", name=GROUP)
    group = NodeGroup(machine="Standard_ND96isr_H100_v5", provisioning=bought)
    nodes = {"chief": group, "worker": replace(group, count=2)}
    plan = planned(azure, nodes=nodes)
    account = account_of(plan)
    (place,) = account.places(plan)
    assert not account.is_close(account.create_network(plan, place, CALLER, silent))
    told = finding(planned(azure, nodes=nodes, network=Network(close="on")))
    assert (told.ok, told.hint) == (False, "set network.close to auto")


def test_the_right_to_deploy_into_the_group_is_checked(azure: Cloud, tmp_path: Path) -> None:
    reserve(azure)
    right = "Microsoft.Compute/capacityReservationGroups/deploy/action"
    azure.set(not_permitted=[right])
    plan = planned(azure)
    told = finding(plan)
    assert (told.text, told.error) == (f"{GROUP}: not allowed: {right}", PermissionsError)
    with pytest.raises(NodesError, match="deploy/action"):
        up(plan, tmp_path)
    assert azure.holdings() == []


def test_a_rehearsal_has_the_reservation_in_it(azure: Cloud) -> None:
    reserve(azure)
    plan = planned(azure)
    (told,) = account_of(plan).dry_run(plan)
    assert told.ok


# ── Spot ─────────────────────────────────────────────────────────────────────


def on_spot(azure: Cloud, *placement: str) -> Plan:
    group = NodeGroup(machine=T4, provisioning=SPOT)
    return planned(azure, placement=placement, nodes={"chief": group, "worker": group})


def test_regions_are_told_with_how_often_azure_evicted_there(azure: Cloud) -> None:
    azure.set(eviction_rates={f"eastus/{T4}": "15-20", f"westus/{T4}": "0-5", f"westus3/{T4}": ""})
    plan = on_spot(azure, "eastus-1", "westus", "westus3")
    found = provider_of(plan).spot_evidence(plan)
    assert evidence_text(found) == (
        "westus 0-5 % evicted an hour, eastus-1 15-20 % evicted an hour "
        "(evictions of the last 28 days, by Azure Resource Graph)"
    )
    assert [each.score for each in found] == [-15.0, 0.0]


def test_without_resource_graph_nothing_stops(azure: Cloud, tmp_path: Path) -> None:
    azure.fault("answer", action="POST resources*", status=503, times=100)
    plan = on_spot(azure, "eastus")
    assert len(up(plan, tmp_path)) == 2
    tried = [c for c in azure.calls() if c["action"].startswith("POST resources")]
    assert 1 <= len(tried) <= 2
