"""The policy of docs/aws.md is what the driver calls, enough for all that it does, and no more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from cloudtrain.errors import PermissionsError
from cloudtrain.providers.aws import permissions
from cloudtrain.providers.aws.provider import AwsDriver
from cloudtrain.providers.base.provider import CloudProvider
from tests.standins import aws_data
from tests.standins.cloud import Cloud
from tests.support.aws_parts import FAST, plan_of, provider_of, silent, stand_in
from tests.support.fakes import make_identity

ROOT = Path(__file__).parents[2]


@pytest.fixture
def aws() -> Iterator[Cloud]:
    with stand_in() as aws:
        page = (ROOT / "docs" / "aws.md").read_text(encoding="utf-8")
        aws.set(granted=json.loads(page.partition("```json\n")[2].partition("```")[0]))
        yield aws


def ec2() -> Any:
    return boto3.session.Session().client("ec2", region_name="us-east-1")


def test_the_policy_is_enough_for_check_up_repair_down_and_ls(aws: Cloud, tmp_path: Path) -> None:
    plan = plan_of(aws, placement=("us-east-1a",))
    identity = make_identity(tmp_path, plan)
    assert [f.text for f in provider_of(plan).check(plan) if not f.ok] == []
    provider_of(plan).create(plan, identity, silent)
    aws.app.shut_down("mnist-worker0")
    aws.app.advance(1)
    other = CloudProvider(
        AwsDriver(plan.config, FAST), caller=lambda: "198.51.100.9/32", timing=FAST
    )
    other.create(plan, identity, silent)
    assert len(other.nodes("mnist")) == 3
    assert [holding.cluster for holding in other.sweep()] == ["mnist"]
    other.destroy("mnist", silent)
    assert (aws.holdings(), aws.app.denied) == ([], [])


def test_it_reaches_nothing_that_is_not_ours(aws: Cloud) -> None:
    asked = {"ImageId": aws_data.IMAGES[0].id, "MinCount": 1, "MaxCount": 1}
    (other,) = ec2().run_instances(**asked, InstanceType="m5.large")["Instances"]
    tag = [{"Key": "cloudtrain-cluster", "Value": "mnist"}]
    for call, asked in (
        ("terminate_instances", {"InstanceIds": [other["InstanceId"]]}),
        ("create_tags", {"Resources": [other["InstanceId"]], "Tags": tag}),
    ):
        with pytest.raises(ClientError, match="UnauthorizedOperation"):
            getattr(ec2(), call)(**asked)


def test_an_action_that_is_not_allowed_is_told_by_check(aws: Cloud) -> None:
    less = json.loads(json.dumps(aws.app.granted).replace('"RunInstances"', '"Nothing"'))
    aws.set(granted=less)
    plan = plan_of(aws, placement=("us-east-1a",))
    found = {finding.what: finding for finding in provider_of(plan).check(plan)}
    assert found["permissions"].error is PermissionsError
    assert "not authorized to perform: ec2:CreateTags" in found["permissions"].text


def test_the_policies_of_the_page_are_current() -> None:
    page = (ROOT / "docs" / "aws.md").read_text(encoding="utf-8")
    for policy in (permissions.policy(), permissions.policy_of_schedules()):
        assert f"```json\n{permissions.text(policy)}```" in page, (
            "run: python tools/generate_docs.py"
        )
