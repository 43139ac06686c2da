"""The role of docs/azure.md is what the driver calls: enough for all that it does, and no more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.errors import PermissionsError
from cloudtrain.model import ArtifactRules, Plan
from cloudtrain.providers.azure import permissions
from cloudtrain.providers.base.provider import CloudProvider
from tests.standins.cloud import Cloud
from tests.support.azure_parts import CALLER, FAST, account_of, plan_of, silent, stand_in
from tests.support.fakes import make_identity

ROOT = Path(__file__).parents[2]


@pytest.fixture
def azure() -> Iterator[Cloud]:
    """With the role as it is on the page, and nothing registered yet."""
    page = (ROOT / "docs" / "azure.md").read_text(encoding="utf-8")
    pasted = json.loads(page.partition("```json\n")[2].partition("```")[0])
    store = permissions.STORE_ACTIONS
    with stand_in(
        granted=[action for action in pasted["Actions"] if action not in store],
        unregistered=[
            *("Microsoft.Compute", "Microsoft.Network"),
            *("Microsoft.DevTestLab", "Microsoft.ComputeSchedule"),
        ],
        storage_accounts={"models1": {}},
        delay=0.05,
    ) as azure:
        yield azure


def plan(azure: Cloud) -> Plan:
    store = ArtifactRules(store="az://models1/runs")
    return plan_of(azure, placement=("eastus",), artifacts=store)


def provider(azure: Cloud, caller: str = CALLER) -> CloudProvider[Any]:
    return CloudProvider(account_of(plan(azure)), caller=lambda: caller, timing=FAST)


def test_the_role_is_enough_for_all_that_is_done_and_each_line_of_it_is_used(
    azure: Cloud, tmp_path: Path
) -> None:
    made, identity = plan(azure), make_identity(tmp_path, plan(azure))
    found = [*provider(azure).check(made), *provider(azure).dry_run(made)]
    assert [f.text for f in found if not f.ok] == []
    provider(azure).create(made, identity, silent)
    azure.tell("shut_down", name="mnist-worker0")
    provider(azure, "198.51.100.9/32").create(made, identity, silent)
    provider(azure).remove("mnist", ["mnist-worker1"], silent)
    provider(azure).create(made, identity, silent)
    azure.set(expand_needs_filter=True)  # then each VM is asked for its instance view
    assert {node.state for node in provider(azure).nodes("mnist")} == {"running"}
    assert provider(azure).serial_log("mnist", "mnist-chief0") == ""
    assert [holding.cluster for holding in provider(azure).sweep()] == ["mnist"]
    provider(azure).destroy("mnist", silent)
    assert azure.holdings() == []
    in_a_group_of_others(azure, made, tmp_path)
    assert azure.app.used - set(permissions.ACTIONS) == set(), "called, and not in the role"
    assert set(permissions.ACTIONS) - azure.app.used == set(), "in the role, and never called"


def in_a_group_of_others(azure: Cloud, made: Plan, folder: Path) -> None:
    """Where somebody took the group's tag away, what is ours in it goes one by one."""
    provider(azure).create(made, make_identity(folder, made), silent)
    (group,) = [one for one in azure.app.things.values() if one.type.endswith("/resourceGroups")]
    group.given["tags"] = {}
    provider(azure).destroy("mnist", silent)
    assert azure.holdings() == ["resource group cloudtrain-mnist-eastus eastus"]


def test_an_action_that_the_role_lacks_is_told_by_check(azure: Cloud) -> None:
    lacking = "Microsoft.Network/publicIPAddresses/join/action"
    azure.set(granted=[action for action in azure.app.granted if action != lacking])
    found = {finding.what: finding for finding in provider(azure).check(plan(azure))}
    assert found["permissions"].error is PermissionsError
    assert f"not allowed: {lacking}" in found["permissions"].text


def test_the_role_is_narrow() -> None:
    role = permissions.role()
    assert not [action for action in [*role["Actions"], *role["DataActions"]] if "*" in action]
    assert role["DataActions"]
