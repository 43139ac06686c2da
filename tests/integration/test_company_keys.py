"""`disk_key:` on the three stand-ins: on every disk, proved as far as it can be asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3
import pytest

from cloudtrain.core.errors import CloudConfigError, CloudError, NodesError, PermissionsError
from cloudtrain.core.model import NodeGroup
from tests.support.company_parts import Company, company

KEY = "projects/keys/locations/us-east4/keyRings/training/cryptoKeys/disks"
ANYWHERE = KEY.replace("us-east4", "{region}")
CPUS = {"chief": NodeGroup(machine="Standard_D4s_v5", disk_gb=64)}


# ── GCP ──────────────────────────────────────────────────────────────────────


def test_disks_of_google_have_the_key_of_their_region(tmp_path: Path) -> None:
    there = {KEY: True, KEY.replace("us-east4", "us-central1"): True}
    with company("gcp", tmp_path, kms_keys=there, capacity={"us-east4-c": 0}) as gcp:
        plan = gcp.plan(disk_key=ANYWHERE)
        finding = gcp.check(plan)["disk key"]
        assert (finding.ok, finding.told) == (True, False)
        assert "known after `up`" in finding.text
        gcp.up(plan)
        keys = {
            disk["diskEncryptionKey"]["kmsKeyName"]
            for thing in gcp.app.under("instances")
            for disk in thing.body["disks"]
        }
        assert keys == {KEY.replace("us-east4", "us-central1")}
        gcp.down(plan)


def test_a_key_of_google_in_another_region_is_found_by_check(tmp_path: Path) -> None:
    with company("gcp", tmp_path, kms_keys={KEY: True}) as gcp:
        finding = gcp.check(gcp.plan(disk_key=KEY))["disk key"]
        assert finding.error is CloudConfigError
        assert "the key is not in us-central1" in finding.text
        assert gcp.check(gcp.plan(disk_key=KEY, placement=("us-east4-c",)))["disk key"].ok


def test_a_key_that_google_may_not_use_names_its_service_agent(tmp_path: Path) -> None:
    with company("gcp", tmp_path, kms_keys={KEY: False}) as gcp:
        error = _refused(gcp, gcp.plan(disk_key=KEY, placement=("us-east4-c",)))
        assert isinstance(error, PermissionsError)
        assert "compute-system.iam.gserviceaccount.com, needs roles/cloudkms." in str(error.hint)
        assert gcp.cloud.holdings() == []


# ── AWS ──────────────────────────────────────────────────────────────────────


def test_volumes_of_aws_have_the_key(tmp_path: Path) -> None:
    with company("aws", tmp_path) as aws:
        kms = boto3.client("kms", region_name="us-east-1")
        key = kms.create_key()["KeyMetadata"]
        plan = aws.plan(disk_key=key["KeyId"], placement=("us-east-1a",))
        assert aws.check(plan)["disk key"].text == f"us-east-1: {key['KeyId']}, enabled"
        aws.up(plan)
        volumes = boto3.client("ec2", region_name="us-east-1").describe_volumes()["Volumes"]
        assert {volume.get("KmsKeyId") for volume in volumes if volume["Encrypted"]} == {
            key["KeyId"]
        }
        aws.down(plan)
        kms.disable_key(KeyId=key["KeyId"])
        assert "is Disabled" in aws.check(plan)["disk key"].text
        other = aws.plan(disk_key="alias/nobody", placement=("us-east-1a",))
        assert aws.check(other)["disk key"].error is CloudConfigError


def test_a_key_that_ec2_may_not_use_ends_up_with_a_hint_at_it(tmp_path: Path) -> None:
    with company("aws", tmp_path, keys_denied=["alias/theirs"]) as aws:
        error = _refused(aws, aws.plan(disk_key="alias/theirs", placement=("us-east-1a",)))
        assert isinstance(error, CloudConfigError)
        assert "its policy must admit you" in str(error.hint)
        assert aws.cloud.holdings() == []


# ── Azure ────────────────────────────────────────────────────────────────────


def test_disks_of_azure_have_the_encryption_set_of_their_region(tmp_path: Path) -> None:
    sets = {"keys/disks-eastus": "eastus", "keys/disks-westeurope": "westeurope"}
    with company("azure", tmp_path, disk_encryption_sets=sets) as azure:
        plan = azure.plan(disk_key="keys/disks-{region}", nodes=CPUS)
        assert azure.check(plan)["disk key"].ok
        (rehearsed, *_) = azure.provider(plan.config).dry_run(plan)
        assert rehearsed.ok, rehearsed
        azure.up(plan)
        (vm,) = azure.app.of_type("Microsoft.Compute/virtualMachines")
        disk = vm.properties["storageProfile"]["osDisk"]["managedDisk"]["diskEncryptionSet"]
        assert disk["id"].endswith(
            "/resourceGroups/keys/providers/Microsoft.Compute/diskEncryptionSets/disks-eastus"
        )
        azure.down(plan)


@pytest.mark.parametrize(
    ("settings", "placement", "error", "words"),
    [
        ({}, "westeurope", CloudConfigError, "disks is in eastus"),
        ({"disk_encryption_sets": {}}, "eastus", CloudConfigError, "does not exist"),
        (
            {"not_permitted": ["Microsoft.Compute/diskEncryptionSets/read"]},
            "eastus",
            PermissionsError,
            "diskEncryptionSets/read",
        ),
    ],
)
def test_a_set_that_cannot_be_used_is_found_by_check(
    tmp_path: Path, settings: dict[str, Any], placement: str, error: type, words: str
) -> None:
    known = {"disk_encryption_sets": {"keys/disks": "eastus"}}
    with company("azure", tmp_path, **{**known, **settings}) as azure:
        plan = azure.plan(disk_key="keys/disks", placement=(placement,), nodes=CPUS)
        finding = azure.check(plan)["disk key"]
        assert finding.error is error
        assert words in finding.text


def test_a_vault_that_refuses_the_set_is_told(tmp_path: Path) -> None:
    given = {"disk_encryption_sets": {"keys/disks": "eastus"}, "keys_denied": ["keys/disks"]}
    with company("azure", tmp_path, **given) as azure:
        plan = azure.plan(disk_key="keys/disks", placement=("eastus",), nodes=CPUS)
        error = _refused(azure, plan)
        assert isinstance(error, PermissionsError)
        assert "needs get, wrapKey and unwrapKey" in str(error.hint)
        azure.cloud.set(not_permitted=["Microsoft.Compute/diskEncryptionSets/read"])
        error = _refused(azure, plan)
        assert "get Microsoft.Compute/diskEncryptionSets/read on the set" in str(error.hint)
        assert azure.cloud.holdings() == []


def _refused(account: Company, plan: Any) -> CloudError:
    with pytest.raises((CloudError, NodesError)) as refused:
        account.up(plan)
    error = refused.value
    one = next(iter(error.failures.values())) if isinstance(error, NodesError) else error
    assert isinstance(one, CloudError)
    return one
