"""What `check` finds on Azure before anything costs: each lack, and how to mend it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.core.errors import CapacityError, PermissionsError, QuotaError
from cloudtrain.core.model import SPOT, Accelerator, ArtifactRules, Limits, NodeGroup, Plan
from cloudtrain.core.protocols import Finding
from cloudtrain.providers.azure import checks, quota
from cloudtrain.providers.azure.machine_types import Skus
from cloudtrain.providers.base.provider import CloudProvider
from tests.standins import azure_offer
from tests.standins.cloud import Cloud
from tests.support.azure_parts import (
    CALLER,
    FAST,
    HERE,
    account_of,
    ground_of,
    order_of,
    plain,
    plan_of,
    stand_in,
    with_spot,
)
from tests.support.fakes import facts_of, make_identity, no_journal


@pytest.fixture
def azure() -> Iterator[Cloud]:
    with stand_in() as cloud:
        yield cloud


@pytest.fixture
def plan(azure: Cloud) -> Plan:
    """Machines without an accelerator."""
    return plain(azure)


def findings(plan: Plan) -> dict[str, Finding]:
    """By what; the first bad one of several."""
    found: dict[str, Finding] = {}
    for finding in account_of(plan).check(plan):
        if finding.what not in found or found[finding.what].ok:
            found[finding.what] = finding
    return found


def test_check_finds_nothing_wrong_where_nothing_is(azure: Cloud, plan: Plan) -> None:
    found = findings(plan)
    assert all(finding.ok for finding in found.values())
    assert set(found) == {
        *("credentials", "permissions", "services", "lifetime"),
        *("placement", "machines", "image", "quota"),
    }
    assert "12 standardDSv5Family" in found["quota"].text
    assert azure.holdings() == []


@pytest.mark.parametrize(
    ("settings", "what", "words", "error"),
    [
        ({"subscription_state": "Disabled"}, "credentials", "is disabled", PermissionsError),
        (
            {"not_permitted": ["Microsoft.Network/networkSecurityGroups/write"]},
            "permissions",
            "not allowed: Microsoft.Network/networkSecurityGroups/write",
            PermissionsError,
        ),
        (
            {
                "unregistered": ["Microsoft.DevTestLab"],
                "not_permitted": ["Microsoft.DevTestLab/register/action"],
            },
            "services",
            "not registered in this subscription: Microsoft.DevTestLab",
            PermissionsError,
        ),
        ({"restricted": ["eastus/*", "westeurope/*"]}, "machines", "NotAvailable", CapacityError),
        ({"quotas": {"cores": 8}}, "quota", "cores: 12 needed, 8 of 8 left", QuotaError),
        (
            {"quotas": {"standardDSv5Family": 4}},
            "quota",
            "standardDSv5Family: 12 needed, 4 of 4 left",
            QuotaError,
        ),
        (
            {"quotas": {"IPv4StandardSkuPublicIpAddresses": 2}},
            "quota",
            "IPv4StandardSkuPublicIpAddresses: 3 needed, 2 of 2 left",
            QuotaError,
        ),
    ],
)
def test_check_says_what_is_wrong_and_how_to_mend_it(
    azure: Cloud,
    plan: Plan,
    settings: dict[str, Any],
    what: str,
    words: str,
    error: type[Exception],
) -> None:
    azure.set(**settings)
    found = findings(plan)[what]
    assert not found.ok
    assert words in found.text
    assert found.error is error
    assert found.hint


@pytest.mark.parametrize(
    "settings", [{"allowed_locations": ["westeurope"]}, {"best_regions": [""]}]
)
def test_a_region_that_a_policy_forbids_is_said_and_the_next_one_taken(
    azure: Cloud, plan: Plan, tmp_path: Path, settings: dict[str, Any]
) -> None:
    azure.set(**settings)
    said = [f for f in account_of(plan).check(plan) if f.what == "policies"]
    allowed = "allowed_locations" in settings
    assert [(f.text.partition(":")[0], f.ok) for f in said] == (
        [("eastus", True)] if allowed else [("eastus", False), ("westeurope", False)]
    )
    assert all("was disallowed by" in f.text and f.hint for f in said)
    assert azure.holdings() == []
    provider = CloudProvider(account_of(plan), caller=lambda: CALLER, timing=FAST)
    identity = make_identity(tmp_path, plan)
    if allowed:
        made = provider.create(plan, identity, no_journal)
        assert {node.placement.partition("-")[0] for node in made} == {"westeurope"}
    else:
        with pytest.raises(PermissionsError, match=r"(?s)eastus.*westeurope"):
            provider.create(plan, identity, no_journal)
        assert azure.holdings() == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {
                "nodes": {"chief": NodeGroup(machine="Standard_D4s_v6")},
                "image": "microsoft-dsvm:ubuntu-2204:2204-gen2:latest",
            },
            "Standard_D4s_v6 boots from NVMe alone",
        ),
        (
            {"nodes": {"chief": NodeGroup(machine="Standard_B2s", provisioning=SPOT)}},
            "Standard_B2s is not sold as spot",
        ),
    ],
)
def test_a_machine_that_azure_does_not_sell_like_that_is_told_before(
    azure: Cloud, changes: dict[str, Any], words: str
) -> None:
    bad = [f for f in account_of(plain(azure)).check(plain(azure, **changes)) if not f.ok]
    assert any(words in f.text and f.hint for f in bad), bad


def test_a_machine_that_boots_from_nvme_alone_is_created_with_it(azure: Cloud) -> None:
    plan = plain(azure, nodes={"chief": NodeGroup(machine="Standard_D4s_v6")})
    account = account_of(plan)
    ground = ground_of(account, plan)
    account.launch(order_of(plan, plan.nodes[0], ground))
    (vm,) = account._arm.pages(f"{ground.group.path}/providers/Microsoft.Compute/virtualMachines")
    assert vm["properties"]["storageProfile"]["diskControllerType"] == "NVMe"


def test_a_quota_is_found_however_azure_spells_it(azure: Cloud) -> None:
    """Skus and usages differ in spaces and capitals."""
    gpu = NodeGroup(machine="Standard_NC4as_T4_v3", accelerator=Accelerator(kind="T4"))
    plan = plan_of(azure, nodes={"chief": gpu})
    assert "4 standardNCASv3_T4Family" in findings(plan)["quota"].text
    azure.set(quotas={"Standard NCASv3_T4 Family": 0})
    found = findings(plan)["quota"]
    assert not found.ok
    assert "Standard NCASv3_T4 Family: 4 needed, 0 of 0 left" in found.text


def test_a_quota_that_is_not_listed_is_never_counted_as_enough(azure: Cloud) -> None:
    gpu = NodeGroup(machine="Standard_NC4as_T4_v3", accelerator=Accelerator(kind="T4"))
    plan = plan_of(azure, nodes={"chief": gpu})
    azure.set(untold_quotas=["*T4*", "*Standard*IpAddresses"])
    found = findings(plan)["quota"]
    assert (found.ok, found.told) == (True, False)
    assert "endpoint: standardNCASv3_T4Family, IPv4StandardSkuPublicIpAddresses" in found.text
    assert "enough for 4 cores" in found.text
    azure.set(untold_quotas=[])
    assert findings(plan)["quota"].told


def test_an_older_name_of_the_address_quota_counts_too(azure: Cloud, plan: Plan) -> None:
    name = {"name": {"value": "StandardSkuPublicIPAddresses"}, "limit": 2, "currentValue": 0}
    azure.set(untold_quotas=["*StandardSku*"])
    arm: Any = account_of(plan)._arm
    pages = arm.pages
    left = quota.left(arm, "eastus")
    assert "ipv4standardskupublicipaddresses" not in left
    arm.pages = lambda path, **query: [*pages(path, **query), name]
    with pytest.raises(QuotaError, match="StandardSkuPublicIPAddresses: 3 needed, 2 of 2 left"):
        checks._quota(arm, Skus(arm), plan, plan.nodes, "eastus")


def test_services_that_up_may_register_are_no_trouble(azure: Cloud, plan: Plan) -> None:
    azure.set(unregistered=["Microsoft.DevTestLab"])
    found = findings(plan)["services"]
    assert found.ok
    assert "Microsoft.DevTestLab: `up` registers it, for free" in found.text
    entries = []
    account = account_of(plan)
    account.create_network(
        plan, HERE, CALLER, lambda event: entries.append((event.word, *facts_of(event).values()))
    )
    assert ("make", "registration", "Microsoft.DevTestLab") in entries
    assert findings(plan)["services"].text.endswith("Microsoft.DevTestLab")


def test_without_a_limit_no_schedules_are_needed(azure: Cloud) -> None:
    azure.set(
        unregistered=["Microsoft.DevTestLab"],
        not_permitted=["*/register/action", "Microsoft.DevTestLab/*"],
        lacking={"Microsoft.DevTestLab/schedules": ["eastus", "westeurope"]},
    )
    found = findings(plain(azure, limits=Limits(max_lifetime=None)))
    assert all(finding.ok for finding in found.values())


def test_a_region_that_could_not_end_a_node_is_left_out_with_the_reason(
    azure: Cloud, plan: Plan
) -> None:
    azure.set(lacking={"Microsoft.DevTestLab/schedules": ["eastus"]})
    found = findings(plan)["placement"]
    assert found.ok
    assert "not eastus: Azure has no shutdown schedules there" in found.text
    assert {place.region for place in account_of(plan).places(plan)} == {"westeurope"}
    azure.set(lacking={"Microsoft.DevTestLab/schedules": ["eastus", "westeurope"]})
    found = findings(plan)["placement"]
    assert not found.ok
    assert "max_lifetime: off" in str(found.hint)


def test_what_is_billed_after_the_end_is_told_with_its_price(azure: Cloud, plan: Plan) -> None:
    text = findings(plan)["lifetime"].text
    assert "still billed until `down`: 3 disks and addresses, about 25.35 $ a month" in text


def test_infiniband_that_stays_unconnected_is_told(azure: Cloud) -> None:
    group = NodeGroup(
        machine="Standard_ND96isr_H100_v5", accelerator=Accelerator(kind="H100", count=8)
    )
    alone = plan_of(azure, nodes={"chief": group})
    assert "network" not in findings(alone)
    pair = plan_of(azure, nodes={"chief": group, "worker": group})
    found = findings(pair)["network"]
    assert found.ok
    assert "only within a scale set" in found.text
    assert "NCCL_IB_DISABLE=1" in found.text


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({}, "does not keep deleted files"),
        ({"deleteRetentionPolicy": {"enabled": True, "days": 7}}, "soft delete (7 days) enabled"),
        (
            {"deleteRetentionPolicy": {"enabled": True, "days": 7}, "isVersioningEnabled": True},
            "soft delete (7 days) and versioning enabled: each replaced checkpoint is still",
        ),
    ],
)
def test_what_blob_storage_keeps_of_old_checkpoints_is_told(
    azure: Cloud, properties: dict[str, Any], words: str
) -> None:
    plan = plain(azure, artifacts=ArtifactRules(store="az://models1/runs/mnist"))
    azure.set(storage_accounts={"models1": properties, "other": {}})
    found = findings(plan)["blobs"]
    assert found.ok
    assert words in found.text
    azure.set(storage_accounts={})
    assert "blobs" not in findings(plan)


def test_a_lifetime_is_told_in_words(azure: Cloud) -> None:
    plan = plain(azure, limits=Limits(max_lifetime=5400.0))
    assert "after 1 h 30 min" in findings(plan)["lifetime"].text


def test_a_token_endpoint_that_stumbles_once_is_asked_again(azure: Cloud, plan: Plan) -> None:
    azure.fault("answer", action="token", status=500, times=2)
    assert findings(plan)["credentials"].ok


def test_an_endpoint_with_older_versions_is_spoken_to_in_them(azure: Cloud, plan: Plan) -> None:
    """Sovereign clouds lag behind the public one."""
    azure.set(
        api_versions={
            "microsoft.compute": ["2023-09-01", "2024-07-01", "2024-11-01-preview"],
            "microsoft.network": ["2023-11-01", "2024-05-01"],
            "microsoft.resources": ["2021-04-01", "2022-09-01", "2022-12-01"],
        }
    )
    found = findings(plan)
    assert all(finding.ok and finding.told for finding in found.values())
    account = account_of(plan)
    account.launch(order_of(plan, plan.nodes[0], ground_of(account, plan)))
    assert [machine.node.state for machine in account.machines()] == ["running"]


def test_spot_nodes_draw_on_the_quota_of_their_own(azure: Cloud, plan: Plan) -> None:
    azure.set(quotas={"lowPriorityCores": 8, "cores": 0})
    found = findings(with_spot(plan))["quota"]
    assert not found.ok
    assert "lowPriorityCores: 12 needed, 8 of 8 left" in found.text


def test_an_image_that_the_machine_cannot_boot_is_found_before_it_costs(azure: Cloud) -> None:
    group = NodeGroup(machine="Standard_NC24ads_A100_v4")
    image = "Canonical:ubuntu-24_04-lts:server-gen1:latest"
    found = findings(plan_of(azure, nodes={"chief": group}, image=image))["image"]
    assert not found.ok
    assert "is of generation V1, but Standard_NC24ads_A100_v4 boots V2" in found.text


def test_secure_boot_by_default_is_told_where_it_matters(azure: Cloud, plan: Plan) -> None:
    azure.set(features=["Microsoft.Compute/TrustedLaunchByDefaultPreview"])
    assert "Secure Boot" in findings(plan_of(azure))["image"].text
    assert "Secure Boot" not in findings(plan)["image"].text


def test_what_this_endpoint_does_not_tell_is_said_so(azure: Cloud, plan: Plan) -> None:
    for action in (
        "LIST skus",
        "LIST usages",
        "LIST permissions",
        "LIST versions",
        "LIST ",
    ):
        azure.fault("answer", action=action, status=404, code="NotFound", times=99)
    found = findings(plan)
    assert all(finding.ok for finding in found.values())
    for what in ("permissions", "services", "machines", "quota"):
        assert "not reported by this endpoint" in found[what].text, what
        assert not found[what].told


def test_accelerators_take_the_image_with_drivers(azure: Cloud) -> None:
    gpu = NodeGroup(machine="Standard_NC4as_T4_v3", accelerator=Accelerator(kind="T4"))
    assert "ubuntu-hpc" in findings(plan_of(azure, nodes={"chief": gpu}))["image"].text
    assert "jammy" in findings(plain(azure))["image"].text


def test_ubuntu_24_serves_once_azure_has_no_22(
    azure: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = dict(azure_offer.IMAGES)
    for key in offered:
        if "22" in key[2] or "2204" in key[1]:
            monkeypatch.delitem(azure_offer.IMAGES, key)
    hpc = ("microsoft-dsvm", "ubuntu-hpc", "2404")
    monkeypatch.setitem(azure_offer.IMAGES, hpc, offered[(*hpc[:2], "2204")])
    gpu = NodeGroup(machine="Standard_NC4as_T4_v3", accelerator=Accelerator(kind="T4"))
    assert "ubuntu-hpc:2404" in findings(plan_of(azure, nodes={"chief": gpu}))["image"].text
    assert "ubuntu-24_04-lts" in findings(plain(azure))["image"].text
    named = findings(plan_of(azure, image="ubuntu-22.04"))["image"]
    assert not named.ok, "what is named is not exchanged"
