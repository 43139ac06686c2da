"""What is sent to Compute Engine, checked against Google's description, and what it answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import libcloud
import pytest

from cloudtrain.cluster.plan import make_plan
from cloudtrain.core.errors import CloudConfigError
from cloudtrain.core.model import (
    SPOT,
    Accelerator,
    ClusterConfig,
    Market,
    Network,
    NodeGroup,
    Plan,
    Provisioning,
)
from cloudtrain.providers.base.answers import unix_time
from cloudtrain.providers.base.driver import LaunchRequest, Location
from cloudtrain.providers.base.timing import TIMING
from cloudtrain.providers.gcp import listing, permissions, requests, scheduling, zones
from cloudtrain.providers.gcp.client import GcpClient
from cloudtrain.providers.gcp.images import GcpImage, path_of
from cloudtrain.providers.gcp.machine_types import shape
from cloudtrain.providers.gcp.requests import ClusterNetwork
from tests.standins.cloud import Cloud
from tests.standins.gcp_api import api
from tests.support.gcp_parts import CALLER, KEY, T4, order

FIXTURES = Path(libcloud.__file__).parent / "test/compute/fixtures/gce"
NOW = 2_000_000_000.0
UBUNTU = GcpImage(
    source="projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts", disk_gb=10
)


def plan(**node: Any) -> Plan:
    group = replace(NodeGroup(machine="n1-standard-8"), **node)
    told = {"url": "", "environment": {}, "endpoints": {}}
    return make_plan(Cloud("gcp", told).config(nodes={"chief": group}))


def wish(
    image: GcpImage = UBUNTU, policy: str | None = None, private: bool = False, **node: Any
) -> LaunchRequest[ClusterNetwork]:
    asked = plan(**node)
    if private:
        asked = replace(asked, config=replace(asked.config, network=Network(private=True)))
    ground = ClusterNetwork(
        network="projects/p/global/networks/cloudtrain-mnist",
        subnetwork="projects/p/regions/us-east4/subnetworks/cloudtrain-mnist",
        tags=("cloudtrain-mnist",),
        policy=policy,
        images={"mnist-chief0": image},
    )
    return order(asked, ground)


def body(**given: Any) -> dict[str, Any]:
    """As Google's description takes it: an unknown field or a wrong type is refused."""
    made = requests.instance(wish(**given), "p", now=NOW)
    method, _ = api().route("POST", "/compute/v1/projects/p/zones/us-east4-c/instances")
    api().take(method, json.dumps(made).encode())
    return made


def metadata(made: dict[str, Any]) -> dict[str, str]:
    return {item["key"]: item["value"] for item in made["metadata"]["items"]}


def test_a_node_has_the_service_account_that_the_file_names_and_iam_decides() -> None:
    asked = wish()
    email = "trainer@p.iam.gserviceaccount.com"
    named = replace(asked.plan, config=replace(asked.plan.config, identity=email))
    made = requests.instance(replace(asked, plan=named), "p", now=NOW)
    method, _ = api().route("POST", "/compute/v1/projects/p/zones/us-east4-c/instances")
    api().take(method, json.dumps(made).encode())
    scope = "https://www.googleapis.com/auth/cloud-platform"
    assert made["serviceAccounts"] == [{"email": email, "scopes": [scope]}]
    assert {**made, "serviceAccounts": []} == body()


def test_a_node_is_an_instance_with_labels_and_an_end_and_no_identity() -> None:
    made = body()
    user_data = metadata(made)
    del made["metadata"]
    labels = {
        "cloudtrain-cluster": "mnist",
        "cloudtrain-role": "chief",
        "cloudtrain-index": "0",
        "cloudtrain-owner": made["labels"]["cloudtrain-owner"],
        "cloudtrain-expires": "2000003600",
    }
    assert made == {
        "name": "mnist-chief0",
        "machineType": "projects/p/zones/us-east4-c/machineTypes/n1-standard-8",
        "labels": labels,
        "tags": {"items": ["cloudtrain-mnist"]},
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "initializeParams": {
                    "diskName": "mnist-chief0",
                    "sourceImage": UBUNTU.source,
                    "diskSizeGb": "50",
                    "diskType": "projects/p/zones/us-east4-c/diskTypes/pd-balanced",
                    "labels": labels,
                },
            }
        ],
        "networkInterfaces": [
            {
                "network": "projects/p/global/networks/cloudtrain-mnist",
                "subnetwork": "projects/p/regions/us-east4/subnetworks/cloudtrain-mnist",
                "accessConfigs": [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}],
            }
        ],
        "scheduling": {
            "provisioningModel": "STANDARD",
            "maxRunDuration": {"seconds": "3600"},
            "instanceTerminationAction": "DELETE",
            "automaticRestart": False,
        },
        "serviceAccounts": [],
    }
    assert {k: v for k, v in user_data.items() if k not in ("user-data", "startup-script")} == {
        "block-project-ssh-keys": "TRUE",
        "enable-oslogin": "FALSE",
        "serial-port-enable": "FALSE",
    }
    assert user_data["user-data"].startswith("#cloud-config\n")


