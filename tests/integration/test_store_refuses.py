"""A store that takes nothing, as a user meets it: exit 5, nodes kept, and then all of it lands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest

from cloudtrain.artifacts.manifest import read_manifest
from cloudtrain.stores import open_store
from tests.standins.faults import EVER, Fault, Faults
from tests.standins.stores import Store, faulty, s3
from tests.support.project import Project, until

WRITES = "PUT /bucket/*"


class Place:
    """A project whose store is a bucket behind a door that makes calls go wrong."""

    def __init__(self, project: Project, store: Store, faults: Faults) -> None:
        self.project, self.store, self.faults = project, store, faults
        project.environment.update(store.environment)
        self.config = project.config(artifacts={"store": f"{store.uri}/{project.name}"})

    def do(self, *arguments: str, code: int = 0) -> str:
        done = self.project.cloudtrain(*arguments)
        assert done.returncode == code, f"{done.args}\n{done.stdout}\n{done.stderr}"
        return done.stderr

    def nodes(self) -> list[str]:
        (cluster,) = json.loads(self.project.cloudtrain("status", "--json").stdout)["clusters"]
        return [node["name"] for node in cluster["nodes"]]

    def everything_is_there(self) -> None:
        """Asked without the door, of the store itself."""
        store = open_store(f"{self.store.uri}/{self.project.name}")
        (record,) = [found.path for found in store.list() if found.path.endswith("/run.json")]
        run = record.partition("/")[0]
        manifest = read_manifest(store, run)
        assert manifest is not None
        assert manifest.complete
        wrote = {"chief0": b"done at 3\n", "worker0": b"done at 3\n"}
        for task, text in wrote.items():
            landed = manifest.files[f"{task}/output/{task}.txt"]
            assert b"".join(store.download(f"{run}/{landed.at}")) == text


@pytest.fixture(scope="module")
def door() -> Iterator[tuple[Store, Store, Faults]]:
    """A store, the same behind a door, and the door: each test has a folder of its own there."""
    with s3() as store, faulty(store) as (behind, faults):
        yield store, behind, faults


@pytest.fixture
def place(
    door: tuple[Store, Store, Faults], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    store, behind, faults = door
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    project = Project(tmp_path / "user's project")
    faults.forget()
    try:
        yield Place(project, behind, faults)
    finally:
        faults.disarm()
        project.end()


def forbidden(place: Place) -> Callable[[], None]:
    fault = Fault(kind="answer", action=WRITES, times=EVER, status=403, code="AccessDenied")
    place.faults.arm(fault)
    return place.faults.disarm


def damaged(place: Place) -> Callable[[], None]:
    fault = Fault(kind="answer", action=WRITES, times=EVER, status=400, code="BadDigest")
    place.faults.arm(fault)
    return place.faults.disarm


def gone(place: Place) -> Callable[[], None]:
    client = boto3.client("s3", region_name="us-east-1")
    for found in client.list_objects_v2(Bucket="bucket").get("Contents", ()):
        client.delete_object(Bucket="bucket", Key=found["Key"])
    client.delete_bucket(Bucket="bucket")
    return lambda: client.create_bucket(Bucket="bucket")


@pytest.mark.sweep(1)
@pytest.mark.parametrize("refuses", [forbidden, damaged, gone])
def test_the_nodes_are_kept_while_the_store_takes_nothing(
    place: Place, refuses: Callable[[Place], Callable[[], None]]
) -> None:
    place.do("up", str(place.config), "--yes")
    ends = refuses(place)
    place.do("train", "--", "--steps", "3", code=5)
    said = place.do("down", "--yes", code=5)
    assert "the nodes are kept" in said
    assert len(place.nodes()) == 2
    ends()
    place.do("down", "--yes")
    assert place.project.processes() == {}
    place.everything_is_there()


def test_down_while_files_are_being_stored_loses_none(place: Place) -> None:
    """A process in the background attends to the run, and is landing it."""
    place.do("up", str(place.config), "--yes")
    place.faults.arm(Fault(kind="delay", action="PUT /bucket/*/output/*", times=2, seconds=2.0))
    place.do("train", "--detach", "--", "--steps", "3")
    until(lambda: any("/output/" in call["action"] for call in place.faults.calls()), 60)
    place.do("down", "--yes")
    assert place.project.processes() == {}
    place.everything_is_there()
