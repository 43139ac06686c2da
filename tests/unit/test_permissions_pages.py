"""Each cloud's page has the rights to paste that its driver knows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.config import load
from cloudtrain.core.cloud import clouds
from cloudtrain.core.model import (
    SPOT,
    ArtifactRules,
    ClusterConfig,
    DataSource,
    Network,
    NodeGroup,
    SshProxy,
)
from cloudtrain.providers.aws.provider import AwsDriver
from cloudtrain.providers.azure import permissions as azure
from cloudtrain.providers.azure.provider import AzureDriver
from cloudtrain.providers.gcp import permissions
from cloudtrain.providers.gcp.provider import GcpDriver
from tests.unit.test_config_page import ROOT, generate


@pytest.mark.parametrize("cloud", [cloud.name for cloud in clouds()])
def test_the_rights_to_paste_are_current(cloud: str) -> None:
    text = (ROOT / "docs" / f"{cloud}.md").read_text(encoding="utf-8")
    assert text == generate().permissions(cloud, text), "run: python tools/generate_docs.py"


BASE: dict[str, Any] = {
    "name": "m",
    "provider": "aws",
    "strategy": "custom",
    "nodes": {"worker": NodeGroup(machine="m6i.large")},
    "placement": ("eu-west-1",),
}
STORE = ArtifactRules(store="s3://bucket/x", create=True, encryption="aws:kms:alias/train")
PARTS: Mapping[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "spot": (
        {"nodes": {"worker": NodeGroup(machine="m6i.large", provisioning=SPOT)}},
        ("ec2:DescribeSpotPriceHistory", "*"),
    ),
    "an identity": ({"identity": "trainer"}, ("iam:PassRole", "arn:aws:iam::*:role/trainer")),
    "a session": (
        {"network": Network(private=True, ssh_proxy=SshProxy(ssm=True))},
        ("ssmmessages:OpenDataChannel", "arn:aws:ssm:*:*:session/${aws:userid}-*"),
    ),
    "a disk's key": ({"disk_key": "alias/disks"}, ("kms:CreateGrant", "*")),
    "a store": ({"artifacts": STORE}, ("s3:PutObject", "arn:aws:s3:::bucket/x/*")),
    "a new bucket": ({"artifacts": STORE}, ("s3:CreateBucket", "arn:aws:s3:::bucket")),
    "a store's key": ({"artifacts": STORE}, ("kms:GenerateDataKey", "*")),
    "data": (
        {"data": {"digits": DataSource(source="s3://other/digits")}},
        ("s3:GetObject", "arn:aws:s3:::other/digits*"),
    ),
}


def rights(**changes: Any) -> set[tuple[str, str]]:
    config = ClusterConfig(**BASE | changes)
    found = json.loads(AwsDriver(config).policy(config))
    return {(each, s["Resource"]) for s in found["Statement"] for each in s["Action"]}


@pytest.mark.parametrize("part", PARTS)
def test_a_policy_has_what_the_file_uses_and_no_more(part: str) -> None:
    changes, right = PARTS[part]
    assert right in rights(**changes)
    assert right not in rights()


def test_a_policy_with_everything_can_be_pasted_in_every_partition() -> None:
    """IAM takes 6,144 characters without blanks for a managed policy:
    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html
    """
    everything = {name: value for changes, _ in PARTS.values() for name, value in changes.items()}
    config = ClusterConfig(**BASE | everything | {"placement": ("cn-north-1",)})
    text = AwsDriver(config).policy(config)
    assert len("".join(text.split())) < 6144
    assert "arn:aws:" not in text
    assert "arn:aws-cn:s3:::bucket" in text
    given = ClusterConfig(**BASE, network=Network(subnet="subnet-1", firewall=("sg-1",)))
    assert "ec2:CreateSecurityGroup" not in {action for action, _ in rights(network=given.network)}


def test_the_rights_on_a_bucket_are_those_of_the_table() -> None:
    reference = (ROOT / "docs" / "aws.md").read_text("utf-8")
    section = reference.split("## Permissions for an `s3://` store")[1].split("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| `s3:")]
    listed = {action for row in rows for action in re.findall(r"`(s3:\w+)`", row)}
    given = rights(artifacts=STORE, tags={"team": "vision"})
    assert listed == {action for action, _ in given if action.startswith("s3:")}


SMALL = """\
name: small
provider: gcp
project: my-project
placement: [us-east4]
strategy: custom
nodes: {worker: {machine: n1-standard-4}}
train: {command: "true"}
"""


IN_AZURE = """\
name: small
provider: azure
project: 00000000-0000-4000-8000-000000000001
placement: [eastus]
strategy: custom
nodes: {worker: {machine: Standard_D2s_v5}}
train: {command: "true"}
"""
WHOLE = "/subscriptions/00000000-0000-4000-8000-000000000001"


@pytest.mark.parametrize(
    ("more", "has", "lacks"),
    [
        ("", f"Microsoft.Compute/skus/read|--scope {WHOLE}", "Storage/ deploy/action Identity"),
        (
            "artifacts: {store: az://mine/box/first}\ndata: {d: az://theirs/digits/a}\n",
            '"Storage Blob Data Contributor"|--name mine |"Storage Blob Data Reader"|'
            "--name theirs ",
            "blobs/write",
        ),
        ("identity: ids/trainer\n", f'"Managed Identity Operator"|{WHOLE}/resourceGroups/ids', ""),
        ("disk_key: keys/disks\n", f'"Reader"|{WHOLE}/resourceGroups/keys', ""),
        (
            "resource_group: mine\n",
            f"--scope {WHOLE}/resourceGroups/mine",
            "skus/read resourceGroups/write register/action",
        ),
    ],
)
def test_the_least_role_on_azure_is_a_command_with_what_the_file_uses(
    tmp_path: Path, more: str, has: str, lacks: str
) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(IN_AZURE + more)
    config = load(path)
    text = AzureDriver(config).policy(config)
    for part in has.split("|"):
        assert part in text
    for part in lacks.split():
        assert part not in text
    made = json.loads(text.partition("'")[2].partition("'")[0])
    assert made["Name"] == "cloudtrain-small"
    assert made["DataActions"] == []
    in_group = "resource_group" in more
    wanted = azure.IN_GROUP if in_group else azure.needed(ends=False, in_group=False)
    assert set(wanted) <= set(made["Actions"])


@pytest.mark.parametrize(
    ("more", "has", "lacks"),
    [
        (
            "",
            "--permissions=compute.acceleratorTypes.get,",
            "advice.capacity setServiceAccount tpu.",
        ),
        (
            "artifacts: {store: gs://my-bucket/first}\ndata: {d: gs://digits/a/b}\n",
            "buckets add-iam-policy-binding gs://my-bucket --member=user:YOU@example.com "
            "--role=roles/storage.objectUser|gs://digits --member=user:YOU@example.com "
            "--role=roles/storage.objectViewer",
            "gs://my-bucket/first",
        ),
        ("identity: a@my-project.iam.gserviceaccount.com\n", "instances.setServiceAccount", ""),
        (
            "network: {subnet: projects/h/regions/us-east4/subnetworks/s, firewall: existing}\n",
            "roles/compute.networkUser",
            "compute.networks.create compute.firewalls.create",
        ),
        ("network: {private: true, ssh_proxy: iap}\n", "iap.tunnelInstances.accessViaIAP", ""),
    ],
)
def test_the_least_role_on_google_is_a_command_with_what_the_file_uses(
    tmp_path: Path, more: str, has: str, lacks: str
) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL + more)
    config = load(path)
    text = GcpDriver(config).policy(config)
    assert "gcloud iam roles create cloudtrain --project=my-project" in text
    for part in has.split("|"):
        assert part in text
    for part in lacks.split():
        assert part not in text
    given = text.partition("--permissions=")[2].partition("\n")[0].split(",")
    assert tuple(given) == permissions.least(config)