def test_a_spot_node_is_deleted_when_it_is_taken() -> None:
    assert body(provisioning=SPOT)["scheduling"] == {
        "provisioningModel": "SPOT",
        "preemptionNoticeDuration": {"seconds": "120"},
        "maxRunDuration": {"seconds": "3600"},
        "instanceTerminationAction": "DELETE",
        "automaticRestart": False,
        "onHostMaintenance": "TERMINATE",
    }


def test_a_node_without_an_end_is_started_again_by_google() -> None:
    asked = replace(wish(), expires=None)
    assert requests.instance(asked, "p", now=NOW)["scheduling"] == {"provisioningModel": "STANDARD"}


@pytest.mark.parametrize(
    ("left", "seconds"), [(5.0, "30"), (90.4, "91"), (200 * 86400.0, "10368000")]
)
def test_the_end_is_within_what_google_takes(left: float, seconds: str) -> None:
    asked = replace(wish(), expires=NOW + left)
    told = requests.instance(asked, "p", now=NOW)["scheduling"]
    assert told["maxRunDuration"] == {"seconds": seconds}


def test_gpus_are_attached_to_n1_and_never_live_migrated() -> None:
    made = body(accelerator=Accelerator(kind="T4", count=2))
    assert made["guestAccelerators"] == [
        {
            "acceleratorType": "projects/p/zones/us-east4-c/acceleratorTypes/nvidia-tesla-t4",
            "acceleratorCount": 2,
        }
    ]
    assert made["scheduling"]["onHostMaintenance"] == "TERMINATE"
    assert made["disks"][0]["initializeParams"]["diskSizeGb"] == "100"


def test_machines_that_bring_their_gpus_are_asked_for_by_name_alone() -> None:
    made = body(machine="g2-standard-24")
    assert "guestAccelerators" not in made
    assert made["scheduling"]["onHostMaintenance"] == "TERMINATE"


@pytest.mark.parametrize(
    ("machine", "disk"),
    [
        ("a2-highgpu-1g", "pd-balanced"),
        ("a3-highgpu-8g", "pd-balanced"),
        ("a3-ultragpu-8g", "hyperdisk-balanced"),
        ("a4-highgpu-8g", "hyperdisk-balanced"),
        ("n4-standard-8", "hyperdisk-balanced"),
        ("n4d-standard-8", "hyperdisk-balanced"),
        ("m4-megamem-28", "hyperdisk-balanced"),
        ("a4x-highgpu-4g", "hyperdisk-balanced"),
        ("g4-standard-48", "hyperdisk-balanced"),
        ("a3-ultragpu-8g-nolssd", "hyperdisk-balanced"),
        ("a3-highgpu-8g-nolssd", "pd-balanced"),
        ("a3-megagpu-8g", "pd-balanced"),
        ("z9-brandnew-4", "hyperdisk-balanced"),
        ("n1-standard-8", "pd-balanced"),
    ],
)
def test_the_disk_is_of_a_kind_that_the_machine_takes(machine: str, disk: str) -> None:
    kind = body(machine=machine)["disks"][0]["initializeParams"]["diskType"]
    assert kind.rpartition("/")[2] == disk


@pytest.mark.parametrize("machine", ["a3-megagpu-8g", "g4-standard-48", "a5-novelgpu-4g"])
def test_gpus_do_not_migrate_live_whether_or_not_they_were_named(machine: str) -> None:
    made = body(machine=machine, image=replace(UBUNTU, uefi=True))
    assert made["scheduling"]["onHostMaintenance"] == "TERMINATE"
    assert made["shieldedInstanceConfig"]["enableSecureBoot"] is False


def test_a_disk_is_never_smaller_than_its_image() -> None:
    large = replace(UBUNTU, disk_gb=150)
    assert body(image=large, disk_gb=20)["disks"][0]["initializeParams"]["diskSizeGb"] == "150"
    assert body(disk_gb=20)["disks"][0]["initializeParams"]["diskSizeGb"] == "20"


