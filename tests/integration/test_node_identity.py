"""`identity:` on the three stand-ins: what check proves of it, what nodes get, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import boto3
import jsonschema
import pytest
import requests

from cloudtrain.core.errors import PermissionsError
from cloudtrain.core.model import Train
from cloudtrain.core.protocols import Finding
from cloudtrain.core.store_kinds import own_uris
from cloudtrain.providers.aws import permissions as aws_permissions
from cloudtrain.providers.azure import checks, paths
from tests.standins.azure_identities import described
from tests.standins.cloud import Cloud
from tests.support import aws_parts, azure_parts, gcp_parts
from tests.support.gcp_parts import Gcp

EMAIL = "trainer@test-project.iam.gserviceaccount.com"
TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "ec2.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
    ],
}


def identity_of(found: tuple[Finding, ...]) -> list[tuple[bool, bool, str]]:
    return [(each.ok, each.told, each.text) for each in found if each.what == "identity"]


def exit_codes(found: tuple[Finding, ...]) -> list[int]:
    kinds = [each.error for each in found if each.what == "identity" and not each.ok]
    return [kind.exit_code for kind in kinds if issubclass(kind or object, PermissionsError)]  # type: ignore[union-attr,arg-type]


# ── GCP ──────────────────────────────────────────────────────────────────────


@pytest.fixture
def gcp() -> Iterator[Gcp]:
    with gcp_parts.standing_in() as gcp:
        gcp.app.service_accounts = {EMAIL: {}}
        yield gcp


def on_gcp(gcp: Gcp, command: str = "train.py gs://b/x", **changes: Any) -> tuple[Finding, ...]:
    given = {"identity": EMAIL, "train": Train(command=command), **changes}
    return gcp.account(**given).check(gcp.plan(**given))


def test_gcp_proves_that_the_account_exists_and_may_be_attached(gcp: Gcp) -> None:
    member = f"serviceAccount:{EMAIL}"
    gcp.app.bucket_policies = {"b": [{"role": "roles/storage.objectUser", "members": [member]}]}
    assert identity_of(on_gcp(gcp)) == [
        (True, True, f"{EMAIL} may be attached"),
        (True, True, "gs://b: has roles/storage.objectUser"),
    ]
    assert identity_of(on_gcp(gcp, identity=None)) == []


def test_gcp_says_what_it_cannot_know_of_a_bucket(gcp: Gcp) -> None:
    gcp.app.bucket_policies = {"b": [{"role": "roles/storage.admin", "members": ["user:me@x"]}]}
    (_, own), (_, foreign) = identity_of(on_gcp(gcp)), identity_of(on_gcp(gcp, "t.py gs://other"))
    assert own[:2] == foreign[:2] == (True, False)
    assert "no role in the bucket's own policy; one on the project" in own[2]
    assert "gs://other: could not be checked" in foreign[2]


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({}, f"no service account {EMAIL}"),
        ({EMAIL: {"disabled": True}}, f"the service account {EMAIL} is disabled"),
        ({EMAIL: {"act_as": False}}, f"{EMAIL}: iam.serviceAccounts.actAs is not granted"),
    ],
)
def test_gcp_fails_for_an_account_that_cannot_be_attached(
    gcp: Gcp, known: dict[str, Any], words: str
) -> None:
    gcp.app.service_accounts = known
    found = on_gcp(gcp)
    assert identity_of(found) == [(False, True, words)]
    assert exit_codes(found) == [4]


def test_an_account_of_another_project_depends_on_a_policy(gcp: Gcp) -> None:
    gcp.app.service_accounts = {EMAIL: {"project": "other"}}
    ((ok, _, text),) = identity_of(on_gcp(gcp, "t.py"))
    assert ok
    assert "iam.disableCrossProjectServiceAccountUsage must allow it" in text


def test_gcp_without_an_address_of_iam_says_so(gcp: Gcp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_IAM")
    assert identity_of(on_gcp(gcp)) == [(True, False, f"{EMAIL}: not reported by this endpoint")]


def test_an_iam_api_that_is_off_fails_nothing(gcp: Gcp) -> None:
    gcp.cloud.fault("answer", action="serviceAccounts.get", status=403, code="accessNotConfigured")
    ((ok, told, text),) = identity_of(on_gcp(gcp, "t.py"))
    assert (ok, told) == (True, False)
    assert "gcloud services enable iam.googleapis.com --project test-project" in text


def test_gcp_nodes_have_the_account_and_list_it(gcp: Gcp) -> None:
    account, plan = gcp.account(identity=EMAIL), gcp.plan(identity=EMAIL)
    account.launch(gcp_parts.order(plan, gcp.ground(account, plan)))
    (vm,) = account.machines("mnist")
    assert vm.node.identities == (EMAIL,)
    (thing,) = gcp.app.under("instances")
    scope = "https://www.googleapis.com/auth/cloud-platform"
    assert thing.body["serviceAccounts"] == [{"email": EMAIL, "scopes": [scope]}]


@pytest.mark.parametrize(
    ("known", "hint"),
    [
        ({}, "gcloud iam service-accounts list"),
        ({EMAIL: {"act_as": False}}, "roles/iam.serviceAccountUser"),
    ],
)
def test_gcp_refuses_it_at_the_create_and_nothing_stays(
    gcp: Gcp, known: dict[str, Any], hint: str
) -> None:
    gcp.app.service_accounts = known
    account, plan = gcp.account(identity=EMAIL), gcp.plan(identity=EMAIL)
    ground = gcp.ground(account, plan)
    with pytest.raises(PermissionsError) as refused:
        account.launch(gcp_parts.order(plan, ground))
    assert hint in str(refused.value.hint)
    assert not [line for line in gcp.cloud.holdings() if line.startswith("instance")]


def test_the_stand_in_answers_as_googles_descriptions_say(gcp: Gcp) -> None:
    member = f"serviceAccount:{EMAIL}"
    gcp.app.bucket_policies = {"b": [{"role": "roles/storage.objectUser", "members": [member]}]}
    headers = gcp.account()._api.credentials.headers()
    for document, path, kind in (
        ("iam.v1", f"/v1/projects/-/serviceAccounts/{EMAIL}", "ServiceAccount"),
        ("storage.v1", "/storage/v1/b/b/iam", "Policy"),
    ):
        folder = resources.files("googleapiclient.discovery_cache") / "documents"
        described = json.loads((folder / f"{document}.json").read_text())
        known = described["schemas"][kind]["properties"]
        told = requests.get(f"{gcp.cloud.url}{path}", headers=headers, timeout=10).json()
        assert set(told) <= set(known)
        for name, value in told.items():
            if "type" in known[name]:
                jsonschema.validate(value, {"type": known[name]["type"]})


# ── AWS ──────────────────────────────────────────────────────────────────────


@pytest.fixture
def aws() -> Iterator[Cloud]:
    with aws_parts.stand_in() as aws:
        yield aws


def profile(trust: Any = TRUST, *, role: bool = True, **allowed: str) -> None:
    """An instance profile `trainer`, as docs/aws.md creates it."""
    # A session of its own: boto3's default one keeps the credentials of an earlier test.
    iam = boto3.Session().client("iam", region_name="us-east-1")
    iam.create_instance_profile(InstanceProfileName="trainer")
    if role:
        iam.create_role(RoleName="trainer", AssumeRolePolicyDocument=json.dumps(trust))
        iam.add_role_to_instance_profile(InstanceProfileName="trainer", RoleName="trainer")
    if allowed:
        statement = [
            {"Effect": effect, "Action": f"s3:{action}", "Resource": "arn:aws:s3:::b/*"}
            for action, effect in allowed.items()
        ]
        policy = json.dumps({"Version": "2012-10-17", "Statement": statement})
        iam.put_role_policy(RoleName="trainer", PolicyName="bucket", PolicyDocument=policy)


def on_aws(aws: Cloud, command: str = "train.py s3://b/x", **changes: Any) -> tuple[Finding, ...]:
    given = {"identity": "trainer", "train": Train(command=command), **changes}
    plan = aws_parts.plan_of(aws, placement=("us-east-1a",), **given)
    return aws_parts.account_of(plan).check(plan)


def test_aws_proves_profile_role_and_bucket(aws: Cloud) -> None:
    profile(GetObject="Allow", PutObject="Allow")
    assert identity_of(on_aws(aws)) == [
        (True, True, "instance profile trainer with role trainer"),
        (True, True, "s3://b/x: s3:GetObject allowed, s3:PutObject allowed"),
    ]
    (permissions,) = [found for found in on_aws(aws) if found.what == "permissions"]
    assert permissions.text.startswith("RunInstances g4dn.xlarge, "), "the profile is in it"
    assert identity_of(on_aws(aws, identity=None)) == []


def test_aws_says_what_it_cannot_know_of_a_bucket(aws: Cloud) -> None:
    profile(GetObject="Allow")
    (_, other) = identity_of(on_aws(aws, "t.py s3://other/x"))
    assert other[:2] == (True, False)
    assert "whether the bucket's own policy allows it could not be checked" in other[2]
    (_, own) = identity_of(on_aws(aws))
    assert own == (True, True, "s3://b/x: s3:GetObject allowed, s3:PutObject not allowed")


def test_an_explicit_denial_is_final(aws: Cloud) -> None:
    profile(GetObject="Deny", PutObject="Deny")
    found = on_aws(aws)
    assert identity_of(found)[1] == (
        False,
        True,
        "s3://b/x: s3:GetObject denied, s3:PutObject denied",
    )
    assert exit_codes(found) == [4]


@pytest.mark.parametrize(
    ("made", "identity", "words"),
    [
        (None, "trainer", "no instance profile trainer in this account"),
        ({"role": False}, "trainer", "the instance profile trainer has no role"),
        (
            {"trust": {**TRUST, "Statement": []}},
            "trainer",
            "the role trainer of trainer does not trust ec2.amazonaws.com",
        ),
        ({}, "arn:aws:iam::999999999999:instance-profile/trainer", "this account has arn:aws:iam"),
    ],
)
def test_aws_fails_for_a_profile_that_gives_no_credentials(
    aws: Cloud, made: dict[str, Any] | None, identity: str, words: str
) -> None:
    if made is not None:
        profile(**made)
    found = on_aws(aws, identity=identity)
    ((ok, _, text),) = identity_of(found)
    assert not ok
    assert words in text
    assert exit_codes(found) == [4]


def test_a_role_that_may_not_be_passed_is_a_missing_permission(aws: Cloud) -> None:
    profile()
    granted = aws_permissions.policy()
    aws.set(granted=granted)
    (refused,) = [found for found in on_aws(aws, "t.py") if found.what == "permissions"]
    assert (refused.ok, refused.error) == (False, PermissionsError)
    assert "iam:PassRole" in str(refused.hint)
    added = json.loads(json.dumps(aws_permissions.policy_of_identity()).replace("NAME", "trainer"))
    for statement in added["Statement"]:
        statement.pop("Condition", None)
    aws.set(granted={**granted, "Statement": granted["Statement"] + added["Statement"]})
    (allowed,) = [found for found in on_aws(aws, "t.py") if found.what == "permissions"]
    assert allowed.ok


def test_iam_that_is_not_readable_fails_nothing(aws: Cloud) -> None:
    profile()
    aws.fault("answer", action="GetInstanceProfile *", status=403, code="AccessDenied")
    ((ok, told, text),) = identity_of(on_aws(aws, "t.py"))
    assert (ok, told) == (True, False)
    assert text.startswith("trainer: not reported by this endpoint: GetInstanceProfile")


def test_aws_nodes_have_the_profile_and_list_it(aws: Cloud, tmp_path: Path) -> None:
    profile()
    aws.set(profile_lag=0.2)
    plan = aws_parts.plan_of(aws, placement=("us-east-1a",), identity="trainer")
    account = aws_parts.account_of(plan)
    ground = account.create_network(plan, aws_parts.HERE, aws_parts.CALLER, aws_parts.silent)
    launched = account.launch(aws_parts.order_of(plan, plan.nodes[0], ground))
    (arn,) = launched.node.identities or ()
    assert arn.endswith(":instance-profile/trainer"), "EC2 learned of it late, and was asked again"
    (listed,) = account.machines("mnist", aws_parts.HERE)
    assert listed.node.identities == (arn,)


def test_check_passes_a_profile_that_ec2_does_not_know_yet(aws: Cloud) -> None:
    profile()
    aws.set(profile_lag=60.0)
    (found,) = [each for each in on_aws(aws, "t.py") if each.what == "permissions"]
    assert found.ok
    assert "EC2 does not know the new instance profile yet: `up` waits for it" in found.text


def test_aws_refuses_an_unknown_profile_at_the_create(aws: Cloud) -> None:
    plan = aws_parts.plan_of(aws, placement=("us-east-1a",), identity="nobody")
    account = aws_parts.account_of(plan)
    ground = account.create_network(plan, aws_parts.HERE, aws_parts.CALLER, aws_parts.silent)
    with pytest.raises(PermissionsError, match="Invalid IAM Instance Profile name") as refused:
        account.launch(aws_parts.order_of(plan, plan.nodes[0], ground))
    assert "aws iam get-instance-profile" in str(refused.value.hint)


# ── Azure ────────────────────────────────────────────────────────────────────


@pytest.fixture
def azure() -> Iterator[Cloud]:
    with azure_parts.stand_in(
        identities=["ids/trainer"], storage_accounts={"account": {}}
    ) as azure:
        yield azure


URI = "az://account/container/x"


def on_azure(azure: Cloud, command: str = f"train.py {URI}", **changes: Any) -> tuple[Finding, ...]:
    given = {"identity": "ids/trainer", "train": Train(command=command), **changes}
    plan = azure_parts.plain(azure, placement=("eastus",), **given)
    return azure_parts.account_of(plan).check(plan)


def test_azure_proves_that_the_identity_exists_and_may_be_attached(azure: Cloud) -> None:
    assert identity_of(on_azure(azure, "t.py")) == [(True, True, "trainer may be attached")]
    id = paths.identity(azure_parts.SUBSCRIPTION, "ids/trainer")
    assert identity_of(on_azure(azure, "t.py", identity=id))[0][0]
    assert identity_of(on_azure(azure, identity=None)) == []


def test_azure_lists_the_roles_of_the_identity_on_the_account(azure: Cloud) -> None:
    (_, none) = identity_of(on_azure(azure))
    assert none[:2] == (True, False)
    assert "account: has none of the roles Storage Blob Data Contributor" in none[2]
    plan = azure_parts.plain(azure, placement=("eastus",))
    arm = azure_parts.account_of(plan)._arm
    role = next(id for id, name in checks.ROLES.items() if name.endswith("Reader"))
    account = (
        f"{arm.path}/resourceGroups/stores/providers/Microsoft.Storage/storageAccounts/account"
    )
    scope = f"{account}/blobServices/default/containers/container"
    name = "00000000-0000-4000-8000-0000000000aa"
    definition = f"{arm.path}/providers/Microsoft.Authorization/roleDefinitions/{role}"
    properties = {
        "roleDefinitionId": definition,
        "principalId": described("ids/trainer")["principalId"],
        "principalType": "ServicePrincipal",
    }
    path = f"{scope}/providers/Microsoft.Authorization/roleAssignments/{name}"
    arm.call("PUT", path, {"properties": properties})
    assert identity_of(on_azure(azure))[1] == (
        True,
        True,
        "account: has Storage Blob Data Reader",
    )
    (_, unseen) = identity_of(on_azure(azure, "t.py az://elsewhere/c"))
    assert unseen[:2] == (True, False)
    assert "elsewhere: could not be checked" in unseen[2]


@pytest.mark.parametrize(
    ("settings", "identity", "words"),
    [
        ({"identities": []}, "ids/trainer", "no managed identity /subscriptions/"),
        (
            {},
            paths.identity("00000000-0000-4000-8000-0000000000ff", "ids/trainer"),
            "The subscription '00000000-0000-4000-8000-0000000000ff' could not be found",
        ),
        (
            {"not_permitted": ["Microsoft.ManagedIdentity/userAssignedIdentities/assign/action"]},
            "ids/trainer",
            "trainer: not allowed: Microsoft.ManagedIdentity/userAssignedIdentities/assign/action",
        ),
    ],
)
def test_azure_fails_for_an_identity_that_cannot_be_attached(
    azure: Cloud, settings: dict[str, Any], identity: str, words: str
) -> None:
    azure.set(**settings)
    found = on_azure(azure, identity=identity)
    ((ok, _, text),) = identity_of(found)
    assert not ok
    assert words in text
    assert exit_codes(found) == [4]


def test_an_identity_that_may_not_be_read_fails_nothing(azure: Cloud) -> None:
    azure.set(not_permitted=["Microsoft.ManagedIdentity/userAssignedIdentities/read"])
    ((ok, told, text),) = identity_of(on_azure(azure))
    assert (ok, told) == (True, False)
    assert text.startswith("trainer: could not be checked:")


def launched_on_azure(azure: Cloud, identity: str) -> Any:
    plan = azure_parts.plain(azure, placement=("eastus",), identity=identity)
    account = azure_parts.account_of(plan)
    account.launch(azure_parts.order_of(plan, plan.nodes[0], azure_parts.ground_of(account, plan)))
    (listed,) = account.machines("mnist")
    return listed


def test_azure_nodes_have_the_identity_and_list_it(azure: Cloud) -> None:
    listed = launched_on_azure(azure, "ids/trainer")
    assert listed.node.identities == (paths.identity(azure_parts.SUBSCRIPTION, "ids/trainer"),)
    assert "Microsoft.ManagedIdentity/userAssignedIdentities/assign/action" in azure.app.used


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"identities": []}, "az identity show"),
        (
            {"not_permitted": ["Microsoft.ManagedIdentity/userAssignedIdentities/assign/action"]},
            "Managed Identity Operator",
        ),
    ],
)
def test_azure_refuses_it_at_the_create_and_no_vm_stays(
    azure: Cloud, settings: dict[str, Any], hint: str
) -> None:
    azure.set(**settings)
    with pytest.raises(PermissionsError) as refused:
        launched_on_azure(azure, "ids/trainer")
    assert hint in str(refused.value.hint)
    assert not [line for line in azure.holdings() if line.startswith("virtual machine")]


def test_check_deep_validates_it_too(azure: Cloud) -> None:
    plan = azure_parts.plain(azure, placement=("eastus",), identity="ids/trainer")
    (found,) = azure_parts.account_of(plan).dry_run(plan)
    assert found.ok, found.text


def test_the_store_of_the_artifacts_is_not_the_identitys_business(azure: Cloud) -> None:
    config = azure_parts.plain(azure, train=Train(command=f"t.py {URI} az://account/other")).config
    store = replace(config, artifacts=replace(config.artifacts, store="az://results/c"))
    assert [uri.bucket for uri in own_uris(store, ("az",))] == ["account"]
