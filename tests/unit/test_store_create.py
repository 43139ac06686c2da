"""`artifacts.create`: the bucket is created before the cluster, once, and never deleted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from cloudtrain.checks.findings import store as check_store
from cloudtrain.cluster.session import Handle
from cloudtrain.commands import up
from cloudtrain.config import load
from cloudtrain.core.errors import NoBucketError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.state import Records
from tests.support.landing_parts import Heard


def read(folder: Path, text: str) -> ClusterConfig:
    (folder / "c.yaml").write_text(text)
    return load(folder / "c.yaml", {})


LOCAL = "provider: local\nstrategy: one_device\n"


def test_a_folder_is_made_and_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "home"))
    place = tmp_path / "not there/yet"
    config = read(tmp_path, f"{LOCAL}artifacts: {{store: {place.as_uri()}, create: true}}\n")
    records, console = Records(config.name), Heard()
    for _ in range(2):
        up.make_store(Handle(config), console)
    assert console.said == [f"created the store {place.as_uri()}; cloudtrain never deletes it"]
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
    ("store", "near", "tags"),
    [("s3://bucket/x", "eu-west-1b", {"Team": "vision"}), ("gs://bucket/x", None, {})],
)
def test_a_bucket_of_the_nodes_cloud_is_made_near_them_and_with_the_clusters_tags(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    store: str,
    near: str | None,
    tags: dict[str, str],
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "home"))
    asked = []

    def create(location: str | None, tags: dict[str, str]) -> bool:
        asked.append((location, tags))
        return False

    opened = SimpleNamespace(uri=store, create=create)
    monkeypatch.setattr("cloudtrain.cluster.session.artifact_store", lambda *_: opened)
    text = f"{AWS}tags: {{Team: vision}}\nartifacts: {{store: '{store}', create: true}}\n"
    config = read(tmp_path, text)
    up.make_store(Handle(config), Heard())
    assert asked == [(near, tags)]