def test_a_disk_with_gpus_has_room_for_cuda_beside_the_image() -> None:
    roomy = replace(UBUNTU, disk_gb=80)
    for more in ({"accelerator": Accelerator(kind="T4")}, {"machine": "g2-standard-4"}):
        assert body(image=roomy, **more)["disks"][0]["initializeParams"]["diskSizeGb"] == "130"
    assert body(image=roomy)["disks"][0]["initializeParams"]["diskSizeGb"] == "80"


def test_secure_boot_is_for_nodes_without_a_driver_of_nvidias() -> None:
    uefi = replace(UBUNTU, uefi=True)
    assert body(image=uefi)["shieldedInstanceConfig"]["enableSecureBoot"] is True
    assert body(image=uefi, accelerator=T4)["shieldedInstanceConfig"]["enableSecureBoot"] is False
    assert "shieldedInstanceConfig" not in body()


def test_google_s_network_card_is_asked_for_where_the_image_has_its_driver() -> None:
    assert body(image=replace(UBUNTU, gvnic=True))["networkInterfaces"][0]["nicType"] == "GVNIC"
    assert "nicType" not in body()["networkInterfaces"][0]


def test_a_private_node_has_no_public_address() -> None:
    assert "accessConfigs" not in body(private=True)["networkInterfaces"][0]


def test_a_node_is_asked_for_with_the_internal_address_that_it_must_have() -> None:
    asked = wish()
    asked = replace(asked, node=replace(asked.node, internal="10.7.0.9"))
    made = requests.instance(asked, "p", now=NOW)
    method, _ = api().route("POST", "/compute/v1/projects/p/zones/us-east4-c/instances")
    api().take(method, json.dumps(made).encode())
    assert made["networkInterfaces"][0]["networkIP"] == "10.7.0.9"
    assert "networkIP" not in body()["networkInterfaces"][0]


def test_a_policy_is_for_the_machines_that_take_it() -> None:
    policy = "projects/p/regions/us-east4/resourcePolicies/cloudtrain-mnist"
    made = body(policy=policy, machine="c2-standard-8")
    assert made["resourcePolicies"] == [policy]
    assert made["scheduling"]["onHostMaintenance"] == "TERMINATE"
    assert "resourcePolicies" not in body(policy=policy)


def test_the_deep_learning_image_is_told_to_put_its_driver_on() -> None:
    image = replace(UBUNTU, installs_driver=True)
    assert metadata(body(image=image, accelerator=T4))["install-nvidia-driver"] == "True"
    assert "install-nvidia-driver" not in metadata(body(image=image))


def test_an_accelerator_that_n1_does_not_take_is_refused() -> None:
    node = replace(plan().nodes[0], accelerator=Accelerator(kind="L4", count=1))
    with pytest.raises(CloudConfigError, match="L4:1 cannot be attached to n1-standard-8"):
        shape(node)


@pytest.mark.parametrize(
    ("method", "path", "made"),
    [
        ("POST", "global/networks", requests.network("mnist")),
        ("POST", "regions/r/subnetworks", requests.subnetwork("mnist", "us-east4", "n")),
        ("POST", "global/firewalls", requests.ssh_rule("mnist", "n", CALLER)),
        ("PATCH", "global/firewalls/cloudtrain-mnist-ssh", requests.ssh_rule("mnist", "n", CALLER)),
        ("POST", "global/firewalls", requests.inside_rule("mnist", "n")),
        ("POST", "regions/r/resourcePolicies", requests.policy("mnist")),
    ],
)
def test_what_is_sent_is_as_google_describes_it(
    method: str, path: str, made: dict[str, Any]
) -> None:
    route, _ = api().route(method, f"/compute/v1/projects/p/{path}")
    assert api().take(route, json.dumps(made).encode()) == made


REGIONS = (
    "africa-south1 asia-east1 asia-east2 asia-northeast1 asia-northeast2 asia-northeast3 "
    "asia-south1 asia-south2 asia-southeast1 asia-southeast2 asia-southeast3 "
    "australia-southeast1 australia-southeast2 europe-central2 europe-north1 europe-north2 "
    "europe-southwest1 europe-west1 europe-west2 europe-west3 europe-west4 europe-west6 "
    "europe-west8 europe-west9 europe-west10 europe-west12 me-central1 me-central2 me-west1 "
    "northamerica-northeast1 northamerica-northeast2 northamerica-south1 southamerica-east1 "
    "southamerica-west1 us-central1 us-east1 us-east4 us-east5 us-south1 us-west1 us-west2 "
    "us-west3 us-west4"
)


