"""What Resource Manager lists, as our machines: its oddities."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cloudtrain.core.errors import BusyError, CapacityError, CloudError, PermissionsError
from cloudtrain.providers.azure import listing, paths
from cloudtrain.providers.azure.expiry import Deadlines
from cloudtrain.providers.azure.machine_types import read
from cloudtrain.providers.base.answers import unix_time


@pytest.mark.parametrize(
    ("provisioning", "power", "state"),
    [
        ("Creating", None, "starting"),
        ("Creating", "running", "running"),
        ("Succeeded", "starting", "starting"),
        ("Succeeded", "running", "running"),
        ("Succeeded", "deallocating", "stopped"),
        ("Succeeded", "deallocated", "stopped"),
        ("Updating", "stopped", "stopped"),
        ("Succeeded", "unknown", "running"),
        ("Succeeded", None, "running"),
        ("Failed", "running", "running"),
        ("Failed", "deallocated", "stopped"),
    ],
)
def test_the_state_is_what_power_and_provisioning_say(
    provisioning: str, power: str | None, state: str
) -> None:
    """One that runs or has run is kept, though a later change to it failed."""
    statuses = [{"code": f"ProvisioningState/{provisioning.lower()}"}]
    statuses += [{"code": f"PowerState/{power}"}] if power else []
    view = {"statuses": statuses}
    told = listing.condition("n", {"provisioningState": provisioning}, view, dying=False)
    assert told == (state, None)


def test_a_vm_that_was_never_allocated_tells_why() -> None:
    code = "ProvisioningState/failed/AllocationFailed"
    view = {"statuses": [{"code": code, "message": "Allocation failed."}]}
    state, error = listing.condition("n", {"provisioningState": "Failed"}, view, dying=False)
    assert state == "stopped"
    assert isinstance(error, CapacityError)
    assert (error.what, error.text) == ("n", "AllocationFailed: Allocation failed.")
    assert error.message == "n: AllocationFailed: Allocation failed."
    _, error = listing.condition("n", {"provisioningState": "Failed"}, {}, dying=False)
    assert error is not None
    assert "ended as Failed" in error.message


def test_a_vm_that_is_being_deleted_is_none_to_keep() -> None:
    for state, dying in (("Deleting", False), ("Succeeded", True)):
        _, error = listing.condition("n", {"provisioningState": state}, {}, dying=dying)
        assert isinstance(error, BusyError)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-11-21T13:30:00+00:00", 1795267800.0),
        ("2026-11-21T13:30:00Z", 1795267800.0),
        ("2026-11-21T13:30:00.5Z", 1795267800.5),
        ("2026-11-21T13:30:00.1234567+00:00", 1795267800.123456),
        (None, None),
        ("yesterday", None),
    ],
)
def test_times_are_read_with_any_number_of_digits(text: str | None, seconds: float | None) -> None:
    assert unix_time(text) == seconds


def test_an_id_is_read_in_any_capitals() -> None:
    id = (
        "/SUBSCRIPTIONS/s/resourcegroups/CLOUDTRAIN-MNIST-EASTUS/providers/"
        "microsoft.compute/virtualmachines/mnist-worker0"
    )
    assert paths.vm_of(id) == (paths.Group("s", "cloudtrain-mnist-eastus"), "mnist-worker0")
    assert paths.vm_of(f"{id}/extensions/x") is None
    assert paths.group_of(id) == "cloudtrain-mnist-eastus"


def test_a_size_that_is_restricted_in_one_zone_is_left_with_the_others() -> None:
    entry = {
        "resourceType": "virtualMachines",
        "name": "Standard_NC6s_v3",
        "family": "standardNCSv3Family",
        "locations": ["eastus"],
        "locationInfo": [{"location": "eastus", "zones": ["1", "2"]}],
        "capabilities": [{"name": "vCPUs", "value": "6"}],
        "restrictions": [
            {
                "type": "Zone",
                "restrictionInfo": {"locations": ["eastus"], "zones": ["2"]},
                "reasonCode": "NotAvailableForSubscription",
            }
        ],
    }
    (sku,) = read([entry, {**entry, "locations": ["westus"]}, {"resourceType": "disks"}], "eastus")
    assert (sku.cores, sku.zones, sku.all_zones) == (6, {"1"}, {"1", "2"})
    assert sku.refused == ""
    refused = {**entry, "restrictions": [{"type": "Location", "reasonCode": "QuotaId"}]}
    assert read([refused], "eastus")[0].refused == "QuotaId"


@pytest.mark.parametrize("answer", [PermissionsError("POST x: denied"), {"results": [{}]}])
def test_a_refused_end_says_its_vm_apart_from_what_was_refused(answer: Any) -> None:
    def call(*asked: object) -> Any:
        if isinstance(answer, CloudError):
            raise answer
        return SimpleNamespace(body=answer)

    arm: Any = SimpleNamespace(call=call, path="/subscriptions/s")
    services: Any = SimpleNamespace(reach_far=lambda region: True)
    refusal = Deadlines(arm, services).submit("/vms/m-chief0", "eastus", 9e9, "").refusal
    assert refusal is not None
    assert refusal.what == "m-chief0"
    assert refusal.text.startswith("the end at Microsoft.ComputeSchedule")
    assert refusal.text.endswith(("POST x: denied", "was refused: it named no operation"))
