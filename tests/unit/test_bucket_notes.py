"""Buckets that a command names: what `plan` and `check` say where nodes cannot use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloudtrain.checks.check import noted
from cloudtrain.checks.findings import buckets
from cloudtrain.checks.path_notes import INSTEAD, bucket_notes, unusable
from cloudtrain.cluster.plan import make_plan
from cloudtrain.commands.plan import plan_report
from cloudtrain.core.errors import UsageError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.store_kinds import uris_of
from tests.support.offline_checks_parts import written

PLACES = {"gcp": "us-east4-c", "aws": "us-east-1a", "azure": "eastus"}
IDENTITIES = {
    "gcp": "trainer@my-project.iam.gserviceaccount.com",
    "aws": "trainer",
    "azure": "identities/trainer",
}
OWN = {"gcp": "gs://b/x", "aws": "s3://b/x", "azure": "abfss://c@account.dfs.core.windows.net/x"}


def on(folder: Path, provider: str, command: str, **values: Any) -> ClusterConfig:
    place = {"placement": [PLACES[provider]]} if provider in PLACES else {}
    values.setdefault("train", {"command": command})
    values.setdefault("setup", {"packages": ["boto3", "adlfs"], "tensorflow": "2.21"})
    return written(folder, provider=provider, **place, **values)


@pytest.mark.parametrize(
    ("uri", "bucket"),
    [
        ("gs://b/x", "b"),
        ("s3://b", "b"),
        ("az://account/container/x", "account"),
        ("az://account.blob.core.windows.net/container/x", "account"),
        ("abfss://container@account.dfs.core.windows.net/x", "account"),
        ("wasbs://container@account.blob.core.windows.net/x", "account"),
    ],
)
def test_the_bucket_or_the_account_of_a_uri(tmp_path: Path, uri: str, bucket: str) -> None:
    (found,) = uris_of(on(tmp_path, "gcp", f"python t.py --data={uri}"))
    assert (found.uri, found.bucket, found.field) == (uri, bucket, "train.command")


def test_each_uri_is_found_once_in_the_command_and_in_the_variables(tmp_path: Path) -> None:
    train = {
        "command": "python t.py --in 'gs://a/b' --out GS://c,gs://a/b x-gs://no mygs://no",
        "env": {"DATA": "s3://d/e", "OTHER": "text"},
    }
    found = uris_of(on(tmp_path, "gcp", "", train=train))
    assert [(each.field, each.uri) for each in found] == [
        ("train.command", "gs://a/b"),
        ("train.command", "GS://c"),
        ("train.env.DATA", "s3://d/e"),
    ]


@pytest.mark.parametrize("provider", PLACES)
def test_without_an_identity_plan_shows_both_ways_out_at_the_line(
    tmp_path: Path, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = on(tmp_path, provider, f"python t.py --output_path {OWN[provider]}")
    lines = Path("t.yaml").read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "command:" in text)
    (note,) = bucket_notes(config)
    assert note.startswith(f"t.yaml:{line}: train.command: {OWN[provider]}: nodes have no identity")
    assert INSTEAD in note
    assert "or set `identity:` to the " in note
    assert note in plan_report(make_plan(config)).notes
    (finding,) = [found for found in noted(config) if found.text == note]
    assert finding.ok, "a public bucket works"
    assert buckets(config) == ()


@pytest.mark.parametrize("provider", PLACES)
def test_with_an_identity_its_own_buckets_are_no_matter(tmp_path: Path, provider: str) -> None:
    config = on(tmp_path, provider, f"t.py {OWN[provider]}", identity=IDENTITIES[provider])
    assert bucket_notes(config) == ()


def test_an_identity_is_unknown_to_another_cloud(tmp_path: Path) -> None:
    (note,) = bucket_notes(on(tmp_path, "gcp", "t.py s3://b", identity=IDENTITIES["gcp"]))
    assert "s3://b: `identity:` is known to GCP alone, not to AWS" in note
    (other,) = bucket_notes(on(tmp_path, "gcp", "t.py s3://b"))
    assert "set `identity:`" not in other, "it would not help"


@pytest.mark.parametrize("provider", ["local", "hosts"])
def test_machines_that_are_not_rented_have_their_own_credentials(
    tmp_path: Path, provider: str
) -> None:
    hosts: Any = [{"address": "a", "role": "chief"}, {"address": "b", "role": "worker"}]
    given = {"hosts": hosts} if provider == "hosts" else {}
    config = on(tmp_path, provider, "t.py gs://b s3://b", setup={"tensorflow": "2.21"}, **given)
    assert bucket_notes(config) == unusable(config) == ()


def test_check_refuses_what_nothing_on_the_nodes_can_open(tmp_path: Path) -> None:
    plain = {"tensorflow": "2.21"}
    config = on(tmp_path, "aws", "t.py s3://b", setup=plain, identity="trainer")
    (finding,) = buckets(config)
    assert (finding.what, finding.ok, finding.error) == ("buckets", False, UsageError)
    assert "TensorFlow does not know s3://, and nothing else is installed" in finding.text
    assert finding.text in plan_report(make_plan(config)).notes
    assert finding.text not in [note.text for note in noted(config)], "it is said once"


@pytest.mark.parametrize(
    "more",
    [
        {"setup": {"tensorflow": "2.21", "packages": ["s3fs"]}},
        {"setup": {"tensorflow": "2.21", "run": ["sudo snap install aws-cli"]}},
        {"setup": {"tensorflow": "2.10"}},
        {"setup": {}},
        {"setup": {"tensorflow": "2.21"}, "image": "ami-0123456789abcdef0"},
    ],
)
def test_what_may_work_is_not_refused(tmp_path: Path, more: dict[str, Any]) -> None:
    config = on(tmp_path, "aws", "t.py s3://b", identity="trainer", **more)
    assert bucket_notes(config) == unusable(config) == ()


def test_gs_is_known_to_tensorflow_itself(tmp_path: Path) -> None:
    plain = {"tensorflow": "2.21"}
    config = on(tmp_path, "gcp", "t.py gs://b", setup=plain, identity=IDENTITIES["gcp"])
    assert bucket_notes(config) == unusable(config) == ()