def test_subnetworks_of_all_regions_fit_beside_each_other_in_one_network() -> None:
    regions = REGIONS.split()
    assert len({requests.cidr(region) for region in regions}) == len(regions)


def test_a_description_tells_the_cluster_and_the_owner_and_no_other_text_does() -> None:
    told = requests.read_description(requests.description("mnist"))
    assert told is not None
    assert (told.cluster, bool(told.owner)) == ("mnist", True)
    for other in ("", "my network", "made by cloudtrain: ", "not made by cloudtrain: cluster=a"):
        assert requests.read_description(other) is None


@pytest.mark.parametrize(
    ("wanted", "path"),
    [
        ("my-image", "projects/p/global/images/my-image"),
        ("family/mine", "projects/p/global/images/family/mine"),
        ("debian-cloud/debian-12", "projects/debian-cloud/global/images/family/debian-12"),
        ("global/images/x", "projects/p/global/images/x"),
        ("projects/q/global/images/x", "projects/q/global/images/x"),
        (
            "https://www.googleapis.com/compute/v1/projects/q/global/images/family/f",
            "projects/q/global/images/family/f",
        ),
    ],
)
def test_images_are_named_in_many_ways(wanted: str, path: str) -> None:
    assert path_of(wanted, "p") == path


def test_a_name_that_is_no_image_is_refused() -> None:
    with pytest.raises(CloudConfigError, match="is invalid"):
        path_of("a/b/c", "p")


# ── What Google tells ────────────────────────────────────────────────────────


def recorded(name: str) -> list[dict[str, Any]]:
    """By libcloud's authors, of the real API."""
    told = json.loads((FIXTURES / name).read_text())
    found: list[dict[str, Any]] = told.get("items", [told])
    return found


OURS = {"cloudtrain-cluster": "mnist", "cloudtrain-role": "worker", "cloudtrain-index": "3"}
NAME = "mnist-worker3"


def test_vms_without_our_label_are_not_ours() -> None:
    for name in (
        "zones_us-central1-a_instances.json",
        "zones_us-central1-a_instances_node-name.json",
    ):
        assert [listing.to_vm(vm) for vm in recorded(name)] == [None] * len(recorded(name))


def test_a_recorded_vm_is_read() -> None:
    [vm] = recorded("zones_us-central1-a_instances_node-name.json")
    machine = listing.to_vm({**vm, "name": NAME, "labels": OURS})
    assert machine is not None
    assert (machine.cluster, machine.node.task, machine.id) == ("mnist", "worker3", vm["id"])
    assert str(machine.place) == "us-central1-a"
    assert machine.place.region == "us-central1"
    assert machine.node.state == "running"
    assert machine.node.machine == "n1-standard-1"
    nat = vm["networkInterfaces"][0]["accessConfigs"][0]["natIP"]
    assert (machine.node.address, machine.node.internal) == (
        nat,
        vm["networkInterfaces"][0]["networkIP"],
    )
    assert machine.node.created == unix_time(vm["creationTimestamp"])


def test_a_recorded_vm_that_is_stopped_is_told_as_such() -> None:
    [vm] = recorded("zones_us_central1_a_instances_stopped_node.json")
    machine = listing.to_vm({**vm, "name": NAME, "labels": OURS})
    assert machine is not None
    assert machine.node.state == "stopped"


def test_every_status_that_google_describes_is_a_state() -> None:
    described = api().schemas["Instance"]["properties"]["status"]["enum"]
    assert set(described) == set(listing.STATES)


