"""The role or policy of docs/ is what each driver calls, enough for all that it does, no more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from botocore.exceptions import ClientError

from cloudtrain.core.errors import PermissionsError
from cloudtrain.core.model import ArtifactRules, NodeGroup, Plan
from cloudtrain.providers.aws import permissions as of_aws
from cloudtrain.providers.azure import permissions as of_azure
from cloudtrain.providers.gcp import permissions as of_gcp
from tests.standins import aws_data
from tests.support.aws_parts import ec2, silent
from tests.support.driver_rig import RIGS, Rig
from tests.support.fakes import make_identity
from tests.support.gcp_parts import groups

ROOT = Path(__file__).parents[2]
NEW_SUBSCRIPTION = {
    "unregistered": [
        *("Microsoft.Compute", "Microsoft.Network"),
        *("Microsoft.DevTestLab", "Microsoft.ComputeSchedule"),
    ],
    "storage_accounts": {"models1": {}},
    "delay": 0.05,
}


def page(cloud: str) -> str:
    return (ROOT / "docs" / f"{cloud}.md").read_text(encoding="utf-8")


def pasted(cloud: str) -> Any:
    """What a reader of the page grants."""
    if cloud == "gcp":
        role = page("gcp").partition("```yaml\ntitle: cloudtrain")[2].partition("```")[0]
        return yaml.safe_load(role)["includedPermissions"]
    document = json.loads(page(cloud).partition("```json\n")[2].partition("```")[0])
    if cloud == "aws":
        return document
    return [each for each in document["Actions"] if each not in of_azure.STORE_ACTIONS]


@pytest.fixture
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """With what the page grants; on Azure, nothing is registered yet."""
    with RIGS[request.param](**(NEW_SUBSCRIPTION if request.param == "azure" else {})) as rig:
        rig.cloud.set(granted=pasted(request.param))
        yield rig


CHANGES: dict[str, dict[str, Any]] = {
    "aws": {
        "nodes": groups(machine="g4dn.xlarge"),
        "placement": ("us-east-1a",),
    },
    "azure": {
        "nodes": groups(machine="Standard_NC4as_T4_v3"),
        "placement": ("eastus",),
        "artifacts": ArtifactRules(store="az://models1/runs"),
    },
    "gcp": {
        "nodes": groups(machine="g2-standard-4"),
        "placement": ("us-east4-a", "us-east4"),
    },
}


def plan_of(rig: Rig) -> Plan:
    return rig.plan(**CHANGES[rig.cloud.name])


@pytest.mark.parametrize("rig", RIGS, indirect=True)
def test_the_role_is_enough_for_check_up_repair_down_and_ls(rig: Rig, tmp_path: Path) -> None:
    plan = plan_of(rig)
    identity = make_identity(tmp_path, plan)
    first, other = rig.provider(plan), rig.provider(plan, "198.51.100.9/32")
    assert [f.text for f in [*first.check(plan), *first.dry_run(plan)] if not f.ok] == []
    first.create(plan, identity, silent)
    rig.cloud.tell("shut_down", name="mnist-worker0")
    rig.pass_a_minute()
    other.create(plan, identity, silent)
    other.remove("mnist", ["mnist-worker1"], silent)
    other.create(plan, identity, silent)
    if rig.cloud.name == "azure":
        rig.cloud.set(expand_needs_filter=True)  # then each VM is asked for its instance view
    assert [node.state for node in other.nodes("mnist")] == ["running"] * 3
    assert other.serial_log("mnist", "mnist-chief0") == ""
    assert [holding.cluster for holding in other.sweep()] == ["mnist"]
    other.destroy("mnist", silent)
    assert rig.cloud.holdings() == []
    if rig.cloud.name == "azure":
        in_a_group_of_others(rig, plan, tmp_path)
        assert rig.cloud.app.used - set(of_azure.ACTIONS) == set(), "called, and not in the role"
        assert set(of_azure.ACTIONS) - rig.cloud.app.used == set(), "in the role, never called"
    else:  # `ls` asks Google for TPUs, and without the right to it there are none
        asked = ["tpu.nodes.list"] if rig.cloud.name == "gcp" else []
        assert rig.cloud.app.denied == asked


def in_a_group_of_others(rig: Rig, plan: Plan, folder: Path) -> None:
    """Where somebody took the group's tag away, what is ours in it goes one by one."""
    (folder / "others").mkdir()
    rig.provider(plan).create(plan, make_identity(folder / "others", plan), silent)
    things = rig.cloud.app.things.values()
    (group,) = [one for one in things if one.type.endswith("/resourceGroups")]
    group.given["tags"] = {}
    rig.provider(plan).destroy("mnist", silent)
    assert rig.cloud.holdings() == ["resource group cloudtrain-mnist-eastus eastus"]


