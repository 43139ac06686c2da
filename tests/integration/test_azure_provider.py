"""The Azure driver on its stand-in: what is created, listed, repaired, refused and deleted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.core import retry
from cloudtrain.core.errors import (
    BusyError,
    CapacityError,
    CloudConfigError,
    CloudError,
    CloudtrainError,
    PermissionsError,
)
from cloudtrain.core.events import (
    Event,
    Line,
    NodeRequested,
    pending_nodes,
    to_line,
)
from cloudtrain.core.model import Network, Plan, SshProxy
from cloudtrain.providers.azure.network import ClusterNetwork
from cloudtrain.providers.azure.provider import AzureDriver
from cloudtrain.providers.base.driver import Location, Vm
from cloudtrain.providers.base.provider import CloudProvider
from tests.standins import azure_machine_rules, azure_offer
from tests.standins.azure_world import SUBSCRIPTION
from tests.standins.cloud import Cloud
from tests.support.azure_parts import (
    CALLER,
    HERE,
    account_of,
    ground_of,
    order_of,
    plain,
    plan_of,
    silent,
    stand_in,
    with_spot,
)
from tests.support.fake_account import Clock
from tests.support.fakes import make_identity

GROUP = "cloudtrain-mnist-eastus"
ANYWHERE = Location(region="eastus")


@pytest.fixture
def azure() -> Iterator[Cloud]:
    with stand_in() as cloud:
        yield cloud


@pytest.fixture
def plan(azure: Cloud) -> Plan:
    """Machines without an accelerator."""
    return plain(azure)


def first(plan: Plan, account: AzureDriver, place: Location = HERE, **given: Any) -> Vm:
    ground = ground_of(account, plan, place)
    return account.launch(order_of(plan, plan.nodes[0], ground, place=place, **given))


def arm(account: AzureDriver) -> Any:
    return account._arm


def thing(account: AzureDriver, kind: str, name: str) -> Any:
    path = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers/{kind}/{name}"
    return arm(account).get(path)


def actions(azure: Cloud, *starts: str) -> list[str]:
    return [c["action"] for c in azure.calls() if c["action"].startswith(starts)]


# ── Places ───────────────────────────────────────────────────────────────────


def test_a_zone_that_this_subscription_may_not_use_is_left_out(azure: Cloud, plan: Plan) -> None:
    azure.set(restricted=["eastus-2/*", "westeurope/*"])
    found = [str(place) for place in account_of(plan).places(plan)]
    assert found == ["eastus-1", "eastus-3", "eastus", "westeurope"]


# ── Ground ───────────────────────────────────────────────────────────────────


def with_bastion(azure: Cloud, **properties: object) -> Plan:
    """A plan whose nodes are in a company's network with that Bastion."""
    group = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/net"
    bare = arm(account_of(plain(azure)))
    bare.put(group, {"location": "eastus"})
    network = f"{group}/providers/Microsoft.Network/virtualNetworks/hub"
    subnets = [
        {"name": "gpu", "properties": {"addressPrefix": "10.9.1.0/24"}},
        {"name": "AzureBastionSubnet", "properties": {"addressPrefix": "10.9.0.0/26"}},
    ]
    space = {"addressSpace": {"addressPrefixes": ["10.9.0.0/16"]}, "subnets": subnets}
    bare.put(network, {"location": "eastus", "properties": space})
    own = {"properties": {"subnet": {"id": f"{network}/subnets/AzureBastionSubnet"}}, "name": "a"}
    body = {
        "location": "eastus",
        "sku": {"name": "Standard"},
        "properties": {"ipConfigurations": [own], **properties},
    }
    bare.put(f"{group}/providers/Microsoft.Network/bastionHosts/b", body)
    proxy = SshProxy(bastion="net/b")
    return plain(
        azure, network=Network(subnet=f"{network}/subnets/gpu", private=True, ssh_proxy=proxy)
    )


