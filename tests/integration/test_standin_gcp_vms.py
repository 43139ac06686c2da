"""The stand-in for Compute Engine: what a VM must be, how it lives, and when it cannot be had."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support import gcp_project
from tests.support.gcp_project import HOUR, SPOT, STAYS, UBUNTU, ZONE, Project, gpu, vm


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[gcp_project.Project]:
    yield from gcp_project.project(tmp_path, monkeypatch)


# ── What a VM must be ──────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "One"}, "Must be a match of regex"),
        ({"name": "x" * 64}, "Must be a match of regex"),
        ({"machine": "n1-standard-5"}, "does not exist in zone 'us-east4-c'"),
        ({"machine": "a2-highgpu-1g"}, "does not exist in zone 'us-east4-c'"),
        ({"guestAccelerators": gpu("nvidia-tesla-t4")}, "do not support live migration"),
        (
            {"guestAccelerators": gpu("nvidia-tesla-v100"), "scheduling": STAYS},
            "acceleratorTypes/nvidia-tesla-v100' was not found",
        ),
        (
            {
                "machine": "n2-standard-8",
                "guestAccelerators": gpu("nvidia-tesla-t4"),
                "scheduling": STAYS,
            },
            "[n2-standard-8, nvidia-tesla-t4] features are not compatible",
        ),
        (
            {"guestAccelerators": gpu("nvidia-tesla-t4", 3), "scheduling": STAYS},
            "features are not compatible",
        ),
        (
            {
                "machine": "n1-standard-96",
                "guestAccelerators": gpu("nvidia-tesla-t4"),
                "scheduling": STAYS,
            },
            "features are not compatible",
        ),
        ({"scheduling": {**SPOT, "automaticRestart": True}}, "when AutomaticRestart is true"),
        ({"scheduling": {**SPOT, "onHostMaintenance": "MIGRATE"}}, "OnHostMaintenance"),
        ({"scheduling": {**SPOT, "preemptible": False}}, "must have preemptible be true"),
        ({"scheduling": HOUR}, "Instance termination action must be specified"),
        ({"scheduling": {"instanceTerminationAction": "STOP"}}, "Only for Spot instances"),
        ({"scheduling": {**HOUR, "preemptible": True}}, "legacy preemptible"),
        ({"scheduling": {"preemptionNoticeDuration": {"seconds": 120}}}, "only for Spot"),
        (
            {"scheduling": {**SPOT, "preemptionNoticeDuration": {"seconds": 60}}},
            "Must be 0 or 120 seconds",
        ),
        (
            {
                "scheduling": {
                    **HOUR,
                    "instanceTerminationAction": "DELETE",
                    "gracefulShutdown": {"enabled": True},
                }
            },
            "not available with a limited run time",
        ),
        (
            {"scheduling": {"gracefulShutdown": {"enabled": True, "maxDuration": {"seconds": 0}}}},
            "Must be between 1 second and 1 hour",
        ),
        ({"scheduling": {**SPOT, "maxRunDuration": {"seconds": 29}}}, "between 30 seconds"),
        ({"scheduling": {**SPOT, "maxRunDuration": {"seconds": 120 * 86400 + 1}}}, "120 days"),
        ({"disk": {"sourceImage": UBUNTU, "diskSizeGb": "9"}}, "smaller than the image size"),
        ({"disk": {"diskSizeGb": "50"}}, "must have a source"),
        ({"disk": {"sourceImage": "global/images/mine"}}, "image resource cannot be found"),
        ({"disk": {"sourceImage": f"{UBUNTU}-arm64"}}, "ARM64 images do not run"),
        ({"disk": {"sourceImage": UBUNTU, "diskType": "pd-fast"}}, "diskType resource cannot"),
        ({"disks": []}, "Boot disk must be specified"),
        ({"networkInterfaces": []}, "At least one network interface"),
        ({"networkInterfaces": [{"network": "global/networks/none"}]}, "network resource cannot"),
        ({"labels": {"Owner": "us"}}, "Label key 'Owner' violates format constraints"),
        ({"labels": {"owner": "x" * 64}}, "violates format constraints"),
        ({"tags": {"items": ["A"]}}, "resource.tags.items[0]"),
        ({"metadata": {"items": [{"key": "a", "value": "x" * 262145}]}}, "too large"),
        ({"metadata": {"items": [{"key": "a", "value": ""}] * 2}}, "duplicate keys"),
    ],
)
def test_a_vm_that_is_refused(change: dict[str, Any], message: str, project: Project) -> None:
    assert message in project.refused_vm(**change)


def test_a_machine_that_has_its_own_accelerators(project: Project) -> None:
    project.make(machine="g2-standard-24", scheduling=STAYS)
    found = project.get(f"zones/{ZONE}/instances/one")
    assert found["guestAccelerators"][0]["acceleratorCount"] == 2
    assert (
        "live migration"
        in project.refusal("POST", f"zones/{ZONE}/instances", vm("two", machine="g2-standard-4"))[2]
    )


def test_places_that_do_not_exist(project: Project) -> None:
    assert project.refusal("GET", "zones/us-east4-z/instances") == (
        400,
        "invalid",
        "Invalid value for field 'zone': 'us-east4-z'. Unknown zone.",
    )
    assert project.refusal("GET", "zones/us-east4-z")[:2] == (404, "notFound")
    assert project.refusal("GET", "regions/mars")[:2] == (404, "notFound")
    other = requests.get(
        f"{project.url}/compute/v1/projects/other/zones",
        headers={"Authorization": f"Bearer {project.credentials.token}"},
        timeout=10,
    )
    assert other.status_code in (401, 404)


def test_a_name_is_taken_once(project: Project) -> None:
    project.make()
    refused = project.refusal("POST", f"zones/{ZONE}/instances", vm())
    assert refused == (
        409,
        "alreadyExists",
        f"The resource 'projects/test-project/zones/{ZONE}/instances/one' already exists",
    )


# ── Its life ───────────────────────────────────────────────────────────────────


def test_a_disk_that_is_not_deleted_with_its_vm_stays(project: Project) -> None:
    start = {"sourceImage": UBUNTU}
    project.make(disks=[{"boot": True, "initializeParams": start}])
    assert project.refusal("DELETE", f"zones/{ZONE}/disks/one")[1] == (
        "resourceInUseByAnotherResource"
    )
    project.done("DELETE", f"zones/{ZONE}/instances/one")
    assert project.stand_in.holdings() == ["disk one us-east4-c"]
    assert project.refusal("POST", f"zones/{ZONE}/instances", vm())[:2] == (409, "alreadyExists")
    project.done("DELETE", f"zones/{ZONE}/disks/one")
    assert project.stand_in.holdings() == []


def test_stop_and_start(project: Project) -> None:
    project.make()
    before = project.get(f"zones/{ZONE}/instances/one")["networkInterfaces"][0]
    project.done("POST", f"zones/{ZONE}/instances/one/stop")
    stopped = project.get(f"zones/{ZONE}/instances/one")
    assert stopped["status"] == "TERMINATED"
    assert "natIP" not in stopped["networkInterfaces"][0]["accessConfigs"][0]
    project.done("POST", f"zones/{ZONE}/instances/one/start")
    after = project.get(f"zones/{ZONE}/instances/one")["networkInterfaces"][0]
    assert after["networkIP"] == before["networkIP"]
    assert after["accessConfigs"][0]["natIP"] != before["accessConfigs"][0]["natIP"]


def test_two_deletions_at_once_one_finds_nothing(project: Project) -> None:
    project.make()
    project.stand_in.delay = 0.3
    first, second = (project.ask("DELETE", f"zones/{ZONE}/instances/one").json() for _ in "12")
    assert "error" not in project.waited(first)
    assert project.waited(second)["error"]["errors"][0]["code"] == "RESOURCE_NOT_FOUND"
    assert project.refusal("DELETE", f"zones/{ZONE}/instances/one")[:2] == (404, "notFound")


def test_a_vm_is_deleted_while_it_is_made(project: Project) -> None:
    project.stand_in.delay = 0.3
    project.ask("POST", f"zones/{ZONE}/instances", vm())
    assert "error" not in project.done("DELETE", f"zones/{ZONE}/instances/one")
    assert project.stand_in.holdings() == []


def test_max_run_duration_ends_it_from_its_start_on(project: Project) -> None:
    project.make(scheduling={**HOUR, "instanceTerminationAction": "DELETE"})
    told = project.get(f"zones/{ZONE}/instances/one")
    assert "terminationTimestamp" in told["resourceStatus"]["scheduling"]
    project.stand_in.advance(3000)
    assert len(project.stand_in.holdings()) == 2
    project.done("POST", f"zones/{ZONE}/instances/one/stop")
    project.done("POST", f"zones/{ZONE}/instances/one/start")
    project.stand_in.advance(3000)
    assert len(project.stand_in.holdings()) == 2
    project.stand_in.advance(700)
    assert project.stand_in.holdings() == []
    ended = project.get(f"zones/{ZONE}/operations", filter='user="system"')["items"]
    assert [one["operationType"] for one in ended] == ["compute.instances.terminateOnSchedule"]


@pytest.mark.parametrize(
    ("action", "left"), [("DELETE", []), ("STOP", ["instance one us-east4-c TERMINATED"])]
)
def test_google_takes_a_spot_vm_back(action: str, left: list[str], project: Project) -> None:
    project.make(scheduling={**SPOT, "instanceTerminationAction": action})
    project.stand_in.delay = 1
    project.stand_in.interrupt("one")
    assert "instance one us-east4-c STOPPING" in project.stand_in.holdings()
    project.stand_in.advance(2)
    assert [one for one in project.stand_in.holdings() if "instance" in one] == left
    found = project.get(f"zones/{ZONE}/operations", filter="operationType eq .*preempted")
    assert len(found["items"]) == 1


def test_labels_and_metadata_are_changed_by_whoever_saw_them_last(project: Project) -> None:
    project.make(labels={"a": "1"})
    path = f"zones/{ZONE}/instances/one"
    seen = project.get(path)
    change = {"labels": {"a": "2"}, "labelFingerprint": seen["labelFingerprint"]}
    project.done("POST", f"{path}/setLabels", change)
    assert project.get(path)["labels"] == {"a": "2"}
    assert project.refusal("POST", f"{path}/setLabels", change)[:2] == (412, "conditionNotMet")
    items = {"items": [{"key": "k", "value": "v"}]}
    change = {**items, "fingerprint": seen["metadata"]["fingerprint"]}
    project.done("POST", f"{path}/setMetadata", change)
    assert project.get(path)["metadata"]["items"] == items["items"]
    assert project.refusal("POST", f"{path}/setMetadata", items)[0] == 412


def test_the_scheduling_of_a_running_vm_stays(project: Project) -> None:
    project.make()
    path = f"zones/{ZONE}/instances/one"
    limited = {**HOUR, "instanceTerminationAction": "DELETE"}
    assert "must be stopped" in project.refusal("POST", f"{path}/setScheduling", limited)[2]
    project.done("POST", f"{path}/stop")
    project.done("POST", f"{path}/setScheduling", limited)
    project.done("POST", f"{path}/start")
    project.stand_in.advance(3601)
    assert project.stand_in.holdings() == []


class RecordedNodes:
    """What runs behind the VMs: here nothing, but it takes its time."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self._free = iter(range(2, 250))

    def address(self) -> str:
        return f"127.77.0.{next(self._free)}"

    def start(self, name: str, user_data: str, address: str) -> None:
        time.sleep(0.1)
        self.done.append(f"{name} starts at {address} with {user_data}")

    def halt(self, name: str) -> None:
        time.sleep(0.1)
        self.done.append(f"{name} halts")

    def stop(self, name: str) -> None:
        self.done.append(f"{name} is forgotten")


