"""How the stand-in for Compute Engine sells machines: driven by Google's own client too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.compute_v1")

from google.api_core import exceptions
from google.cloud import compute_v1

from tests.support import gcp_project
from tests.support.gcp_project import UBUNTU, Project

HERE = "us-central1-a"
RESERVATION = f"projects/test-project/zones/{HERE}/reservations/mine"
FLEX: dict[str, Any] = {
    "provisioningModel": "FLEX_START",
    "maxRunDuration": {"seconds": 3600},
    "instanceTerminationAction": "DELETE",
    "onHostMaintenance": "TERMINATE",
    "automaticRestart": False,
}
NONE = {"consumeReservationType": "NO_RESERVATION"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    yield from gcp_project.project(tmp_path, monkeypatch)


def refusal(project: Project, **changes: Any) -> str:
    body = {**gcp_project.vm("one", HERE), **changes}
    body["machineType"] = f"zones/{HERE}/machineTypes/{changes.get('machine', 'a2-highgpu-1g')}"
    body.pop("machine", None)
    answer = project.ask("POST", f"zones/{HERE}/instances", body)
    assert answer.status_code >= 400, answer.text
    message: str = answer.json()["error"]["message"]
    return message


@pytest.mark.parametrize(
    ("scheduling", "more", "words"),
    [
        ({"maxRunDuration": {"seconds": 500}}, {}, "between 10 minutes and seven days"),
        ({"maxRunDuration": {"seconds": 700000}}, {}, "between 10 minutes and seven days"),
        ({"automaticRestart": True}, {}, "neither migrate live nor restart"),
        ({}, {"reservationAffinity": {}}, "Flex-start VMs consume no reservation"),
        (
            {},
            {"params": {"requestValidForDuration": {"seconds": 60}}},
            "Must be 0, or between 90 seconds and 2 hours",
        ),
        ({"requestValidForDuration": {"seconds": 90}}, {}, "Unknown name"),
        ({}, {"machine": "n1-standard-8"}, "must be created by using"),
    ],
)
def test_a_flex_start_vm_that_is_refused(
    project: Project, scheduling: dict[str, Any], more: dict[str, Any], words: str
) -> None:
    changes = {"scheduling": {**FLEX, **scheduling}, "reservationAffinity": NONE, **more}
    assert words in refusal(project, **changes)


def test_no_other_vm_waits_in_the_queue(project: Project) -> None:
    waits = {"params": {"requestValidForDuration": {"seconds": 90}}}
    scheduling = {"onHostMaintenance": "TERMINATE"}
    assert "Only for the flex-start" in refusal(project, scheduling=scheduling, **waits)


def test_a_reservation_bound_vm_names_a_reservation_and_its_end(project: Project) -> None:
    bound = {"provisioningModel": "RESERVATION_BOUND", "onHostMaintenance": "TERMINATE"}
    words = "Instance termination action must be specified"
    assert words in refusal(project, scheduling=bound, machine="a3-highgpu-8g")
    ends = {**bound, "instanceTerminationAction": "DELETE"}
    words = "Reservation-bound VMs must name a reservation"
    assert words in refusal(project, scheduling=ends, machine="a3-highgpu-8g")


def test_googles_own_client_waits_reserves_and_asks_for_advice(project: Project) -> None:
    def client(kind: Any) -> Any:
        return kind(credentials=project.credentials, client_options={"api_endpoint": project.url})

    world = project.stand_in
    world.flex_start = {"one": 600.0}
    instances, reservations = (
        client(compute_v1.InstancesClient),
        client(compute_v1.ReservationsClient),
    )
    body = compute_v1.Instance(
        name="one",
        machine_type=f"zones/{HERE}/machineTypes/a2-highgpu-1g",
        disks=[
            compute_v1.AttachedDisk(
                boot=True,
                auto_delete=True,
                initialize_params=compute_v1.AttachedDiskInitializeParams(source_image=UBUNTU),
            )
        ],
        network_interfaces=[compute_v1.NetworkInterface(network="global/networks/default")],
        scheduling=compute_v1.Scheduling(
            provisioning_model="FLEX_START",
            instance_termination_action="DELETE",
            max_run_duration=compute_v1.Duration(seconds=3600),
            on_host_maintenance="TERMINATE",
            automatic_restart=False,
        ),
        reservation_affinity=compute_v1.ReservationAffinity(
            consume_reservation_type="NO_RESERVATION"
        ),
        params=compute_v1.InstanceParams(
            request_valid_for_duration=compute_v1.Duration(seconds=7200)
        ),
    )
    instances.insert(project="test-project", zone=HERE, instance_resource=body)
    where = {"project": "test-project", "zone": HERE, "instance": "one"}
    assert instances.get(**where).status == "PENDING"
    world.advance(700.0)
    assert instances.get(**where).status == "RUNNING"

    world.reservations = {RESERVATION: {"machine": "a3-highgpu-8g", "count": 2}}
    found = reservations.get(project="test-project", zone=HERE, reservation="mine")
    held = found.specific_reservation
    assert (held.count, held.in_use_count, found.status) == (2, 0, "READY")
    assert held.instance_properties.machine_type == "a3-highgpu-8g"

    world.obtainability = {HERE: 0.7}
    asked = compute_v1.CapacityAdviceRequest(
        instance_properties=compute_v1.CapacityAdviceRequestInstanceProperties(
            scheduling=compute_v1.CapacityAdviceRequestInstancePropertiesScheduling(
                provisioning_model="SPOT"
            )
        ),
        instance_flexibility_policy=compute_v1.CapacityAdviceRequestInstanceFlexibilityPolicy(
            instance_selections={
                "a": compute_v1.CapacityAdviceRequestInstanceFlexibilityPolicyInstanceSelection(
                    machine_types=["g2-standard-4"]
                )
            }
        ),
        distribution_policy=compute_v1.CapacityAdviceRequestDistributionPolicy(
            target_shape="ANY_SINGLE_ZONE",
            zones=[
                compute_v1.CapacityAdviceRequestDistributionPolicyZoneConfiguration(
                    zone=f"zones/{HERE}"
                )
            ],
        ),
        size=2,
    )
    given = {"project": "test-project", "region": "us-central1"}
    advice = client(compute_v1.AdviceClient)
    answer = advice.capacity(capacity_advice_request_resource=asked, **given)
    (recommended,) = answer.recommendations
    assert recommended.scores.obtainability == pytest.approx(0.7)
    asked.size = 1001
    with pytest.raises(exceptions.BadRequest, match="Must be 1 to 1000"):
        advice.capacity(capacity_advice_request_resource=asked, **given)