def test_with_a_bastion_ssh_is_open_to_its_subnet_alone(azure: Cloud) -> None:
    plan = with_bastion(azure, enableTunneling=True)
    account = account_of(plan)
    account.create_network(plan, HERE, "", silent)
    firewall = thing(account, "Microsoft.Network/networkSecurityGroups", "cloudtrain-mnist")
    rules = {rule["name"]: rule["properties"] for rule in firewall["properties"]["securityRules"]}
    assert rules["ssh"]["sourceAddressPrefix"] == "10.9.0.0/26"
    assert rules["nothing-else"]["access"] == "Deny"
    found = {finding.what: finding for finding in account.check(plan)}
    assert found["bastion"].text == "b (Standard) opens tunnels from 10.9.0.0/26"
    assert all(finding.ok for finding in account.dry_run(plan))


def test_a_bastion_without_tunnels_is_refused_with_the_command_that_allows_them(
    azure: Cloud,
) -> None:
    plan = with_bastion(azure)
    account = account_of(plan)
    with pytest.raises(CloudConfigError, match="no native client support") as refused:
        account.create_network(plan, HERE, "", silent)
    assert "--enable-tunneling true" in str(refused.value.hint)
    found = {finding.what: finding for finding in account.check(plan)}
    assert not found["bastion"].ok
    missing = replace(plan.config.network, ssh_proxy=SshProxy(bastion="net/c"))
    other = replace(plan, config=replace(plan.config, network=missing))
    with pytest.raises(CloudConfigError, match=r"no Bastion /subscriptions/.*/bastionHosts/c"):
        account_of(other).create_network(other, HERE, "", silent)


def test_a_rule_that_somebody_added_is_taken_out(azure: Cloud, plan: Plan) -> None:
    account = account_of(plan)
    ground = ground_of(account, plan)
    body = dict(arm(account).get(ground.firewall))
    wide = {
        "priority": 100,
        "direction": "Inbound",
        "access": "Allow",
        "protocol": "*",
        "sourceAddressPrefix": "*",
        "sourcePortRange": "*",
        "destinationAddressPrefix": "*",
        "destinationPortRange": "*",
    }
    rules = [{"name": "all", "properties": wide}]
    changed = {**body, "properties": {"securityRules": rules}}
    arm(account).put(ground.firewall, {k: changed[k] for k in ("location", "tags", "properties")})
    ground_of(account, plan)
    rules = arm(account).get(ground.firewall)["properties"]["securityRules"]
    assert [rule["name"] for rule in rules] == ["ssh"]


def test_a_group_that_is_just_being_deleted_is_waited_for(azure: Cloud, plan: Plan) -> None:
    account = account_of(plan)
    path = ground_of(account, plan).group.path
    azure.set(delays={"resourceGroups": 0.3})
    arm(account).call("DELETE", path)
    ground_of(account, plan)
    assert f"resource group {GROUP} eastus" in azure.holdings()


def test_a_subnet_of_the_users_own_stays_as_it_is(azure: Cloud) -> None:
    """And lets in no more than its own range to our nodes."""
    bare = account_of(plain(azure))
    mine = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/mine"
    arm(bare).put(mine, {"location": "eastus"})
    space = {"addressSpace": {"addressPrefixes": ["10.9.0.0/16"]}}
    subnets = [{"name": "gpu", "properties": {"addressPrefix": "10.9.1.0/24"}}]
    network = f"{mine}/providers/Microsoft.Network/virtualNetworks/theirs"
    arm(bare).put(network, {"location": "eastus", "properties": {**space, "subnets": subnets}})
    subnet = f"{network}/subnets/gpu"

    plan = plain(azure, network=Network(subnet=subnet, private=True, ssh_from="10.0.0.0/8"))
    account = account_of(plan)
    first(plan, account)
    firewall = thing(account, "Microsoft.Network/networkSecurityGroups", "cloudtrain-mnist")
    rules = {rule["name"]: rule["properties"] for rule in firewall["properties"]["securityRules"]}
    assert rules["cluster"]["sourceAddressPrefix"] == "10.9.1.0/24"
    assert rules["nothing-else"]["access"] == "Deny"
    (machine,) = account.machines()
    assert machine.node.address == machine.node.internal
    assert machine.node.internal.startswith("10.9.1.")
    account.delete((), account.resources())
    assert azure.holdings() == ["network theirs", "resource group mine eastus"]


