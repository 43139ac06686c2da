"""libcloud's recorded answers of Resource Manager, read as our machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import libcloud
import pytest

from cloudtrain.core.model import ClusterConfig, Endpoints
from cloudtrain.providers.azure.provider import AzureDriver
from cloudtrain.providers.base.driver import Location
from tests.support.azure_parts import refused, scripted, told
from tests.support.fake_account import Clock

RECORDED = Path(libcloud.__file__).parent / "test/compute/fixtures/azure_arm"
NUMBER = "99999999-9999-9999-9999-999999999999"
VMS = "_subscriptions_99999999_providers_Microsoft_Compute_virtualMachines"
IN_GROUP = "_subscriptions_99999999_resourceGroups_000000_providers"
TAGS = {"cloudtrain-cluster": "mnist", "cloudtrain-role": "worker", "cloudtrain-index": "3"}


def recorded(name: str) -> Any:
    """With the names that our VMs have."""
    text = (RECORDED / f"{name}.json").read_text()
    return json.loads(text.replace("test-node-", "mnist-worker"))


def test_libclouds_recorded_answers_are_read_as_ours() -> None:
    """Two pages of VMs, their NICs, and instance views that this endpoint tells one by one."""
    pages = [recorded(VMS), recorded(f"{VMS}_1")]
    for page in pages:
        for vm in page["value"]:
            vm["tags"] = {**TAGS, "cloudtrain-index": vm["name"][-1]}
            vm["properties"]["timeCreated"] = "2026-11-21T13:30:00.1234567+00:00"
    nics = [
        recorded(f"{IN_GROUP}_Microsoft_Network_networkInterfaces_test_node_{number}_nic")
        for number in (1, 2)
    ]
    with scripted() as (script, url):
        compute = f"GET /subscriptions/{NUMBER}/providers/Microsoft.Compute/virtualMachines"
        script.on(
            compute,
            lambda request: (
                refused(501, "NotImplemented")
                if "statusOnly" in request.args
                else told(pages["$skiptoken" in request.args])
            ),
        )
        for vm in (vm for page in pages for vm in page["value"]):
            view = recorded(
                f"{IN_GROUP}_Microsoft_Compute_virtualMachines_"
                f"test_node_{vm['name'][-1]}_InstanceView"
            )
            script.on(f"GET {vm['id']}/instanceView", told(view))
        network = f"GET /subscriptions/{NUMBER}/providers/Microsoft.Network"
        script.on(f"{network}/networkInterfaces", told({"value": nics}))
        script.on(f"{network}/publicIPAddresses", told({"value": []}))
        script.on(f"GET /subscriptions/{NUMBER}/resourcegroups", told({"value": []}))
        config = ClusterConfig(
            name="mnist",
            provider="azure",
            project=NUMBER,
            strategy="custom",
            nodes={},
            endpoints=Endpoints(compute=url),
        )
        found = AzureDriver(config, timing=Clock().timing()).machines()
    first, second = sorted(found, key=lambda machine: machine.node.name)
    assert first.node.name == "mnist-worker1"
    assert (first.node.state, first.node.internal) == ("running", "10.0.0.1")
    assert first.node.address == "10.0.0.1"
    assert first.node.machine == "Standard_A1"
    assert first.node.created == pytest.approx(1795267800.123456)
    assert first.place == Location(region="eastus")
    assert first.id == f"/subscriptions/{NUMBER}/resourceGroups/000000/providers/" + (
        "Microsoft.Compute/virtualMachines/mnist-worker1"
    )
    assert second.node.name == "mnist-worker2"
