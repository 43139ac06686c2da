"""`resource_group:` on Azure's stand-in: a role on one group is enough, and what is there stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.core.errors import (
    CapacityError,
    CloudConfigError,
    CloudError,
    NameTakenError,
    NodesError,
    PermissionsError,
)
from cloudtrain.core.model import ClusterConfig, Limits, Network, NodeGroup
from cloudtrain.providers.azure import permissions
from tests.support.company_parts import Company, company

SUBSCRIPTION = "/subscriptions/00000000-0000-4000-8000-000000000001"
TEAM, NETS = f"{SUBSCRIPTION}/resourceGroups/team", f"{SUBSCRIPTION}/resourceGroups/nets"
VNET = "Microsoft.Network/virtualNetworks"
SUBNET = f"{NETS}/providers/{VNET}/corp/subnets/training"
JOIN = [f"{VNET}/subnets/read", f"{VNET}/subnets/join/action"]
MAY = "Microsoft.Authorization/permissions/read"
CLOSE = Network(ssh_from="203.0.113.7/32", close="on")
CPUS = {"machine": "Standard_D4s_v5", "disk_gb": 64}


@pytest.fixture
def azure(tmp_path: Path) -> Iterator[Company]:
    """A subscription in which somebody gave a role on the group `team`, and nothing else."""
    with company("azure", tmp_path) as azure:
        admin = azure.provider(azure.cloud.config())._account._arm
        for group in (TEAM, NETS):
            admin.put(group, {"location": "eastus", "tags": {"costs": "ours"}})
        subnet = {"name": "training", "properties": {"addressPrefix": "10.9.0.0/24"}}
        space = {"addressSpace": {"addressPrefixes": ["10.9.0.0/16"]}, "subnets": [subnet]}
        path = f"{NETS}/providers/{VNET}/corp"
        admin.put(path, {"location": "eastus", "properties": space})
        address = {"location": "eastus", "sku": {"name": "Standard"}}
        address["properties"] = {"publicIPAllocationMethod": "Static"}
        admin.put(f"{TEAM}/providers/Microsoft.Network/publicIPAddresses/gateway", address)
        azure.cloud.set(granted_at={TEAM: list(permissions.IN_GROUP), SUBNET: JOIN})
        yield azure


def config(azure: Company, **changes: object) -> ClusterConfig:
    node = NodeGroup(**CPUS)  # type: ignore[arg-type]
    nodes = {"chief": node, "worker": replace(node, count=2)}
    given = {"resource_group": "team", "nodes": nodes, "network": CLOSE, **changes}
    return azure.cloud.config(**given)


def test_a_role_on_one_group_is_enough_and_what_is_there_stays(azure: Company) -> None:
    plan = azure.plan(**vars(config(azure)))
    before = azure.cloud.holdings()
    found = azure.check(plan)
    assert {what for what, each in found.items() if not each.ok} == set()
    assert found["permissions"].text == "all that up and down need"
    assert (
        found["resource group"].text == "team has everything that is created; it is never deleted"
    )
    nodes = azure.up(plan)
    assert [node.state for node in nodes] == ["running"] * 3
    inside = [
        thing for thing in azure.app.things.values() if "/resourcegroups/team/" in thing.id.lower()
    ]
    assert len(inside) > 3 * 4
    assert azure.up(plan) == nodes
    (held,) = azure.provider(plan.config).sweep()
    assert (held.cluster, len(held.nodes)) == ("mnist", 3)
    azure.down(plan)
    assert azure.cloud.holdings() == before


def test_a_subnet_in_another_group_needs_nothing_there_but_to_join(azure: Company) -> None:
    plan = azure.plan(**vars(config(azure, network=replace(CLOSE, subnet=SUBNET))))
    before = azure.cloud.holdings()
    assert azure.check(plan)["subnet"].ok
    azure.up(plan)
    azure.down(plan)
    assert azure.cloud.holdings() == before
    azure.cloud.set(granted_at={TEAM: list(permissions.IN_GROUP), SUBNET: JOIN[:1]})
    with pytest.raises((CloudError, NodesError)) as refused:
        azure.up(plan)
    assert "subnets/join/action on the subnet" in str(_first(refused.value).hint)
    assert azure.cloud.holdings() == before
    azure.cloud.set(granted_at={TEAM: list(permissions.IN_GROUP), SUBNET: [*JOIN[:1], MAY]})
    assert azure.check(plan)["subnet"].error is PermissionsError


def test_a_failed_region_is_given_back_and_the_next_one_is_in_the_same_group(
    azure: Company,
) -> None:
    azure.cloud.set(capacity={"eastus*": 0})
    before = azure.cloud.holdings()
    plan = azure.plan(**vars(config(azure)))
    nodes = azure.up(plan)
    assert {node.placement for node in nodes} == {"westeurope"}
    held = [line for line in azure.cloud.holdings() if line not in before]
    assert [line for line in held if "eastus" in line] == []
    azure.down(plan)
    assert azure.cloud.holdings() == before
    azure.cloud.set(capacity={"*": 0})
    with pytest.raises(CapacityError):
        azure.up(plan)
    assert azure.cloud.holdings() == before


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("Microsoft.Network/networkSecurityGroups", "cloudtrain-mnist-eastus"),
        ("Microsoft.Network/networkInterfaces", "mnist-chief0"),
    ],
)
def test_what_has_our_name_and_is_not_ours_is_neither_changed_nor_deleted(
    azure: Company, kind: str, name: str
) -> None:
    azure.cloud.set(granted_at=None)
    admin = azure.provider(azure.cloud.config())._account._arm
    inside = {"subnet": {"id": SUBNET}, "privateIPAllocationMethod": "Dynamic"}
    properties = {"ipConfigurations": [{"name": "main", "properties": inside}]}
    body = {"location": "eastus", "tags": {"mine": "yes"}}
    path = f"{TEAM}/providers/{kind}/{name}"
    admin.put(path, {**body, "properties": properties} if "Interfaces" in kind else body)
    before = azure.cloud.holdings()
    plan = azure.plan(**vars(config(azure)))
    with pytest.raises(CloudError) as refused:
        azure.up(plan)
    assert isinstance(_first(refused.value), NameTakenError)
    assert "cloudtrain did not create it" in str(refused.value)
    assert azure.cloud.holdings() == before
    assert admin.get(path)["tags"] == {"mine": "yes"}


def test_two_clusters_share_a_group_and_end_apart(azure: Company) -> None:
    plans = [azure.plan(**vars(config(azure, name=name))) for name in ("mnist", "cifar")]
    for plan in plans:
        azure.up(plan)
    azure.down(plans[0])
    listed = azure.provider(plans[1].config).nodes("cifar")
    assert [node.name for node in listed] == ["cifar-chief0", "cifar-worker0", "cifar-worker1"]
    assert not [line for line in azure.cloud.holdings() if "mnist" in line]
    azure.down(plans[1])


def test_a_group_that_does_not_exist_or_may_not_be_used_is_told(azure: Company) -> None:
    azure.cloud.set(granted_at=None)
    plan = azure.plan(**vars(config(azure, resource_group="taem")))
    assert azure.check(plan)["resource group"].error is CloudConfigError
    with pytest.raises(CloudConfigError, match="no resource group taem"):
        azure.up(plan)
    reader = [action for action in permissions.IN_GROUP if action.endswith("/read")]
    azure.cloud.set(granted_at={TEAM: reader})
    refused = azure.check(azure.plan(**vars(config(azure))))["permissions"]
    assert "not allowed: Microsoft.Compute/virtualMachines/write" in refused.text


def test_the_rehearsal_asks_for_the_group_alone(azure: Company) -> None:
    plan = azure.plan(**vars(config(azure)))
    (finding,) = [
        each for each in azure.provider(plan.config).dry_run(plan) if "eastus" in each.text
    ]
    assert finding.ok, finding


def test_a_lifetime_beyond_a_day_needs_a_right_on_the_subscription(azure: Company) -> None:
    plan = azure.plan(**vars(config(azure, limits=Limits(max_lifetime=3 * 86400.0))))
    assert not azure.check(plan)["lifetime"].ok


def _first(error: Exception) -> CloudError:
    failures = getattr(error, "failures", {})
    found = next(iter(failures.values()), error)
    assert isinstance(found, CloudError)
    return found
