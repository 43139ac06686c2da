"""Images of Azure's marketplace with a purchase plan: it is sent, and its terms are proved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.core.errors import CloudConfigError, CloudError, NodesError, PermissionsError
from cloudtrain.core.model import NodeGroup, Plan
from tests.support.company_parts import Company, company

NGC = "nvidia:ngc_azure_17_11:ngc-base-version-24_10_1_gen2"
NAME = "ngc-base-version-24_10_1_gen2"


@pytest.fixture
def azure(tmp_path: Path) -> Iterator[Company]:
    with company("azure", tmp_path, terms_accepted=[NAME]) as azure:
        yield azure


def plan_of(azure: Company, image: str) -> Plan:
    nodes = {"chief": NodeGroup(machine="Standard_D4s_v5", disk_gb=64)}
    return azure.plan(image=image, nodes=nodes, placement=("eastus",))


@pytest.mark.parametrize("version", ["latest", "24.10.1"])
def test_a_vm_names_the_plan_of_its_image(azure: Company, version: str) -> None:
    plan = plan_of(azure, f"{NGC}:{version}")
    assert f"plan {NAME} of nvidia, billed by its publisher" in azure.check(plan)["image"].text
    (rehearsed, *_) = azure.provider(plan.config).dry_run(plan)
    assert rehearsed.ok, rehearsed
    azure.up(plan)
    (vm,) = azure.app.of_type("Microsoft.Compute/virtualMachines")
    assert vm.given["plan"] == {"name": NAME, "product": "ngc_azure_17_11", "publisher": "nvidia"}
    azure.down(plan)
    assert azure.cloud.holdings() == []


def test_terms_that_are_not_accepted_are_told_with_the_command_that_does(azure: Company) -> None:
    azure.cloud.set(terms_accepted=[])
    plan = plan_of(azure, f"{NGC}:latest")
    finding = azure.check(plan)["image"]
    assert finding.error is CloudConfigError
    assert f"`az vm image terms accept --urn {NGC}:latest`" in str(finding.hint)
    with pytest.raises((CloudError, NodesError)) as refused:
        azure.up(plan)
    error = refused.value
    one = next(iter(error.failures.values())) if isinstance(error, NodesError) else error
    assert isinstance(one, PermissionsError)
    assert "az vm image terms accept" in str(one.hint)
    assert azure.cloud.holdings() == []


def test_an_image_without_a_plan_costs_no_question_about_one(azure: Company) -> None:
    plan = plan_of(azure, "auto")
    azure.up(plan)
    (vm,) = azure.app.of_type("Microsoft.Compute/virtualMachines")
    assert "plan" not in vm.given
    azure.down(plan)
