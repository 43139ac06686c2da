"""`artifacts.create`: the bucket is made before the cluster, once, and never deleted."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloudtrain.cluster.session import Handle
from cloudtrain.config import load
from cloudtrain.errors import NoBucketError
from cloudtrain.model import ClusterConfig
from cloudtrain.records import Records
from cloudtrain.verbs import up
from cloudtrain.verbs.check import store as check_store
from tests.standins import stores
from tests.support.landing_parts import Heard
from tests.support.project import Project


def read(folder: Path, text: str) -> ClusterConfig:
    (folder / "c.yaml").write_text(text)
    return load(folder / "c.yaml", {})


def events(project: Project) -> list[dict[str, Any]]:
    (journal,) = project.home.glob("clusters/*/events*")
    return [json.loads(line) for line in journal.read_text().splitlines()]


def test_a_run_makes_its_bucket_before_its_nodes_and_leaves_nothing_else(project: Project) -> None:
    with stores.s3() as place:
        project.environment |= place.environment
        config = project.config(artifacts={"store": "s3://made-here/mnist", "create": True})
        checked = project.cloudtrain("check", config)
        assert checked.returncode == 0, checked.stderr
        assert "s3://made-here/mnist: does not exist yet: `up` makes it" in checked.stdout
        assert "made-here" not in buckets(place)

        done = project.cloudtrain("run", config)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("made the store s3://made-here/mnist") == 1
        assert "come through this machine" not in done.stderr
        told = [event["event"] for event in events(project)]
        assert told.index("make") < told.index("create")
        assert "made-here" in buckets(place)
        keys = [
            each["Key"] for each in client(place).list_objects_v2(Bucket="made-here")["Contents"]
        ]
        assert any(key.endswith("/chief0/output/chief0.txt") for key in keys)
        assert project.processes() == {}

        again = project.cloudtrain("up", config)
        assert again.returncode == 0, again.stderr
        assert "made the store" not in again.stderr


def client(place: stores.Store) -> Any:
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=place.environment["AWS_ENDPOINT_URL_S3"],
        region_name="us-east-1",
        aws_access_key_id="AKIATEST",
        aws_secret_access_key="test",
    )


def buckets(place: stores.Store) -> list[str]:
    return [each["Name"] for each in client(place).list_buckets()["Buckets"]]


LOCAL = "provider: local\nstrategy: one_device\n"


def test_a_folder_is_made_and_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "home"))
    place = tmp_path / "not there/yet"
    config = read(tmp_path, f"{LOCAL}artifacts: {{store: {place.as_uri()}, create: true}}\n")
    records, console = Records(config.name), Heard()
    for _ in range(2):
        up.make_store(Handle(config), console)
    assert console.said == [
        f"made the store {place.as_uri()}, which is never deleted by cloudtrain"
    ]
    assert [(e["what"], e["name"]) for e in records.events()] == [("store", place.as_uri())] * 2


def test_nothing_is_made_that_was_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "home"))
    config = read(tmp_path, f"{LOCAL}artifacts: {{store: {(tmp_path / 'x').as_uri()}}}\n")
    up.make_store(Handle(config), Heard())
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(("create", "is_ok"), [("true", True), ("false", False)])
def test_a_missing_bucket_is_a_finding_unless_it_is_to_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, create: str, is_ok: bool
) -> None:
    def refuse() -> None:
        raise NoBucketError("NoSuchBucket", hint="make it")

    monkeypatch.setattr(
        "cloudtrain.cluster.session.artifact_store", lambda *_: SimpleNamespace(check=refuse)
    )
    config = read(tmp_path, f"{LOCAL}artifacts: {{store: s3://bucket, create: {create}}}\n")
    finding = check_store(Handle(config))
    assert finding.ok is is_ok
    assert finding.error is (None if is_ok else NoBucketError)


AWS = "provider: aws\nplacement: [eu-west-1b, us-east-1]\nstrategy: mirrored\n"


@pytest.mark.parametrize(
    ("store", "near"), [("s3://bucket/x", "eu-west-1b"), ("gs://bucket/x", None)]
)
def test_a_bucket_is_made_near_nodes_of_the_same_cloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, near: str | None
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "home"))
    asked = []

    def create(location: str | None) -> bool:
        asked.append(location)
        return False

    opened = SimpleNamespace(uri=store, create=create)
    monkeypatch.setattr("cloudtrain.cluster.session.artifact_store", lambda *_: opened)
    config = read(tmp_path, f"{AWS}artifacts: {{store: '{store}', create: true}}\n")
    up.make_store(Handle(config), Heard())
    assert asked == [near]
