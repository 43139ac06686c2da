"""Every request body for Azure, checked against the models of azure-mgmt's libraries."""

from __future__ import annotations

import base64
from importlib import import_module
from typing import Any

import pytest

from cloudtrain.core.errors import CloudConfigError
from cloudtrain.core.model import SPOT, Accelerator, NodePlan
from cloudtrain.providers.azure import paths, requests
from tests.standins import azure_models
from tests.standins.azure_errors import Refusal
from tests.support.azure_parts import KEY

TAGS = {"cloudtrain-cluster": "mnist"}
GROUP = paths.Group("s", "cloudtrain-mnist-eastus")


def node(**changes: Any) -> NodePlan:
    given = {"name": "mnist-worker0", "role": "worker", "index": 0, "port": 8900}
    return NodePlan(**{"machine": "Standard_NC4as_T4_v3", **given, **changes})


def machine(**changes: Any) -> requests.Body:
    given: dict[str, Any] = {
        "node": node(disk_gb=100, provisioning=SPOT),
        "image": "auto",
        "nic": GROUP.nic("mnist-worker0"),
        "user_data": "#cloud-config\n",
        "public_key": KEY,
        "proximity": GROUP.proximity("p"),
    }
    return requests.machine("eastus", "eastus-1", TAGS, **{**given, **changes})


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("resource.resources.ResourceGroup", requests.group("eastus", TAGS)),
        ("network.NetworkSecurityGroup", requests.firewall("eastus", TAGS, ("192.0.2.1/32",), ())),
        (
            "network.NetworkSecurityGroup",
            requests.firewall("eastus", TAGS, ("192.0.2.1/32",), ("10.0.1.0/24", "10.0.2.0/24")),
        ),
        (
            "network.VirtualNetwork",
            requests.network("eastus", TAGS, "cloudtrain-mnist", outbound=True),
        ),
        ("network.PublicIPAddress", requests.address("eastus", "eastus-1", TAGS)),
        (
            "network.NetworkInterface",
            requests.nic("eastus", TAGS, subnet="/s", firewall="/f", address="/a", fast=True),
        ),
        (
            "network.NetworkInterface",
            requests.nic(
                "eastus",
                TAGS,
                subnet="/s",
                firewall="/f",
                address=None,
                fast=False,
                internal="10.42.0.9",
            ),
        ),
        ("compute.ProximityPlacementGroup", requests.proximity("eastus", TAGS)),
        ("compute.VirtualMachine", machine()),
        ("compute.VirtualMachine", machine(node=node(), proximity=None)),
        ("compute.VirtualMachine", machine(identity=paths.identity("s", "ids/trainer"))),
        (
            "compute.VirtualMachine",
            machine(node=node(), proximity=None, reservation=paths.reservation_group("s", "c/t4")),
        ),
        ("compute.VirtualMachineUpdate", {"tags": TAGS}),
    ],
)
def test_azure_knows_each_property_of_each_body(name: str, body: requests.Body) -> None:
    library, _, kind = name.rpartition(".")
    model = getattr(import_module(f"azure.mgmt.{library}.models"), kind)
    told = azure_models.checked(model, body)
    assert told == body
    spoiled = {**body, "nonsense": 1}
    with pytest.raises(Refusal, match="nonsense"):
        azure_models.checked(model, spoiled)


def test_a_reserved_vm_names_its_group_and_is_as_any_other_besides() -> None:
    id = paths.reservation_group("s", "capacity/t4")
    asked = machine(node=node(), proximity=None, reservation=id)["properties"]
    assert asked.pop("capacityReservation") == {"capacityReservationGroup": {"id": id}}
    assert asked == machine(node=node(), proximity=None)["properties"]


@pytest.mark.parametrize(
    ("id", "name"),
    [
        (paths.reservation_group("s", "capacity/t4"), "capacity/t4"),
        (paths.reservation_group("s", "capacity/t4").upper(), "CAPACITY/T4"),
        (paths.reservation_group("other", "capacity/t4"), None),
    ],
)
def test_a_reservation_group_of_the_subscription_is_shown_by_its_short_name(
    id: str, name: str | None
) -> None:
    assert paths.reservation_name(id, "s") == (name or id)


def test_a_vm_has_the_identity_that_the_file_names_and_no_other() -> None:
    id = "/subscriptions/s/resourceGroups/ids/providers/Microsoft.ManagedIdentity/"
    id += "userAssignedIdentities/trainer"
    assert paths.identity("s", "ids/trainer") == paths.identity("other", id) == id
    assert machine(identity=id)["identity"] == {
        "type": "UserAssigned",
        "userAssignedIdentities": {id: {}},
    }
    assert "identity" not in machine()


def test_first_boot_data_comes_as_azure_wants_it() -> None:
    profile = machine()["properties"]["osProfile"]
    assert base64.b64decode(profile["customData"]) == b"#cloud-config\n"
    (key,) = profile["linuxConfiguration"]["ssh"]["publicKeys"]
    assert key == {"path": "/home/cloudtrain/.ssh/authorized_keys", "keyData": KEY}