def test_a_node_behind_each_vm_lives_as_long_as_it(project: Project) -> None:
    nodes = project.stand_in.nodes = RecordedNodes()
    project.make(metadata={"items": [{"key": "user-data", "value": "#cloud-config"}]})
    told = project.get(f"zones/{ZONE}/instances/one")["networkInterfaces"][0]
    assert told["networkIP"] == told["accessConfigs"][0]["natIP"] == "127.77.0.2"
    project.done("DELETE", f"zones/{ZONE}/instances/one")
    assert nodes.done[:2] == ["one starts at 127.77.0.2 with #cloud-config", "one halts"]
    project.stand_in.at_work[f"projects/test-project/zones/{ZONE}/instances/one"].join()
    assert nodes.done[2:] == ["one is forgotten"]


# ── What cannot be had ─────────────────────────────────────────────────────────


def test_a_zone_without_room(project: Project) -> None:
    project.stand_in.capacity = {"us-east4-c/n1-*": 1, "us-*/nvidia-l4": 0}
    assert "error" not in project.make("one")
    failed = project.make("two")
    assert failed["error"]["errors"] == [
        {
            "code": "ZONE_RESOURCE_POOL_EXHAUSTED",
            "message": "The zone 'projects/test-project/zones/us-east4-c' does not have enough "
            "resources available to fulfill the request. Try a different zone, or try again "
            "later.",
        }
    ]
    assert (failed["httpErrorStatusCode"], failed["httpErrorMessage"]) == (
        503,
        "SERVICE UNAVAILABLE",
    )
    assert "error" in project.make("three", machine="g2-standard-4", scheduling=STAYS)
    assert "error" not in project.make("two", zone="us-east4-b")
    project.stand_in.capacity_code = "insufficientCapacity"
    refused = project.refusal("POST", f"zones/{ZONE}/instances", vm("two"))
    assert refused[:2] == (503, "insufficientCapacity")
    assert len(project.stand_in.holdings()) == 4