@pytest.mark.parametrize("subnet", ["gpu", f"/subscriptions/{SUBSCRIPTION}/subnets/x"])
def test_a_subnet_that_is_none_is_refused_before_anything_is_made(
    azure: Cloud, subnet: str
) -> None:
    plan = plain(azure, network=Network(subnet=subnet))
    account = account_of(plan)
    with pytest.raises(CloudError):
        ground_of(account, plan)
    assert [held for held in azure.holdings() if "resource group" not in held] == []


def test_nodes_with_accelerators_stand_close_together(azure: Cloud) -> None:
    plan = plan_of(azure)
    account = account_of(plan)
    first(plan, account)
    vm = thing(account, "Microsoft.Compute/virtualMachines", "mnist-chief0")
    assert vm["properties"]["proximityPlacementGroup"]["id"].endswith("/cloudtrain-mnist-eastus-1")
    for network in (Network(), Network(close="off")):
        apart = plan_of(azure, network=network)
        assert ground_of(account_of(apart), apart).proximity is None


def test_an_endpoint_without_proximity_groups_makes_the_cluster_without(azure: Cloud) -> None:
    plan = plan_of(azure)
    answer = {"status": 404, "code": "InvalidResourceType"}
    azure.fault("answer", action="PUT proximityPlacementGroups*", times=9, **answer)
    account = account_of(plan)
    assert ground_of(account, plan).proximity is None


# ── Launch ───────────────────────────────────────────────────────────────────


def test_a_vm_has_all_that_it_needs_and_nothing_more(azure: Cloud, plan: Plan) -> None:
    account = account_of(plan)
    made = first(plan, account)
    (machine,) = account.machines()
    assert machine.id == made.id
    node = machine.node
    assert (node.name, node.role, node.index) == ("mnist-chief0", "chief", 0)
    assert (node.state, node.placement, node.machine) == ("running", "eastus-1", "Standard_D4s_v5")
    assert node.address.startswith("203.0.113.")
    assert node.internal.startswith("10.42.")
    assert node.expires
    assert made.node.expires
    assert abs(node.expires - made.node.expires) < 1
    assert node.created
    assert machine.error is None
    vm = thing(account, "Microsoft.Compute/virtualMachines", "mnist-chief0")
    assert "identity" not in vm
    assert vm["zones"] == ["1"]
    os = vm["properties"]["osProfile"]
    assert os["adminUsername"] == "cloudtrain"
    assert os["linuxConfiguration"]["disablePasswordAuthentication"] is True
    assert vm["properties"]["storageProfile"]["osDisk"]["diskSizeGB"] == 64
    assert "priority" not in vm["properties"]


