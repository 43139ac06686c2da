"""`check --deep` on Azure: the whole cluster is validated with its real bodies, none created."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cloudtrain.core.errors import CloudConfigError, PermissionsError, QuotaError
from cloudtrain.core.model import NodeGroup
from tests.standins.cloud import Cloud
from tests.support.azure_parts import account_of, plain, plan_of, stand_in

HERE = ("eastus",)


@pytest.fixture
def azure() -> Iterator[Cloud]:
    with stand_in() as cloud:
        yield cloud


def test_a_cluster_is_validated_in_each_region_and_nothing_is_made(azure: Cloud) -> None:
    plan = plan_of(azure)
    first, second = account_of(plan).dry_run(plan)
    assert (first.ok, second.ok) == (True, True)
    assert first.text.startswith("eastus-1: Azure validated all that `up` creates (3 nodes)")
    assert "nothing was created or billed" in first.text
    assert second.text.startswith("westeurope-1:")
    assert azure.holdings() == []
    made = [c["action"] for c in azure.calls() if c["action"].startswith(("PUT", "PATCH", "DEL"))]
    assert made == []


@pytest.mark.parametrize(
    ("settings", "words", "error"),
    [
        (
            {"policies": ["Microsoft.Network/publicIPAddresses"]},
            "disallowed by policy",
            PermissionsError,
        ),
        ({"quotas": {"cores": 8}}, "exceeding approved Total Regional Cores quota", QuotaError),
        (
            {"not_permitted": ["Microsoft.Resources/deployments/validate/action"]},
            "does not have authorization",
            PermissionsError,
        ),
    ],
)
def test_what_azure_would_refuse_is_told_in_its_own_words(
    azure: Cloud, settings: dict[str, Any], words: str, error: type[Exception]
) -> None:
    plan = plan_of(azure, placement=HERE)
    azure.set(**settings)
    (found,) = account_of(plan).dry_run(plan)
    assert not found.ok
    assert words in found.text
    assert found.error is error
    assert azure.holdings() == []


def test_an_image_that_the_machine_cannot_boot_is_found(azure: Cloud) -> None:
    group = NodeGroup(machine="Standard_NC24ads_A100_v4")
    image = "Canonical:ubuntu-24_04-lts:server-gen1:latest"
    plan = plain(azure, nodes={"chief": group}, image=image, placement=HERE)
    (found,) = account_of(plan).dry_run(plan)
    assert not found.ok
    assert "cannot boot Hypervisor Generation" in found.text
    assert found.error is CloudConfigError


def test_a_cloud_with_older_versions_is_rehearsed_as_up_would_do_it(azure: Cloud) -> None:
    azure.set(api_versions={"microsoft.compute": ["2024-07-01"]})
    plan = plan_of(azure, placement=HERE)
    account = account_of(plan)
    assert all(finding.ok for finding in account.check(plan))
    (found,) = account.dry_run(plan)
    assert found.ok, found.text


def test_one_region_that_takes_it_is_enough(azure: Cloud) -> None:
    plan = plan_of(azure)
    azure.set(quotas={"eastus/cores": 0})
    first, second = account_of(plan).dry_run(plan)
    assert (first.ok, second.ok) == (True, True)
    assert "exceeding approved" in first.text