def test_an_address_is_the_public_one_or_not_known_yet() -> None:
    vm = {"name": NAME, "labels": OURS, "zone": "z", "status": "STAGING"}
    inside = {"networkIP": "10.0.0.2"}
    for interface, address in (
        ({**inside, "accessConfigs": [{"natIP": "198.51.100.1"}]}, "198.51.100.1"),
        ({**inside, "accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}, ""),
        (inside, "10.0.0.2"),
    ):
        machine = listing.to_vm({**vm, "networkInterfaces": [interface]})
        assert machine is not None
        assert (machine.node.address, machine.node.internal) == (address, "10.0.0.2")


def test_the_end_is_what_google_says_and_else_what_the_label_says() -> None:
    vm = {"name": NAME, "labels": {**OURS, "cloudtrain-expires": "2000000000"}, "zone": "z"}
    machine = listing.to_vm(vm)
    assert machine is not None
    assert machine.node.expires == NOW
    vm["status"] = "RUNNING"
    bare = listing.to_vm({**vm, "scheduling": {}})
    assert bare is not None
    assert bare.node.no_end == "Google holds no run time for it"
    armed = listing.to_vm({**vm, "scheduling": {"maxRunDuration": {"seconds": "60"}}})
    assert armed is not None
    assert armed.node.no_end == ""
    status = {"scheduling": {"terminationTimestamp": "2033-05-18T20:33:20-07:00"}}
    machine = listing.to_vm({**vm, "resourceStatus": status})
    assert machine is not None
    assert machine.node.expires == NOW + 86400


def test_the_hosts_key_is_in_the_metadata_alone() -> None:
    made = body()
    del made["metadata"]
    assert KEY.splitlines()[1] not in json.dumps(made)


def bought(market: Market, name: str = "", **given: Any) -> dict[str, Any]:
    """The fields that say how the VM is bought, of a request that Google's description takes."""
    queue, bound = given.pop("queue", 0.0), given.pop("bound", frozenset())
    how = Provisioning(market=market, name=name)
    asked = wish(machine="a3-highgpu-8g", provisioning=how, **given)
    asked = replace(asked, queue=queue, network=replace(asked.network, bound=bound))
    made = requests.instance(asked, "p", now=NOW)
    method, _ = api().route("POST", "/compute/v1/projects/p/zones/us-east4-c/instances")
    api().take(method, json.dumps(made).encode())
    return {key: made.get(key) for key in ("scheduling", "params", "reservationAffinity")}


@pytest.mark.parametrize(
    ("queue", "sent"), [(0.0, "0"), (60.0, "0"), (90.0, "90"), (1800.0, "1800"), (9e4, "7200")]
)
def test_a_flex_start_request_waits_for_as_long_as_google_allows(queue: float, sent: str) -> None:
    assert bought("flex-start", queue=queue) == {
        "scheduling": {
            "provisioningModel": "FLEX_START",
            "maxRunDuration": {"seconds": "3600"},
            "instanceTerminationAction": "DELETE",
            "automaticRestart": False,
            "onHostMaintenance": "TERMINATE",
        },
        "params": {"requestValidForDuration": {"seconds": sent}},
        "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"},
    }


@pytest.mark.parametrize(("left", "sent"), [(30.0, "600"), (3600.5, "3601"), (9e5, "604800")])
def test_a_flex_start_vm_runs_for_ten_minutes_to_seven_days(left: float, sent: str) -> None:
    node = plan(machine="a3-highgpu-8g", provisioning=Provisioning(market="flex-start")).nodes[0]
    made = scheduling.bought(node, bound=False, queue=0.0, left=left, migrates=False)
    assert made["scheduling"]["maxRunDuration"] == {"seconds": sent}
    again = scheduling.with_end(made["scheduling"], NOW + left, now=NOW)
    assert again["maxRunDuration"] == {"seconds": sent}
    assert "terminationTime" not in again


@pytest.mark.parametrize(
    ("bound", "model"), [(frozenset(), "STANDARD"), (frozenset({"mine"}), "RESERVATION_BOUND")]
)
def test_a_node_of_a_reservation_names_it(bound: frozenset[str], model: str) -> None:
    found = bought("reservation", "mine", bound=bound, queue=1800.0)
    assert found["scheduling"]["provisioningModel"] == model
    assert found["params"] is None
    assert found["reservationAffinity"] == {
        "consumeReservationType": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": ["mine"],
    }


def test_a_question_about_a_zone_is_one_that_google_takes() -> None:
    place = Location(region="us-central1", zone="us-central1-a")
    asked = zones.advice_request(place, "g2-standard-4", 2000)
    method, _ = api().route("POST", "/compute/v1/projects/p/regions/us-central1/advice/capacity")
    api().take(method, json.dumps(asked).encode())
    assert asked["size"] == 1000


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://here:1", "http://here:1/v1"),
        ("http://here:1/v1/", "http://here:1/v1"),
        ("http://here:1/manager-v1", "http://here:1/manager-v1/v1"),
    ],
)
def test_the_version_is_a_part_of_a_services_path(
    given: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(permissions.OVERRIDE, given)
    config = ClusterConfig(name="mnist", provider="gcp", strategy="custom", nodes={})
    manager = GcpClient(config, TIMING).other(*permissions.MANAGER)
    assert manager is not None
    assert manager.url == url
