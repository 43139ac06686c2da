"""The stand-in for Compute Engine: what it offers; lists, filters, pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.standins.gcp_catalog import ZONES
from tests.support import gcp_project
from tests.support.gcp_project import SPOT, ZONE, Project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[gcp_project.Project]:
    yield from gcp_project.project(tmp_path, monkeypatch)


def test_a_new_vm_is_listed_late(project: Project) -> None:
    project.stand_in.lag = 60
    project.make()
    assert project.names(f"zones/{ZONE}/instances") == []
    assert project.get(f"zones/{ZONE}/instances/one")["status"] == "RUNNING"
    project.stand_in.advance(61)
    assert project.names(f"zones/{ZONE}/instances") == ["one"]


def test_an_aggregated_list_may_be_behind_the_zones(project: Project) -> None:
    project.stand_in.wide_lag = 60
    project.make()
    assert project.names(f"zones/{ZONE}/instances") == ["one"]
    assert "instances/one'" not in str(project.get("aggregated/instances"))
    project.stand_in.advance(61)
    assert "instances/one'" in str(project.get("aggregated/instances"))


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("name=a", ["a"]),
        ("name != a", ["b", "c"]),
        ('name = "a"', ["a"]),
        ("labels.team=x", ["a", "b"]),
        ("labels.team:*", ["a", "b"]),
        ("labels.team=x AND labels.role=ps", ["b"]),
        ("(labels.team=x) (labels.role=ps)", ["b"]),
        ('(labels.role = "chief") OR (labels.role = "ps")', ["a", "b"]),
        ("labels.role=chief OR labels.role=ps AND name=b", ["b"]),
        ("scheduling.preemptible = true", ["c"]),
        ("status=RUNNING", ["a", "b", "c"]),
        ("status=TERMINATED", []),
        ("machineType:n1-standard", ["a", "b", "c"]),
        ("name eq a|c", ["a", "c"]),
        ("name ne 'a'", ["b", "c"]),
        ("labels.team eq x", ["a", "b"]),
        ("networkInterfaces.name = nic0", ["a", "b", "c"]),
        ("disks.diskSizeGb > 49", ["a", "b", "c"]),
        ("disks.diskSizeGb > 50", []),
    ],
)
def test_a_filter(wanted: str, found: list[str], project: Project) -> None:
    project.make("a", labels={"team": "x", "role": "chief"})
    project.make("b", labels={"team": "x", "role": "ps"})
    project.make("c", scheduling=SPOT)
    assert project.names(f"zones/{ZONE}/instances", filter=wanted) == found


@pytest.mark.parametrize(
    "wrong",
    [
        "name",
        "name=",
        "=x",
        "colour=red",
        "name=a name=b",
        "name=a AND",
        "(name=a",
        "name=a*",
        "name eq [",
        "name eq a AND name eq b",
        "labels.team=x,y z",
        "NOT name=a",
    ],
)
def test_a_filter_that_is_refused(wrong: str, project: Project) -> None:
    status, reason, message = project.refusal("GET", f"zones/{ZONE}/instances", filter=wrong)
    assert (status, reason) == (400, "invalid")
    assert "Invalid list filter expression" in message


def test_pages(project: Project) -> None:
    names: list[str] = []
    token: dict[str, str] = {}
    for _ in range(3):
        told = project.get("zones", maxResults=11, **token)
        names += [zone["name"] for zone in told["items"]]
        token = {"pageToken": told.get("nextPageToken", "")}
    assert token == {"pageToken": ""}
    assert names == sorted(ZONES)


def test_pages_of_all_zones(project: Project) -> None:
    for number, zone in enumerate(("us-east4-a", "us-east4-c", "us-west1-a")):
        project.make(f"n{number}", zone=zone)
    first = project.get("aggregated/instances", maxResults=2)
    second = project.get("aggregated/instances", maxResults=2, pageToken=first["nextPageToken"])
    assert first["items"]["zones/us-west1-a"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"
    assert second["items"]["zones/us-west1-a"]["instances"][0]["name"] == "n2"
    assert "nextPageToken" not in second


def test_the_offer(project: Project) -> None:
    assert "a2-highgpu-1g" not in project.names(f"zones/{ZONE}/machineTypes")
    machine = project.get("zones/us-central1-a/machineTypes/a2-highgpu-8g")
    assert (machine["guestCpus"], machine["accelerators"]) == (
        96,
        [{"guestAcceleratorType": "nvidia-tesla-a100", "guestAcceleratorCount": 8}],
    )
    assert project.refusal("GET", f"zones/{ZONE}/acceleratorTypes/nvidia-b200")[0] == 404
    assert "nvidia-tesla-t4" in project.names(f"zones/{ZONE}/acceleratorTypes")
    offered = project.get("aggregated/machineTypes", filter="name=a4-highgpu-8g")["items"]
    assert [zone for zone in offered if "machineTypes" in offered[zone]] == [
        "zones/us-central1-b",
        "zones/us-west1-b",
    ]
    images = f"{project.url}/compute/v1/projects/ubuntu-os-cloud/global/images"
    newest = project.http.get(f"{images}/family/ubuntu-2204-lts").json()
    assert newest["diskSizeGb"] == "10"
    assert newest["name"] in [image["name"] for image in project.http.get(images).json()["items"]]
    assert project.http.get(f"{images}/family/ubuntu-1604-lts").status_code == 404


def test_every_kind_of_list_is_as_google_s(project: Project) -> None:
    """The answers are held against the document; see the fixture."""
    for path in (
        *("", "regions", "regions/us-east4", "zones", "global/networks", "global/firewalls"),
        *("aggregated/machineTypes", "aggregated/acceleratorTypes", "aggregated/disks"),
        *("aggregated/subnetworks", "aggregated/resourcePolicies", "aggregated/operations"),
        *("global/operations", "regions/us-east4/operations", f"zones/{ZONE}/disks"),
    ):
        assert project.get(path)["kind"].startswith("compute#")