LACKING = {"aws": "ec2:CreateTags", "azure": "Microsoft.Network/publicIPAddresses/join/action"}


@pytest.mark.parametrize("rig", LACKING, indirect=True)
def test_an_action_that_is_not_allowed_is_told_by_check(rig: Rig) -> None:
    name, granted = rig.cloud.name, json.dumps(rig.cloud.app.granted)
    named = '"RunInstances"' if name == "aws" else f'"{LACKING[name]}"'
    rig.cloud.set(granted=json.loads(granted.replace(named, '"Nothing"')))
    plan = plan_of(rig)
    found = {finding.what: finding for finding in rig.provider(plan).check(plan)}
    assert found["permissions"].error is PermissionsError
    words = {"aws": "not authorized to perform: ", "azure": "not allowed: "}[name]
    assert f"{words}{LACKING[name]}" in found["permissions"].text


@pytest.mark.parametrize("rig", ["gcp"], indirect=True)
def test_a_call_that_the_role_lacks_is_refused_with_its_permission(
    rig: Rig, tmp_path: Path
) -> None:
    granted = [p for p in of_gcp.NEEDED if p != "compute.instances.setLabels"]
    rig.cloud.set(granted=granted)
    plan = rig.plan(strategy="one_device", nodes={"chief": NodeGroup(machine="n1-standard-2")})
    with pytest.raises(PermissionsError, match=r"compute\.instances\.setLabels"):
        rig.provider(plan).create(plan, make_identity(tmp_path, plan), silent)


@pytest.mark.parametrize("rig", ["aws"], indirect=True)
def test_the_policy_reaches_nothing_that_is_not_ours(rig: Rig) -> None:
    asked = {"ImageId": aws_data.IMAGES[0].id, "MinCount": 1, "MaxCount": 1}
    (other,) = ec2().run_instances(**asked, InstanceType="m5.large")["Instances"]
    tag = [{"Key": "cloudtrain-cluster", "Value": "mnist"}]
    for call, asked in (
        ("terminate_instances", {"InstanceIds": [other["InstanceId"]]}),
        ("create_tags", {"Resources": [other["InstanceId"]], "Tags": tag}),
    ):
        with pytest.raises(ClientError, match="UnauthorizedOperation"):
            getattr(ec2(), call)(**asked)


def test_what_the_pages_show_is_current() -> None:
    shown = [
        ("aws", "json", of_aws.text(of_aws.policy())),
        ("aws", "json", of_aws.text(of_aws.policy_of_schedules())),
    ]
    for cloud, form, text in shown:
        assert f"```{form}\n{text}```" in page(cloud), "run: python tools/generate_docs.py"


def test_azures_role_is_narrow() -> None:
    role = of_azure.role()
    assert not [action for action in [*role["Actions"], *role["DataActions"]] if "*" in action]
    assert role["DataActions"]


def test_every_permission_at_google_is_one_of_a_call_by_its_name() -> None:
    """Google names them alike, so that a slip of the pen is seen."""
    verbs = {"insert": "create", "patch": "update", "aggregatedList": "list", "wait": "get"}
    for method, needed in of_gcp.CALLS.items():
        *service, collection, verb = method.split(".")
        name = f"{(service or ['compute'])[0]}.{collection}.{verbs.get(verb, verb)}"
        assert name.lower() in map(str.lower, needed)
