"""The Azure stand-in, driven by Azure's own SDK, says what the real resource manager says."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from azure.identity import ClientSecretCredential, ManagedIdentityCredential
from azure.mgmt.compute import ComputeManagementClient
from azure.mgmt.network import NetworkManagementClient
from azure.mgmt.resource.resources import ResourceManagementClient

from tests.standins import azure_auth
from tests.standins.azure_world import SUBSCRIPTION
from tests.standins.cloud import Cloud, start

SCOPE = "https://management.azure.com/.default"
KEY = "ssh-ed25519 " + base64.b64encode(b"\0\0\0\x0bssh-ed25519" + bytes(36)).decode() + " somebody"
IMAGE = {
    "publisher": "Canonical",
    "offer": "0001-com-ubuntu-server-jammy",
    "sku": "22_04-lts-gen2",
    "version": "latest",
}
T4 = "Standard_NC4as_T4_v3"
TAGS = {"cloudtrain-cluster": "mnist"}


@pytest.fixture(scope="module")
def one_cloud() -> Iterator[Cloud]:
    with start("azure", thread=True) as cloud:
        yield cloud


@pytest.fixture
def cloud(one_cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """Emptied before each test."""
    for name, value in one_cloud.environment.items():
        monkeypatch.setenv(name, value)
    one_cloud.app.__init__()
    one_cloud.app.delay = 0.0
    one_cloud.forget_calls()
    return one_cloud


class Azure:
    """The SDK's three clients, and what most tests begin with."""

    def __init__(self, cloud: Cloud) -> None:
        told = cloud.environment
        self.credential = ClientSecretCredential(
            told["AZURE_TENANT_ID"],
            told["AZURE_CLIENT_ID"],
            told["AZURE_CLIENT_SECRET"],
            authority=cloud.url,
            disable_instance_discovery=True,
        )
        given: dict[str, Any] = {
            "base_url": cloud.url,
            "credential_scopes": [SCOPE],
            "polling_interval": 0,
            "retry_total": 0,
        }
        self.app = cloud.app
        self.compute: Any = ComputeManagementClient(self.credential, SUBSCRIPTION, **given)
        self.network: Any = NetworkManagementClient(self.credential, SUBSCRIPTION, **given)
        self.resource: Any = ResourceManagementClient(self.credential, SUBSCRIPTION, **given)

    def group(self, name: str = "rg", region: str = "eastus") -> Any:
        body = {"location": region, "tags": TAGS}
        return self.resource.resource_groups.create_or_update(name, body)

    def ground(self, group: str = "rg", region: str = "eastus") -> None:
        """A group, a security group, a network with a subnet."""
        self.group(group, region)
        rules = [rule("ssh", 100, "22", "203.0.113.7/32")]
        body = {"location": region, "tags": TAGS, "properties": {"securityRules": rules}}
        made = done(self.network.network_security_groups.begin_create_or_update(group, "sg", body))
        subnet = {"addressPrefix": "10.0.0.0/24", "networkSecurityGroup": {"id": made.id}}
        body = {
            "location": region,
            "properties": {
                "addressSpace": {"addressPrefixes": ["10.0.0.0/16"]},
                "subnets": [{"name": "nodes", "properties": subnet}],
            },
        }
        done(self.network.virtual_networks.begin_create_or_update(group, "net", body))

    def interface(self, name: str, group: str = "rg", region: str = "eastus") -> Any:
        body = {
            "location": region,
            "sku": {"name": "Standard"},
            "properties": {"publicIPAllocationMethod": "Static"},
        }
        address = done(
            self.network.public_ip_addresses.begin_create_or_update(group, f"{name}-ip", body)
        )
        network = self.network.virtual_networks.get(group, "net")
        inner = {
            "subnet": {"id": network.subnets[0].id},
            "publicIPAddress": {"id": address.id, "properties": {"deleteOption": "Delete"}},
        }
        body = {
            "location": region,
            "properties": {"ipConfigurations": [{"name": "one", "properties": inner}]},
        }
        return done(
            self.network.network_interfaces.begin_create_or_update(group, f"{name}-nic", body)
        )

    def wish(self, name: str, group: str = "rg", region: str = "eastus", **changes: Any) -> Any:
        """The body of a VM, with its interface made."""
        return machine(name, self.interface(name, group, region).id, region=region, **changes)

    def vm(self, name: str, group: str = "rg", **changes: Any) -> Any:
        body = self.wish(name, group, **changes)
        return done(self.compute.virtual_machines.begin_create_or_update(group, name, body))

    def power(self, name: str, group: str = "rg") -> str:
        view = self.compute.virtual_machines.instance_view(group, name)
        return str(view.statuses[-1].code)


@pytest.fixture
def azure(cloud: Cloud) -> Azure:
    return Azure(cloud)


def rule(name: str, priority: int, port: str, source: str) -> dict[str, Any]:
    properties = {
        "priority": priority,
        "direction": "Inbound",
        "access": "Allow",
        "protocol": "Tcp",
        "sourceAddressPrefix": source,
        "sourcePortRange": "*",
        "destinationAddressPrefix": "*",
        "destinationPortRange": port,
    }
    return {"name": name, "properties": properties}


def machine(name: str, nic: str, *, region: str = "eastus", **changes: Any) -> dict[str, Any]:
    ssh = {"publicKeys": [{"path": "/home/cloudtrain/.ssh/authorized_keys", "keyData": KEY}]}
    disk = {
        "createOption": "FromImage",
        "deleteOption": "Delete",
        "diskSizeGB": 100,
        "managedDisk": {"storageAccountType": "StandardSSD_LRS"},
    }
    properties = {
        "hardwareProfile": {"vmSize": T4},
        "storageProfile": {"imageReference": dict(IMAGE), "osDisk": disk},
        "osProfile": {
            "computerName": name,
            "adminUsername": "cloudtrain",
            "customData": base64.b64encode(b"#cloud-config\n").decode(),
            "linuxConfiguration": {"disablePasswordAuthentication": True, "ssh": ssh},
        },
        "networkProfile": {
            "networkInterfaces": [{"id": nic, "properties": {"deleteOption": "Delete"}}]
        },
    }
    top = {key: changes.pop(key) for key in ("zones", "tags", "identity") if key in changes}
    return {"location": region, "tags": TAGS, **top, "properties": {**properties, **changes}}


def done(poller: Any) -> Any:
    return poller.result()


def refused(call: Callable[[], Any]) -> tuple[int, str]:
    with pytest.raises(HttpResponseError) as raised:
        call()
    error = raised.value
    return int(error.status_code or 0), str(error.error.code) if error.error else ""


# ── A cluster's life ─────────────────────────────────────────────────────────


def test_the_sdk_makes_a_vm_with_all_it_needs_and_deleting_the_group_leaves_nothing(
    azure: Azure, cloud: Cloud
) -> None:
    azure.ground()
    made = azure.vm("mnist-chief0")
    assert (made.provisioning_state, made.tags) == ("Succeeded", TAGS)
    assert made.os_profile.as_dict().get("customData") is None
    assert azure.power("mnist-chief0") == "PowerState/running"
    assert [line.split(" ", 2)[0] for line in cloud.holdings()] != []
    assert "virtual machine mnist-chief0 eastus running" in cloud.holdings()
    done(azure.resource.resource_groups.begin_delete("rg"))
    assert cloud.holdings() == []