def test_a_quota_of_a_region_and_of_the_project(project: Project) -> None:
    project.stand_in.quotas = {"us-east4/NVIDIA_T4_GPUS": 1, "GPUS_ALL_REGIONS": 2}
    t4 = {"guestAccelerators": gpu("nvidia-tesla-t4"), "scheduling": STAYS}
    assert "error" not in project.make("one", **t4)
    error = project.make("two", **t4)["error"]["errors"][0]
    assert error["code"] == "QUOTA_EXCEEDED"
    assert error["message"] == "Quota 'NVIDIA_T4_GPUS' exceeded.  Limit: 1.0 in region us-east4."
    assert error["errorDetails"][0]["quotaInfo"]["dimensions"] == {"region": "us-east4"}
    spot = {"guestAccelerators": gpu("nvidia-tesla-t4"), "scheduling": SPOT}
    assert "error" not in project.make("two", **spot)
    error = project.make("three", **spot)["error"]["errors"][0]
    assert error["message"] == "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 2.0 globally."
    project.stand_in.refused_at_once = True
    refused = project.refusal("POST", f"zones/{ZONE}/instances", vm("three", **spot))
    assert refused[:2] == (403, "quotaExceeded")
    quotas = {quota["metric"]: quota for quota in project.get("regions/us-east4")["quotas"]}
    assert quotas["NVIDIA_T4_GPUS"] == {"metric": "NVIDIA_T4_GPUS", "limit": 1, "usage": 1}
    assert quotas["PREEMPTIBLE_NVIDIA_T4_GPUS"]["usage"] == 1
    assert quotas["CPUS"]["usage"] == 16
    quotas = {quota["metric"]: quota for quota in project.get("")["quotas"]}
    assert quotas["GPUS_ALL_REGIONS"] == {"metric": "GPUS_ALL_REGIONS", "limit": 2, "usage": 2}