def test_disk_nic_and_address_are_deleted_with_the_vm() -> None:
    properties = machine()["properties"]
    assert properties["storageProfile"]["osDisk"]["deleteOption"] == "Delete"
    (nic,) = properties["networkProfile"]["networkInterfaces"]
    assert nic["properties"]["deleteOption"] == "Delete"
    body = requests.nic("eastus", TAGS, subnet="/s", firewall="/f", address="/a", fast=False)
    (configuration,) = body["properties"]["ipConfigurations"]
    address = configuration["properties"]["publicIPAddress"]
    assert address == {"id": "/a", "properties": {"deleteOption": "Delete"}}


def test_a_node_without_a_public_address_has_none() -> None:
    body = requests.nic("eastus", TAGS, subnet="/s", firewall="/f", address=None, fast=False)
    (configuration,) = body["properties"]["ipConfigurations"]
    assert "publicIPAddress" not in configuration["properties"]


@pytest.mark.parametrize(
    ("internal", "asked"), [("", ("Dynamic", None)), ("10.42.0.9", ("Static", "10.42.0.9"))]
)
def test_a_node_is_asked_for_with_the_internal_address_that_it_must_have(
    internal: str, asked: tuple[str, str | None]
) -> None:
    nic = requests.nic(
        "eastus", TAGS, subnet="/s", firewall="/f", address="/a", fast=True, internal=internal
    )
    (configuration,) = nic["properties"]["ipConfigurations"]
    inside = configuration["properties"]
    assert (inside["privateIPAllocationMethod"], inside.get("privateIPAddress")) == asked


def test_the_schedule_names_the_minute_of_the_end() -> None:
    """azure-mgmt has no library for it here: as in the REST reference that bodies.py names."""
    body = requests.schedule("eastus", TAGS, vm="/vm", expires=1795267859.0)
    assert body["properties"] == {
        "status": "Enabled",
        "taskType": "ComputeVmShutdownTask",
        "dailyRecurrence": {"time": "1330"},
        "timeZoneId": "UTC",
        "notificationSettings": {"status": "Disabled"},
        "targetResourceId": "/vm",
    }


@pytest.mark.parametrize(
    ("image", "accelerator", "offer"),
    [
        ("auto", None, "0001-com-ubuntu-server-jammy"),
        ("auto", "T4", "ubuntu-hpc"),
        ("auto", "V100", "0001-com-ubuntu-server-jammy"),
        ("deeplearning", None, "ubuntu-hpc"),
        ("ubuntu-22.04", "T4", "0001-com-ubuntu-server-jammy"),
        ("ubuntu-24.04", None, "ubuntu-24_04-lts"),
        ("Debian:debian-12:12-gen2:latest", "T4", "debian-12"),
    ],
)
def test_each_image_has_a_name_in_azure(image: str, accelerator: str | None, offer: str) -> None:
    planned = node(accelerator=Accelerator(kind=accelerator) if accelerator else None)
    reference = requests.image_reference(requests.image_of(image, planned))
    assert reference["offer"] == offer


def disk(**changes: Any) -> int | None:
    size = machine(**changes)["properties"]["storageProfile"]["osDisk"].get("diskSizeGB")
    assert size is None or isinstance(size, int)
    return size


def test_a_disk_with_gpus_has_room_for_cuda_beside_the_image() -> None:
    t4 = Accelerator(kind="T4")
    assert disk(node=node(accelerator=t4)) == 128
    assert disk(node=node(accelerator=t4), image="ubuntu-24.04") == 128
    assert disk(node=node(accelerator=t4, disk_gb=200)) == 200
    assert disk(node=node()) is None
    own = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/images/own"
    assert disk(node=node(accelerator=t4), image=own) is None, "it may be larger than any of ours"


def test_an_image_may_be_ones_own_or_a_gallerys() -> None:
    own = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/images/i"
    assert requests.image_reference(own) == {"id": own}
    shared = "/SharedGalleries/x/Images/y/Versions/latest"
    assert requests.image_reference(shared) == {"sharedGalleryImageId": shared}
    with pytest.raises(CloudConfigError, match="is invalid on Azure"):
        requests.image_reference("ami-0123456789")


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("/subscriptions", "2022-12-01"),
        ("/subscriptions/s", "2022-12-01"),
        ("/subscriptions/s/locations", "2022-12-01"),
        ("/subscriptions/s/resourcegroups", "2025-04-01"),
        ("/subscriptions/s/resources", "2025-04-01"),
        ("/subscriptions/s/providers/Microsoft.Compute", "2025-04-01"),
        ("/subscriptions/s/providers/Microsoft.Compute/skus", "2021-07-01"),
        ("/subscriptions/s/providers/Microsoft.Compute/virtualMachines", "2026-04-01"),
        ("/subscriptions/s/providers/Microsoft.Authorization/permissions", "2022-04-01"),
        (GROUP.path, "2025-04-01"),
        (GROUP.vm("n"), "2026-04-01"),
        (GROUP.nic("n"), "2026-03-01"),
        (GROUP.schedule("n"), "2018-09-15"),
        (f"{GROUP.path}/providers/microsoft.compute/disks/d", "2026-03-02"),
        ("/operations/1", None),
    ],
)
def test_everything_is_spoken_of_in_its_own_version(path: str, version: str | None) -> None:
    assert paths.version(path) == version