def test_a_machine_boots_from_ubuntu_24_once_azure_has_no_22(
    azure: Cloud, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in list(azure_offer.IMAGES):
        if "22_04" in key[2]:
            monkeypatch.delitem(azure_offer.IMAGES, key)
    account = account_of(plan)
    first(plan, account)
    vm = thing(account, "Microsoft.Compute/virtualMachines", "mnist-chief0")
    assert vm["properties"]["storageProfile"]["imageReference"]["offer"] == "ubuntu-24_04-lts"


def security(account: AzureDriver, name: str = "mnist-chief0") -> Any:
    vm = thing(account, "Microsoft.Compute/virtualMachines", name)
    return vm["properties"].get("securityProfile") or {}


def test_no_secure_boot_stands_in_the_way_of_a_gpus_driver(azure: Cloud) -> None:
    """Where the subscription has it for all machines that say nothing."""
    azure.set(features=["Microsoft.Compute/TrustedLaunchByDefaultPreview"])
    bare = account_of(plain(azure))
    first(plain(azure), bare)
    assert security(bare)["uefiSettings"]["secureBootEnabled"]
    bare.delete((), bare.resources())
    plan = plan_of(azure)
    account = account_of(plan)
    first(plan, account)
    assert security(account) == {"securityType": "Standard"}


def test_where_standard_security_is_refused_secure_boot_is_turned_off_by_trusted_launch(
    azure: Cloud,
) -> None:
    """Silence would turn it on where the subscription has it for all machines."""
    azure.set(
        api_versions={"microsoft.compute": ["2024-07-01"]},
        features=["Microsoft.Compute/TrustedLaunchByDefaultPreview"],
    )
    plan = plan_of(azure)
    account = account_of(plan)
    first(plan, account)
    off = {"secureBootEnabled": False, "vTpmEnabled": True}
    assert security(account) == {"securityType": "TrustedLaunch", "uefiSettings": off}
    assert [machine.node.state for machine in account.machines()] == ["running"]
    account.delete((), account.resources())
    old = plan_of(azure, image="Canonical:ubuntu-24_04-lts:server-gen1:latest")
    account = account_of(old)
    first(old, account)
    assert security(account) == {}  # of an image that cannot have Trusted Launch


def test_a_machine_that_got_secure_boot_all_the_same_is_deleted_with_the_reason(
    azure: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(azure)
    monkeypatch.setattr(azure_machine_rules, "is_trusted_by_default", lambda *_: True)
    account = account_of(plan)
    with pytest.raises(CloudConfigError, match="created it with Secure Boot") as caught:
        first(plan, account)
    assert "az feature register" in str(caught.value.hint)
    assert not account.machines()


def test_everything_bears_our_labels_from_its_first_second(azure: Cloud, plan: Plan) -> None:
    account = account_of(plan)
    first(plan, account)
    for held in arm(account).pages(f"/subscriptions/{SUBSCRIPTION}/resources"):
        if not held["type"].endswith("disks"):
            assert held["tags"]["cloudtrain-cluster"] == "mnist", held["id"]
            assert held["tags"]["cloudtrain-owner"]


def test_a_spot_vm_is_to_be_deleted_when_it_is_taken_back(azure: Cloud, plan: Plan) -> None:
    plan = with_spot(plan)
    account = account_of(plan)
    first(plan, account)
    vm = thing(account, "Microsoft.Compute/virtualMachines", "mnist-chief0")["properties"]
    assert (vm["priority"], vm["evictionPolicy"]) == ("Spot", "Delete")
    assert vm["billingProfile"]["maxPrice"] == -1


def test_the_next_zone_has_the_node_that_the_first_one_lacked(azure: Cloud, plan: Plan) -> None:
    """An address belongs to one zone for good."""
    azure.set(capacity={"eastus-1": 0})
    account = account_of(plan)
    with pytest.raises(CapacityError):
        first(plan, account)
    second = Location(region="eastus", zone="eastus-2")
    first(plan, account, second)
    assert [machine.place for machine in account.machines()] == [second]


def test_a_vm_that_is_lost_in_creation_is_listed_with_its_reason(azure: Cloud, plan: Plan) -> None:
    """As a creation that was killed leaves it."""
    azure.set(capacity={"eastus-1": 0}, capacity_code="ZonalAllocationFailed")
    account = account_of(plan)
    azure.fault("answer", action="DELETE*", status=403, code="AuthorizationFailed", times=1)
    with pytest.raises(CapacityError) as caught:
        first(plan, account)
    assert "The rollback failed too" in str(caught.value.hint)
    (machine,) = account.machines()
    assert machine.node.state == "stopped"
    assert isinstance(machine.error, CapacityError)
    assert "ZonalAllocationFailed" in machine.error.message


def test_a_conflict_with_ones_own_earlier_call_is_no_failure(azure: Cloud, plan: Plan) -> None:
    azure.set(delays={"virtualMachines": 0.3})
    account = account_of(plan)
    azure.fault("reset", action="PUT virtualMachines*", after=True)
    azure.fault("answer", action="PUT virtualMachines*", status=409, code="Conflict", times=20)
    first(plan, account)
    assert [machine.node.state for machine in account.machines()] == ["running"]


class Killed(BaseException):
    """Nothing more is done."""


def die(*_: Any) -> Any:
    raise Killed


def patient(plan: Plan, clock: Clock | None = None) -> CloudProvider[ClusterNetwork]:
    """A provider on whose clock time passes where it sleeps."""
    timing = replace((clock or Clock(time.time())).timing(), boot=120.0)
    return CloudProvider(account_of(plan, timing), caller=lambda: CALLER, timing=timing)


@pytest.mark.parametrize(("times", "place"), [(1, "eastus-1"), (2, "eastus-2")])
def test_a_vm_that_azure_never_creates_is_created_again_once(
    azure: Cloud,
    plan: Plan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    times: int,
    place: str,
) -> None:
    """It alone; if that one does not come either, all of them in the next place."""
    monkeypatch.setattr(retry, "_reported", {})
    azure.set(stuck={"mnist-worker0": times})
    said: list[str] = []
    with retry.waits_reported_to(said.append):
        nodes = patient(plan).create(plan, make_identity(tmp_path, plan), silent)
    assert [(node.state, node.placement) for node in nodes] == [("running", place)] * 3
    assert "Azure has been creating mnist-worker0 for 1 min" in said
    assert any(line.endswith("not created it after 2 min: it is created again") for line in said)
    assert Counter(actions(azure, "PUT virtualMachines")) == {
        "PUT virtualMachines mnist-chief0": times,
        "PUT virtualMachines mnist-worker0": times + 1,
        "PUT virtualMachines mnist-worker1": times,
    }


def test_a_vm_that_azure_neither_creates_nor_deletes_is_not_requested_again_and_named(
    azure: Cloud, plan: Plan, tmp_path: Path
) -> None:
    azure.set(stuck={"mnist-worker0": 1})
    refusal = {"status": 409, "code": "ScopeLocked", "times": 1000}
    azure.fault("answer", action="DELETE*", **refusal)
    with pytest.raises(CloudtrainError) as raised:
        patient(plan).create(plan, make_identity(tmp_path, plan), silent)
    assert "mnist-worker0" in f"{raised.value} {raised.value.hint}"
    assert "rollback failed" in f"{raised.value} {raised.value.hint}"
    assert Counter(actions(azure, "PUT virtualMachines mnist-worker0")).total() == 1
    azure.no_more_faults()
    patient(plan).destroy("mnist", silent)
    assert azure.holdings() == []


def test_nothing_is_left_where_the_process_ends_before_a_vm_is_created_again(
    azure: Cloud, plan: Plan, tmp_path: Path
) -> None:
    azure.set(stuck={"mnist-worker0": 1})
    provider = patient(plan)
    lines: list[Line] = []
    asked: list[str] = []

    def journal(event: Event, /) -> None:
        lines.append(to_line(event, time=time.time(), pid=1))
        if isinstance(event, NodeRequested):
            if event.node in asked:
                provider._account.machines = die  # type: ignore[method-assign]
                die()
            asked.append(event.node)

    with pytest.raises(Killed):
        provider.create(plan, make_identity(tmp_path, plan), journal)
    assert sorted(m.node.name for m in account_of(plan).machines()) == [
        "mnist-chief0",
        "mnist-worker1",
    ]
    patient(plan).destroy("mnist", silent, pending_nodes(lines))
    assert azure.holdings() == []


def test_the_next_up_creates_a_vm_again_that_a_killed_one_left_stuck(
    azure: Cloud, plan: Plan, tmp_path: Path
) -> None:
    azure.set(stuck={"mnist-worker0": 1})
    clock, identity = Clock(time.time()), make_identity(tmp_path, plan)
    dies = clock.time + 60

    def sleep(seconds: float) -> None:
        clock.time += seconds
        if clock.time > dies:
            provider._account.machines = die  # type: ignore[method-assign]
            die()

    clock.sleep = sleep  # type: ignore[method-assign]
    provider = patient(plan, clock)
    with pytest.raises(Killed):
        provider.create(plan, identity, silent)
    nodes = patient(plan, Clock(dies + 120)).create(plan, identity, silent)
    assert [node.state for node in nodes] == ["running"] * 3
    made = Counter(actions(azure, "PUT virtualMachines"))
    assert sorted(made.values()) == [1, 1, 2]


# ── Listing ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("refused", [False, True])
def test_a_cluster_is_listed_from_its_own_group(azure: Cloud, plan: Plan, refused: bool) -> None:
    """A subscription may hold thousands of VMs; and each VM may be read 12 times a minute, which
    `status --watch` would exceed without instance views in the list of the group.
    """
    azure.set(expand_needs_filter=refused)
    account = account_of(plan)
    ground = ground_of(account, plan)
    for node in plan.nodes:
        account.launch(order_of(plan, node, ground))
    assert len(account.machines("mnist", HERE)) == 3
    azure.forget_calls()
    assert [m.node.state for m in account.machines("mnist", HERE)] == ["running"] * 3
    assert sorted(actions(azure, "LIST", "GET")) == [
        f"GET resourceGroups {GROUP}",
        *["LIST instanceView"] * (3 if refused else 0),
        "LIST networkInterfaces",
        "LIST publicIPAddresses",
        "LIST virtualMachines",
    ]
    assert len(account.machines("mnist")) == 3
    assert account.machines("mnist", ANYWHERE) == ()
    assert account.machines("other") == ()
    assert account.machines("other", HERE) == ()


def test_all_clusters_are_listed_by_five_calls_however_many_vms_there_are(
    azure: Cloud, plan: Plan
) -> None:
    account = account_of(plan)
    ground = ground_of(account, plan)
    for node in plan.nodes:
        account.launch(order_of(plan, node, ground))
    azure.forget_calls()
    assert len(account.machines()) == 3
    assert len(azure.calls()) == 5


def test_what_is_not_ours_is_never_listed(azure: Cloud, plan: Plan) -> None:
    account = account_of(plan)
    machine = first(plan, account)
    arm(account).finish(
        "PATCH", machine.id, arm(account).call("PATCH", machine.id, {"tags": {"mine": "1"}})
    )
    assert account.machines() == ()


def test_a_vm_whose_group_is_being_deleted_is_none_to_adopt(azure: Cloud, plan: Plan) -> None:
    account = account_of(plan)
    first(plan, account)
    azure.set(delays={"resourceGroups": 5.0, "virtualMachines": 5.0})
    arm(account).call("DELETE", f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}")
    (machine,) = account.machines()
    assert isinstance(machine.error, BusyError)


def test_what_bears_our_label_in_a_group_of_somebody_else_is_found_and_deleted(
    azure: Cloud, plan: Plan
) -> None:
    account = account_of(plan)
    first(plan, account)
    path = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}"
    arm(account).put(path, {"location": "eastus", "tags": {"mine": "now"}})
    kinds = {resource.kind for resource in account.resources("mnist")}
    assert kinds == {
        "Microsoft.Compute/disks",
        "Microsoft.DevTestLab/schedules",
        "Microsoft.Network/networkInterfaces",
        "Microsoft.Network/publicIPAddresses",
        "Microsoft.Network/virtualNetworks",
        "Microsoft.Network/networkSecurityGroups",
    }
    assert account.resources("other") == ()
    assert {resource.cluster for resource in account.resources()} == {"mnist"}
    account.delete(account.machines("mnist"), account.resources("mnist"))
    assert azure.holdings() == [f"resource group {GROUP} eastus"]


# ── Deletion ─────────────────────────────────────────────────────────────────


def test_one_vm_goes_with_all_that_was_made_for_it(azure: Cloud, plan: Plan) -> None:
    account = account_of(plan)
    ground = ground_of(account, plan)
    before = azure.holdings()
    for node in plan.nodes[:2]:
        account.launch(order_of(plan, node, ground))
    account.delete([m for m in account.machines() if m.node.name == "mnist-chief0"], ())
    assert [machine.node.name for machine in account.machines()] == ["mnist-worker0"]
    assert not [held for held in azure.holdings() if "chief0" in held]
    account.delete(account.machines(), ())
    assert azure.holdings() == before


def test_a_cluster_goes_with_its_groups_in_every_region(azure: Cloud, plan: Plan) -> None:
    account = account_of(plan)
    first(plan, account)
    first(plan, account, Location(region="westeurope"))
    azure.forget_calls()
    account.delete(account.machines(), account.resources())
    assert azure.holdings() == []
    assert sorted(actions(azure, "DELETE")) == [
        f"DELETE resourceGroups {GROUP}",
        "DELETE resourceGroups cloudtrain-mnist-westeurope",
    ]


def test_machines_stop_costing_before_their_group_is_deleted(azure: Cloud, plan: Plan) -> None:
    """Deallocating takes seconds; deleting a group with GPU machines minutes."""
    account = account_of(plan)
    ground = ground_of(account, plan)
    for node in plan.nodes:
        account.launch(order_of(plan, node, ground))
    machines, resources = account.machines("mnist"), account.resources("mnist")
    azure.set(delays={"resourceGroups": 0.3})
    azure.forget_calls()
    account.delete(machines, resources)
    done = actions(azure, "POST virtualMachines/deallocate", "DELETE")
    assert [action.split()[0] for action in done] == ["POST", "POST", "POST", "DELETE"]
    assert azure.app.forced == ["Microsoft.Compute/virtualMachines"]
    assert azure.holdings() == []


def test_a_locked_group_costs_no_more_than_what_cannot_be_deallocated(
    azure: Cloud, plan: Plan
) -> None:
    account = account_of(plan)
    ground = ground_of(account, plan)
    for node in plan.nodes:
        account.launch(order_of(plan, node, ground))
    azure.set(locks=[GROUP])
    with pytest.raises(PermissionsError) as caught:
        account.delete(account.machines("mnist"), account.resources("mnist"))
    refusal = caught.value
    assert (
        f"resource group {GROUP}: deallocated, not deleted: still billed are 3 disks and "
        "addresses, about 25.35 $ a month" in refusal.message
    )
    assert "locked" in refusal.message
    assert "az lock" in str(refusal.hint)
    assert {machine.node.state for machine in account.machines("mnist")} == {"stopped"}


def test_a_machine_that_cannot_be_deallocated_is_named_as_billed(azure: Cloud, plan: Plan) -> None:
    account = account_of(plan)
    first(plan, account)
    azure.set(locks=[GROUP], not_permitted=["*/deallocate/action"])
    words = "not deleted: still billed are the machine mnist-chief0, disk and address"
    with pytest.raises(PermissionsError, match=words):
        account.delete(account.machines("mnist"), account.resources("mnist"))


def test_a_group_that_is_being_deleted_already_is_waited_for(azure: Cloud, plan: Plan) -> None:
    account = account_of(plan)
    first(plan, account)
    machines, resources = account.machines(), account.resources()
    azure.set(delays={"resourceGroups": 0.3})
    arm(account).call("DELETE", f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}")
    account.delete(machines, resources)
    assert azure.holdings() == []
    account.delete(machines, resources)


def test_one_failure_does_not_keep_the_others_from_being_deleted(azure: Cloud, plan: Plan) -> None:
    account = account_of(plan)
    ground = ground_of(account, plan)
    for node in plan.nodes:
        account.launch(order_of(plan, node, ground))
    refusal = {"status": 403, "code": "AuthorizationFailed"}
    azure.fault("answer", action="DELETE virtualMachines mnist-worker0", **refusal)
    with pytest.raises(PermissionsError):
        account.delete(account.machines(), ())
    assert [machine.node.name for machine in account.machines()] == ["mnist-worker0"]