@pytest.mark.parametrize(
    ("machine", "zone"),
    [
        ("a3-highgpu-1g", ZONE),
        ("a3-highgpu-4g", ZONE),
        ("a3-ultragpu-8g", "us-east4-b"),
        ("a4-highgpu-8g", "us-central1-b"),
    ],
)
def test_some_machines_are_not_sold_on_demand(project: Project, machine: str, zone: str) -> None:
    message = project.refused_vm(zone=zone, machine=machine, scheduling=STAYS)
    assert f"{machine} machine types must be created by using Spot VMs" in message


def test_machines_that_bring_their_gpus_draw_on_quotas_of_gpus_alone(project: Project) -> None:
    project.stand_in.quotas = {"A2_CPUS": 0, "CPUS": 0, "CPUS_ALL_REGIONS": 4}
    assert "error" not in project.make("one", machine="g2-standard-24", scheduling=STAYS)
    quotas = {quota["metric"]: quota for quota in project.get("")["quotas"]}
    assert quotas["CPUS_ALL_REGIONS"]["usage"] == 0
    assert quotas["GPUS_ALL_REGIONS"]["usage"] == 2


def test_a_zone_that_does_not_answer(project: Project) -> None:
    project.make("one")
    project.make("two", zone="us-west1-a")
    project.stand_in.unreachable = [ZONE]
    assert project.refusal("GET", f"zones/{ZONE}/instances")[:2] == (503, "backendError")
    assert project.refusal("GET", "aggregated/instances")[:2] == (503, "backendError")
    told = project.get("aggregated/instances", returnPartialSuccess="true")
    assert told["items"][f"zones/{ZONE}"]["warning"]["code"] == "UNREACHABLE"
    assert told["unreachables"][0].endswith(f"/zones/{ZONE}")
    assert "instances" in told["items"]["zones/us-west1-a"]
