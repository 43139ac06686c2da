"""The Azure stand-in, driven by Azure's own SDK, says what the real resource manager says."""

from __future__ import annotations

import base64
import importlib
import socket
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from azure.identity import ClientSecretCredential, ManagedIdentityCredential
from azure.mgmt.compute import ComputeManagementClient
from azure.mgmt.network import NetworkManagementClient
from azure.mgmt.resource.resources import ResourceManagementClient, models

from tests.standins import azure_auth, serve
from tests.standins.azure_models import check_answer
from tests.standins.azure_resources import kind_of
from tests.standins.azure_schedules import first_moment
from tests.standins.azure_world import GROUPS, SUBSCRIPTION
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
GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/rg"
VERSIONS = {
    "Microsoft.Compute": "2024-07-01",
    "Microsoft.Compute/disks": "2024-03-02",
    "Microsoft.Network": "2024-05-01",
    "Microsoft.DevTestLab": "2018-09-15",
    "Microsoft.Authorization": "2022-04-01",
}
NETWORKS = ("networkInterfaces", "publicIPAddresses", "virtualNetworks", "networkSecurityGroups")


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
        self.app, self.url = cloud.app, cloud.url
        self.given = given
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

    def ask(
        self,
        verb: str,
        path: str,
        body: Any = None,
        *,
        version: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> requests.Response:
        """As it goes over the wire, where the SDK would add or hide something."""
        if version is None:
            version = next(
                (VERSIONS[one] for one in reversed(VERSIONS) if one in path), "2022-09-01"
            )
        query = {"api-version": version} if version and "api-version" not in path else {}
        bearer = {"Authorization": f"Bearer {self.credential.get_token(SCOPE).token}"}
        url = path if path.startswith("http") else self.url + path
        return requests.request(
            verb, url, params=query, json=body, headers={**bearer, **(headers or {})}, timeout=10
        )

    def code(self, verb: str, path: str, body: Any = None, **more: Any) -> tuple[int, str]:
        """What it is refused with."""
        answer = self.ask(verb, path, body, **more)
        return answer.status_code, answer.json()["error"]["code"] if answer.text else ""

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
    top: dict[str, Any] = {
        key: changes.pop(key) for key in ("zones", "tags", "identity") if key in changes
    }
    return {"location": region, "tags": TAGS, **top, "properties": {**properties, **changes}}


def item(kind: str, name: str) -> str:
    """An id in the group `rg`."""
    namespace = "Microsoft.Network" if kind in NETWORKS else "Microsoft.Compute"
    return f"{GROUP}/providers/{namespace}/{kind}/{name}"


def interface_body() -> dict[str, Any]:
    """Without a public address."""
    inner = {"subnet": {"id": item("virtualNetworks", "net/subnets/nodes")}}
    configurations = [{"name": "one", "properties": inner}]
    return {"location": "eastus", "properties": {"ipConfigurations": configurations}}


class Nodes:
    """Writes down what is asked of it."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self._number = 1

    def start(self, name: str, user_data: str, address: str) -> None:
        self.told.append(f"start {name} {user_data.strip()} {address}")

    def halt(self, name: str) -> None:
        self.told.append(f"halt {name}")

    def stop(self, name: str) -> None:
        self.told.append(f"stop {name}")

    def address(self) -> str:
        self._number += 1
        return f"127.9.0.{self._number}"


def done(poller: Any) -> Any:
    return poller.result()


def refused(call: Callable[[], Any]) -> tuple[int, str]:
    with pytest.raises(HttpResponseError) as raised:
        call()
    error = raised.value
    return int(error.status_code or 0), str(error.error.code) if error.error else ""


def test_a_client_that_stands_still_in_its_handshake_holds_up_no_other(cloud: Cloud) -> None:
    address = urlsplit(cloud.url)
    with socket.create_connection((str(address.hostname), int(address.port or 0))):
        assert cloud.calls() == []


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
    assert "instance mnist-chief0 eastus running" in cloud.holdings()
    done(azure.resource.resource_groups.begin_delete("rg"))
    assert cloud.holdings() == []


def test_every_answer_is_one_that_the_sdks_models_know(azure: Azure, cloud: Cloud) -> None:
    azure.ground()
    identity = {"type": "SystemAssigned"}
    azure.vm("n0", zones=["1"], priority="Spot", evictionPolicy="Delete", identity=identity)
    azure.compute.proximity_placement_groups.create_or_update(
        "rg",
        "near",
        {"location": "eastus", "properties": {"proximityPlacementGroupType": "Standard"}},
    )
    checked = set()
    for thing in list(cloud.app.things.values()):
        path = f"{thing.id}?$expand=instanceView" if "virtualMachines" in thing.id else thing.id
        model = models.ResourceGroup if thing.type == GROUPS else kind_of(thing).model
        check_answer(model, azure.ask("GET", path).json())
        checked.add(thing.type)
    assert len(checked) == 8


def test_deleting_a_vm_takes_what_is_marked_and_leaves_the_rest(azure: Azure, cloud: Cloud) -> None:
    azure.ground()
    azure.vm("n0")
    body = azure.wish("n1")
    body["properties"]["storageProfile"]["osDisk"] |= {"name": "kept", "deleteOption": "Detach"}
    del body["properties"]["networkProfile"]["networkInterfaces"][0]["properties"]
    done(azure.compute.virtual_machines.begin_create_or_update("rg", "n1", body))
    ground = ["network net", "resource group rg eastus", "security group sg"]
    for name in ("n0", "n1"):
        done(azure.compute.virtual_machines.begin_delete("rg", name))
    left = ["disk kept", "network interface n1-nic", "public address n1-ip"]
    assert cloud.holdings() == sorted([*ground, *left])
    assert azure.ask("DELETE", item("virtualMachines", "n1")).status_code == 204


def test_a_second_put_of_the_same_vm_changes_nothing(azure: Azure) -> None:
    azure.ground()
    body = azure.wish("n0")
    first = done(azure.compute.virtual_machines.begin_create_or_update("rg", "n0", body))
    before = len(azure.app.operations)
    again = done(azure.compute.virtual_machines.begin_create_or_update("rg", "n0", body))
    assert (again.vm_id, len(azure.app.operations)) == (first.vm_id, before)
    read_back = azure.compute.virtual_machines.get("rg", "n0")
    done(azure.compute.virtual_machines.begin_create_or_update("rg", "n0", read_back))
    assert azure.power("n0") == "PowerState/running"


@pytest.mark.parametrize("what", ["customData", "zones", "imageReference", "adminUsername"])
def test_what_a_vm_was_made_of_cannot_be_changed(azure: Azure, what: str) -> None:
    azure.ground()
    body = azure.wish("n0", zones=["1"])
    done(azure.compute.virtual_machines.begin_create_or_update("rg", "n0", body))
    properties = body["properties"]
    if what == "zones":
        body["zones"] = ["2"]
    elif what == "imageReference":
        properties["storageProfile"]["imageReference"]["offer"] = "ubuntu-24_04-lts"
    else:
        properties["osProfile"][what] = "YQ=="
    call = azure.compute.virtual_machines.begin_create_or_update
    assert refused(lambda: call("rg", "n0", body)) == (409, "PropertyChangeNotAllowed")


# ── Who may ask ──────────────────────────────────────────────────────────────


def test_only_the_right_secret_gets_a_token(cloud: Cloud) -> None:
    asked = ClientSecretCredential(
        azure_auth.TENANT,
        azure_auth.CLIENT,
        "another secret",
        authority=cloud.url,
        disable_instance_discovery=True,
    )
    with pytest.raises(ClientAuthenticationError, match="AADSTS7000215"):
        asked.get_token(SCOPE)


def test_a_token_is_needed_that_lives_and_is_for_the_resource_manager(azure: Azure) -> None:
    path = f"/subscriptions/{SUBSCRIPTION}"
    assert azure.code("GET", path, headers={"Authorization": ""}) == (401, "AuthenticationFailed")
    wrong = azure.credential.get_token("https://storage.azure.com/.default").token
    header = {"Authorization": f"Bearer {wrong}"}
    assert azure.code("GET", path, headers=header)[1] == "InvalidAuthenticationTokenAudience"
    old = {"Authorization": f"Bearer {azure.credential.get_token(SCOPE).token}"}
    azure.app.forget_tokens()
    assert azure.code("GET", path, headers=old) == (401, "ExpiredAuthenticationToken")


def test_a_managed_identity_gets_its_token_over_plain_http(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve.serving(cloud.app) as url:
        monkeypatch.setenv("IDENTITY_ENDPOINT", url + azure_auth.IDENTITY_PATH)
        monkeypatch.setenv("IDENTITY_HEADER", azure_auth.IDENTITY_HEADER)
        token = ManagedIdentityCredential().get_token(SCOPE).token
        path = f"{url}/subscriptions/{SUBSCRIPTION}?api-version=2022-12-01"
        answer = requests.get(path, headers={"Authorization": f"Bearer {token}"}, timeout=10)
    assert answer.json()["state"] == "Enabled"


def test_every_call_names_an_api_version_that_there_is(azure: Azure) -> None:
    azure.group()
    path = item("virtualMachines", "n0")
    assert azure.code("GET", path, version="") == (400, "MissingApiVersionParameter")
    assert azure.code("GET", path, version="2021-13-01") == (400, "NoRegisteredProviderFound")
    assert azure.code("GET", path, version="latest") == (400, "InvalidApiVersionParameter")
    assert azure.code("GET", path, version="2024-07-01") == (404, "ResourceNotFound")


def test_an_older_api_version_does_not_know_newer_properties(azure: Azure) -> None:
    azure.ground()
    body = azure.wish("n0")
    answer = azure.ask("PUT", item("virtualMachines", "n0"), body, version="2020-12-01")
    assert answer.status_code == 400
    assert "deleteOption" in answer.json()["error"]["message"]


def test_what_the_caller_may_not_do_is_refused_by_its_action(azure: Azure, cloud: Cloud) -> None:
    azure.group()
    cloud.app.not_permitted = ["Microsoft.Compute/*/write"]
    expected = (403, "AuthorizationFailed")
    assert azure.code("PUT", item("virtualMachines", "n0"), {"location": "eastus"}) == expected
    (told,) = azure.ask("GET", f"{GROUP}/providers/Microsoft.Authorization/permissions").json()[
        "value"
    ]
    assert told["notActions"] == ["Microsoft.Compute/*/write"]


def test_an_unregistered_namespace_is_refused_until_it_is_registered(azure: Azure) -> None:
    azure.group()
    azure.app.unregistered = ["Microsoft.Compute"]
    path = item("virtualMachines", "n0")
    body = {"location": "eastus"}
    assert azure.code("PUT", path, body) == (409, "MissingSubscriptionRegistration")
    azure.resource.providers.register("Microsoft.Compute")
    assert azure.resource.providers.get("Microsoft.Compute").registration_state == "Registered"
    assert azure.code("PUT", path, body) == (400, "InvalidParameter")


def test_a_disabled_subscription_takes_no_writes(azure: Azure) -> None:
    azure.app.subscription_state = "Disabled"
    assert refused(azure.group) == (409, "ReadOnlyDisabledSubscription")
    told = azure.ask("GET", "/subscriptions").json()["value"]
    assert [one["state"] for one in told] == ["Disabled"]


# ── Lists ────────────────────────────────────────────────────────────────────


def test_lists_come_in_pages(azure: Azure) -> None:
    azure.app.page_size = 2
    for number in range(5):
        azure.group(f"rg{number}")
    found = [one.name for one in azure.resource.resource_groups.list()]
    assert found == [f"rg{number}" for number in range(5)]
    azure.ground("rg0")
    for name in ("n0", "n1", "n2"):
        azure.vm(name, "rg0")
    assert [one.name for one in azure.compute.virtual_machines.list_all()] == ["n0", "n1", "n2"]
    assert [one.name for one in azure.compute.virtual_machines.list("rg0")] == ["n0", "n1", "n2"]
    assert len(list(azure.resource.resources.list())) == 14


def test_things_are_found_by_tag_with_the_groups_name_in_any_case(azure: Azure) -> None:
    azure.ground()
    azure.vm("n0")
    azure.vm("other", tags={"cloudtrain-cluster": "cifar"})
    wanted = "tagName eq 'cloudtrain-cluster' and tagValue eq 'mnist'"
    found = [one.name for one in azure.resource.resources.list(filter=wanted)]
    (disk,) = [name for name in found if "OsDisk" in name]
    assert sorted(found) == ["n0", disk, "sg"], "a disk is born with the tags of its VM"
    assert [one.name for one in azure.resource.resource_groups.list(filter=wanted)] == ["rg"]
    (first, _) = azure.compute.virtual_machines.list_all(status_only="true")
    assert first.instance_view.statuses[-1].code == "PowerState/running"
    assert "/resourceGroups/RG/" in first.id
    bad = f"{wanted} and resourceType eq 'Microsoft.Compute/virtualMachines'"
    assert refused(lambda: list(azure.resource.resources.list(filter=bad)))[0] == 400


def test_a_new_vm_is_listed_late_and_told_at_once(azure: Azure) -> None:
    azure.ground()
    azure.app.lag = 60.0
    azure.vm("n0")
    assert list(azure.compute.virtual_machines.list_all()) == []
    assert azure.compute.virtual_machines.get("rg", "n0").name == "n0"
    azure.app.advance(61)
    assert [one.name for one in azure.compute.virtual_machines.list_all()] == ["n0"]


def test_the_list_of_the_subscription_may_be_behind_that_of_the_group(azure: Azure) -> None:
    azure.ground()
    azure.app.wide_lag = 60.0
    azure.vm("n0")
    assert list(azure.compute.virtual_machines.list_all()) == []
    assert [one.name for one in azure.compute.virtual_machines.list("rg")] == ["n0"]


# ── No room ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("zones", "wanted", "told"),
    [
        ([], "", "AllocationFailed"),
        (["1"], "", "ZonalAllocationFailed"),
        ([], "OverconstrainedAllocationRequest", "OverconstrainedAllocationRequest"),
    ],
)
def test_a_lack_of_room_is_told_by_the_operation_and_the_vm_stays_failed(
    azure: Azure, cloud: Cloud, zones: list[str], wanted: str, told: str
) -> None:
    azure.ground()
    before = cloud.holdings()
    cloud.app.capacity = {"eastus*": 0}
    cloud.app.capacity_code = wanted
    body = azure.wish("n0", zones=zones) if zones else azure.wish("n0")
    poller = azure.compute.virtual_machines.begin_create_or_update("rg", "n0", body)
    with pytest.raises(HttpResponseError) as raised:
        poller.result()
    assert raised.value.error is not None
    assert raised.value.error.code == told
    vm = azure.compute.virtual_machines.get("rg", "n0", expand="instanceView")
    assert vm.provisioning_state == "Failed"
    assert [one.code for one in vm.instance_view.statuses] == [f"ProvisioningState/failed/{told}"]
    done(azure.compute.virtual_machines.begin_delete("rg", "n0"))
    assert cloud.holdings() == before


def test_room_is_counted_by_place_and_size(azure: Azure, cloud: Cloud) -> None:
    azure.ground()
    cloud.app.capacity = {"eastus/Standard_NC*": 1}
    azure.vm("n0")
    with pytest.raises(HttpResponseError, match="AllocationFailed"):
        azure.vm("n1")
    done(azure.compute.virtual_machines.begin_deallocate("rg", "n0"))
    body = machine("n1", azure.network.network_interfaces.get("rg", "n1-nic").id)
    assert done(azure.compute.virtual_machines.begin_create_or_update("rg", "n1", body))
    with pytest.raises(HttpResponseError, match="AllocationFailed"):
        done(azure.compute.virtual_machines.begin_start("rg", "n0"))


def test_a_size_that_is_not_sold_there_is_refused_at_once(azure: Azure, cloud: Cloud) -> None:
    azure.ground()
    cloud.app.restricted = ["eastus-2/Standard_NC4as*"]
    call = azure.compute.virtual_machines.begin_create_or_update
    in_2, in_1 = azure.wish("n0", zones=["2"]), azure.wish("n1", zones=["1"])
    assert refused(lambda: call("rg", "n0", in_2)) == (409, "SkuNotAvailable")
    done(call("rg", "n1", in_1))
    skus = azure.compute.resource_skus.list(filter="location eq 'eastus'")
    (told,) = [one for one in skus if one.name == T4]
    (restriction,) = told.restrictions
    assert (restriction.type, restriction.restriction_info.zones) == ("Zone", ["2"])
    cloud.app.capacity, cloud.app.capacity_code = {"eastus": 1}, "SkuNotAvailable"
    assert refused(lambda: azure.vm("n2")) == (409, "SkuNotAvailable")


def test_quotas_are_told_and_kept_and_spot_has_its_own(azure: Azure, cloud: Cloud) -> None:
    azure.ground()
    cloud.app.quotas = {"cores": 6, "eastus/lowPriorityCores": 0}
    azure.vm("n0")
    told = {
        one.name.value: (one.current_value, one.limit) for one in azure.compute.usage.list("eastus")
    }
    assert told["cores"] == (4, 6)
    assert told["Standard NCASv3_T4 Family"] == (4, 2000)
    assert refused(lambda: azure.vm("n1")) == (409, "OperationNotAllowed")
    spot = {"priority": "Spot", "evictionPolicy": "Delete"}
    with pytest.raises(HttpResponseError, match="exceeding approved LowPriorityCores quota"):
        azure.vm("n2", **spot)
    cloud.app.quotas = {"IPv4StandardSkuPublicIpAddresses": 3}
    assert refused(lambda: azure.interface("n3")) == (400, "PublicIPCountLimitReached")


# ── What a body may say ──────────────────────────────────────────────────────


def put(body: Any, path: str, value: Any) -> None:
    """Writes a value at `osProfile.ssh.0.path`; None takes it out."""
    *way, last = path.split(".")
    for part in way:
        body = body[int(part)] if part.isdecimal() else body[part]
    if value is None:
        del body[last]
    else:
        body[last] = value


DISK, OS, IMAGE_AT = "storageProfile.osDisk", "osProfile", "storageProfile.imageReference"
KEY_AT = f"{OS}.linuxConfiguration.ssh.publicKeys.0"
NIC_AT = "networkProfile.networkInterfaces.0.id"
A100 = ("hardwareProfile.vmSize", "Standard_NC24ads_A100_v4")
SPOT = ("priority", "Spot")
POLICY = ("evictionPolicy", "Delete")
LARGE = base64.b64encode(bytes(65537)).decode()
NOT_CONTENT, NOT_PARAMETER = "InvalidRequestContent", "InvalidParameter"
SPOILT: dict[str, tuple[str, list[tuple[str, Any]]]] = {
    "an unknown property": (NOT_CONTENT, [("spot", True)]),
    "an unknown property deep": (NOT_CONTENT, [(f"{DISK}.sizeGB", 100)]),
    "a wrong type": (NOT_CONTENT, [(f"{DISK}.diskSizeGB", "100")]),
    "an unknown priority": (NOT_PARAMETER, [("priority", "Cheap")]),
    "an unknown size": (NOT_PARAMETER, [("hardwareProfile.vmSize", "Standard_NC6")]),
    "no size": (NOT_PARAMETER, [("hardwareProfile", None)]),
    "no createOption": (NOT_PARAMETER, [(f"{DISK}.createOption", None)]),
    "an unknown image": ("PlatformImageNotFound", [(f"{IMAGE_AT}.sku", "x")]),
    "a small disk": ("OperationNotAllowed", [(f"{DISK}.diskSizeGB", 10)]),
    "no user": (NOT_PARAMETER, [(f"{OS}.adminUsername", None)]),
    "a user that is taken": (NOT_PARAMETER, [(f"{OS}.adminUsername", "root")]),
    "no key": (NOT_PARAMETER, [(f"{OS}.linuxConfiguration.ssh", None)]),
    "no real key": (NOT_PARAMETER, [(f"{KEY_AT}.keyData", "ssh-ed25519 AAAA")]),
    "a key elsewhere": (NOT_PARAMETER, [(f"{KEY_AT}.path", "/root/.ssh/authorized_keys")]),
    "custom data as text": (NOT_PARAMETER, [(f"{OS}.customData", "#cloud-config")]),
    "too much custom data": (NOT_PARAMETER, [(f"{OS}.customData", LARGE)]),
    "spot without a policy": (NOT_PARAMETER, [SPOT]),
    "a policy without spot": (NOT_PARAMETER, [POLICY]),
    "a price of nothing": (NOT_PARAMETER, [SPOT, POLICY, ("billingProfile", {"maxPrice": 0})]),
    "generation 1 for a size of 2": ("BadRequest", [A100, (f"{IMAGE_AT}.sku", "22_04-lts")]),
    "no network": (NOT_PARAMETER, [("networkProfile", None)]),
    "no such interface": (
        "InvalidResourceReference",
        [(NIC_AT, item("networkInterfaces", "x"))],
    ),
    "no such placement group": (
        "NotFound",
        [("proximityPlacementGroup", {"id": item("proximityPlacementGroups", "x")})],
    ),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_vm_is_refused_with(azure: Azure, cloud: Cloud, what: str) -> None:
    azure.ground()
    body = azure.wish("n0")
    before = cloud.holdings()
    code, changes = SPOILT[what]
    for path, value in changes:
        put(body["properties"], path, value)
    assert azure.code("PUT", item("virtualMachines", "n0"), body)[1] == code
    assert cloud.holdings() == before


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"zones": ["4"]}, "InvalidAvailabilityZone"),
        ({"zones": ["1", "2"]}, "BadRequest"),
        ({"location": "westus"}, "InvalidResourceReference"),
        ({"location": "moon"}, "LocationNotAvailableForResourceType"),
        ({"location": None}, "LocationRequired"),
        ({"tags": {str(number): "" for number in range(51)}}, "TooManyTags"),
        ({"tags": {"a/b": ""}}, "InvalidTagNameCharacters"),
        ({"tags": {"a": 1}}, "InvalidRequestContent"),
        ({"labels": {}}, "InvalidRequestContent"),
    ],
)
def test_a_vm_is_refused_for_its(azure: Azure, changes: dict[str, Any], code: str) -> None:
    azure.ground()
    body = {**azure.wish("n0"), **changes}
    assert azure.code("PUT", item("virtualMachines", "n0"), body)[1] == code


@pytest.mark.parametrize("name", ["_n", "n-", "a" * 65, "a b"])
def test_a_name_is_refused(azure: Azure, name: str) -> None:
    azure.ground()
    body = azure.wish("n0")
    assert azure.code("PUT", item("virtualMachines", name), body)[1] == "InvalidResourceName"


# ── Networks ─────────────────────────────────────────────────────────────────

STATIC = {"publicIPAllocationMethod": "Static"}


@pytest.mark.parametrize(
    ("sku", "properties", "code"),
    [
        ({"name": "Basic"}, STATIC, "IPv4BasicSkuPublicIpCountLimitReached"),
        (None, STATIC, "IPv4BasicSkuPublicIpCountLimitReached"),
        ({"name": "Standard"}, {}, "StandardSkuPublicIPAddressesMustBeStatic"),
    ],
)
def test_a_public_address_is_standard_and_static(
    azure: Azure, sku: Any, properties: dict[str, Any], code: str
) -> None:
    azure.group()
    body = {"location": "eastus", "sku": sku, "properties": properties}
    assert azure.code("PUT", item("publicIPAddresses", "ip"), body) == (400, code)


def test_what_is_in_use_cannot_be_deleted(azure: Azure) -> None:
    azure.ground()
    azure.vm("n0")
    disk = next(azure.compute.disks.list()).name
    assert azure.code("DELETE", item("disks", disk)) == (409, "OperationNotAllowed")
    for kind, name, code in (
        ("networkInterfaces", "n0-nic", "NicInUse"),
        ("publicIPAddresses", "n0-ip", "PublicIPAddressCannotBeDeleted"),
        ("virtualNetworks", "net", "InUseSubnetCannotBeDeleted"),
        ("virtualNetworks", "net/subnets/nodes", "InUseSubnetCannotBeDeleted"),
        ("networkSecurityGroups", "sg", "InUseNetworkSecurityGroupCannotBeDeleted"),
    ):
        assert azure.code("DELETE", item(kind, name)) == (400, code)
    taken = machine("n1", item("networkInterfaces", "n0-nic"))
    assert azure.code("PUT", item("virtualMachines", "n1"), taken) == (400, "NicInUse")


def test_the_interface_of_a_deleted_vm_is_kept_for_it_a_while(azure: Azure, cloud: Cloud) -> None:
    azure.ground()
    cloud.app.nic_reserved = 180
    body = azure.wish("n0")
    del body["properties"]["networkProfile"]["networkInterfaces"][0]["properties"]
    done(azure.compute.virtual_machines.begin_create_or_update("rg", "n0", body))
    done(azure.compute.virtual_machines.begin_delete("rg", "n0"))
    call = azure.network.network_interfaces.begin_delete
    assert refused(lambda: call("rg", "n0-nic")) == (400, "NicReservedForAnotherVm")
    cloud.app.advance(181)
    done(call("rg", "n0-nic"))
    assert "network interface n0-nic" not in cloud.holdings()


def test_two_rules_of_one_priority_and_a_bad_source_are_refused(azure: Azure) -> None:
    azure.group()
    path = item("networkSecurityGroups", "sg")
    for rules, code in (
        ([rule("a", 100, "22", "*"), rule("b", 100, "23", "*")], "SecurityRuleConflict"),
        ([rule("a", 99, "22", "*")], "SecurityRuleInvalidPriority"),
        ([rule("a", 100, "22", "everywhere")], "SecurityRuleInvalidAddressPrefix"),
        ([rule("a", 100, "70000", "*")], "SecurityRuleInvalidPortRange"),
    ):
        body = {"location": "eastus", "properties": {"securityRules": rules}}
        assert azure.code("PUT", path, body) == (400, code)


def test_a_rule_and_a_subnet_can_be_changed_by_themselves(azure: Azure) -> None:
    azure.ground()
    changed = rule("ssh", 100, "22", "198.51.100.1/32")["properties"]
    done(
        azure.network.security_rules.begin_create_or_update(
            "rg", "sg", "ssh", {"properties": changed}
        )
    )
    (told,) = azure.network.security_rules.list("rg", "sg")
    assert told.source_address_prefix == "198.51.100.1/32"
    done(azure.network.security_rules.begin_delete("rg", "sg", "ssh"))
    assert azure.network.network_security_groups.get("rg", "sg").security_rules == []
    outside = {"properties": {"addressPrefix": "192.168.0.0/24"}}
    call = azure.network.subnets.begin_create_or_update
    assert refused(lambda: call("rg", "net", "more", outside)) == (400, "NetcfgInvalidSubnet")
    done(call("rg", "net", "more", {"properties": {"addressPrefix": "10.0.1.0/24"}}))
    assert [one.name for one in azure.network.subnets.list("rg", "net")] == ["nodes", "more"]


def test_what_is_not_ready_cannot_be_used_yet(azure: Azure) -> None:
    azure.ground()
    azure.app.delay = 60.0
    nic = interface_body()
    assert azure.ask("PUT", item("networkInterfaces", "nic"), nic).status_code == 201
    vm = machine("n0", item("networkInterfaces", "nic"))
    expected = (409, "ReferencedResourceNotProvisioned")
    assert azure.code("PUT", item("virtualMachines", "n0"), vm) == expected
    other = {**nic, "tags": {"a": "b"}}
    assert azure.code("PUT", item("networkInterfaces", "nic"), other)[0] == 429
    azure.app.advance(61)
    assert azure.ask("PUT", item("virtualMachines", "n0"), vm).status_code == 201


# ── Power ────────────────────────────────────────────────────────────────────


def test_a_guest_that_shuts_down_is_still_billed_until_it_is_deallocated(
    azure: Azure, cloud: Cloud
) -> None:
    azure.ground()
    azure.vm("n0")
    cloud.tell("shut_down", name="n0")
    assert azure.power("n0") == "PowerState/stopped"
    assert next(one for one in azure.compute.usage.list("eastus")).current_value == 4
    done(azure.compute.virtual_machines.begin_deallocate("rg", "n0"))
    assert azure.power("n0") == "PowerState/deallocated"
    assert next(one for one in azure.compute.usage.list("eastus")).current_value == 0
    done(azure.compute.virtual_machines.begin_start("rg", "n0"))
    assert azure.power("n0") == "PowerState/running"
    done(azure.compute.virtual_machines.begin_power_off("rg", "n0"))
    done(azure.compute.virtual_machines.begin_restart("rg", "n0"))
    assert azure.power("n0") == "PowerState/running"


def test_a_spot_vm_that_is_taken_back_goes_as_its_policy_says(azure: Azure, cloud: Cloud) -> None:
    azure.ground()
    before = cloud.holdings()
    azure.vm("n0", priority="Spot", evictionPolicy="Delete", billingProfile={"maxPrice": -1})
    cloud.tell("interrupt", name="n0")
    assert cloud.holdings() == before
    azure.vm("n1", priority="Spot", evictionPolicy="Deallocate")
    cloud.tell("interrupt", name="n1")
    assert azure.power("n1") == "PowerState/deallocated"


def test_a_schedule_deallocates_at_its_time_of_day(azure: Azure, cloud: Cloud) -> None:
    azure.ground()
    azure.vm("n0")
    soon = datetime.fromtimestamp(cloud.app.now() + 7200, timezone.utc)
    body = {
        "location": "eastus",
        "tags": TAGS,
        "properties": {
            "status": "Enabled",
            "taskType": "ComputeVmShutdownTask",
            "dailyRecurrence": {"time": f"{soon:%H%M}"},
            "timeZoneId": "UTC",
            "targetResourceId": item("virtualMachines", "n0"),
            "notificationSettings": {"status": "Disabled"},
        },
    }
    path = f"{GROUP}/providers/Microsoft.DevTestLab/schedules/shutdown-computevm-n0"
    assert azure.code("PUT", f"{path}1", body)[1] == "InvalidScheduleName"
    assert azure.ask("PUT", path, body).status_code == 201
    assert azure.ask("GET", path).json()["properties"]["dailyRecurrence"]
    cloud.advance(6000)
    assert "instance n0 eastus running" in cloud.holdings()
    cloud.advance(1300)
    assert azure.power("n0") == "PowerState/deallocated"
    assert azure.ask("DELETE", path).status_code == 200
    assert azure.ask("DELETE", path).status_code == 204


def test_a_vm_that_is_being_deleted_takes_nothing_else(azure: Azure) -> None:
    azure.ground()
    azure.vm("n0")
    azure.app.delay = 60.0
    assert azure.ask("DELETE", item("virtualMachines", "n0")).status_code == 202
    again = azure.ask("DELETE", item("virtualMachines", "n0"))
    assert (again.status_code, "Azure-AsyncOperation" in again.headers) == (202, True)
    for verb, path in (("PUT", ""), ("POST", "/start")):
        body = machine("n0", item("networkInterfaces", "n0-nic"), tags={"a": "b"})
        found = azure.code(verb, item("virtualMachines", "n0") + path, body)
        assert found == (409, "OperationNotAllowed")


# ── Groups ───────────────────────────────────────────────────────────────────


def test_a_group_that_is_being_deleted_takes_nothing_and_can_be_followed(azure: Azure) -> None:
    azure.ground()
    azure.vm("n0")
    azure.app.delay = 60.0
    answer = azure.ask("DELETE", GROUP)
    assert answer.status_code == 202
    place = answer.headers["Location"]
    assert azure.ask("GET", place).status_code == 202
    assert refused(azure.group) == (409, "ResourceGroupBeingDeleted")
    assert azure.resource.resource_groups.get("rg").properties.provisioning_state == "Deleting"
    azure.app.advance(61)
    assert azure.ask("GET", place).status_code == 200
    assert refused(lambda: azure.resource.resource_groups.get("rg")) == (
        404,
        "ResourceGroupNotFound",
    )
    assert not azure.resource.resource_groups.check_existence("rg")
    assert azure.code("DELETE", GROUP) == (404, "ResourceGroupNotFound")


def test_a_group_that_another_one_needs_is_not_deleted(azure: Azure, cloud: Cloud) -> None:
    azure.ground()
    azure.group("other")
    body = interface_body()
    done(azure.network.network_interfaces.begin_create_or_update("other", "nic", body))
    poller = azure.resource.resource_groups.begin_delete("rg")
    assert refused(poller.result) == (409, "ResourceGroupDeletionBlocked")
    assert "network net" in cloud.holdings()


def test_a_vms_identity_gets_a_role_that_goes_with_the_group(azure: Azure, cloud: Cloud) -> None:
    azure.ground()
    vm = azure.vm("n0", identity={"type": "SystemAssigned"})
    path = f"{GROUP}/providers/Microsoft.Authorization/roleAssignments/{uuid.uuid4()}"
    role = f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Authorization/roleDefinitions"
    given = {
        "roleDefinitionId": f"{role}/9980e02c-c2be-4d73-94e8-173b1dc7cf3c",
        "principalId": vm.identity.principal_id,
        "principalType": "ServicePrincipal",
    }
    wrong = {"properties": {**given, "principalId": str(uuid.uuid4())}}
    assert azure.code("PUT", path, wrong) == (400, "PrincipalNotFound")
    assert azure.ask("PUT", path, {"properties": given}).status_code == 201
    assert sum(line.startswith("role assignment") for line in cloud.holdings()) == 1
    done(azure.resource.resource_groups.begin_delete("rg"))
    assert cloud.holdings() == []


# ── What stands behind a VM ──────────────────────────────────────────────────


def test_a_node_is_started_with_the_vms_data_at_its_address_and_stopped_with_it(
    azure: Azure, cloud: Cloud
) -> None:
    cloud.app.nodes = nodes = Nodes()
    azure.ground()
    azure.vm("n0")
    address = azure.network.public_ip_addresses.get("rg", "n0-ip").ip_address
    nic = azure.network.network_interfaces.get("rg", "n0-nic")
    assert nic.ip_configurations[0].private_ip_address == address
    done(azure.compute.virtual_machines.begin_deallocate("rg", "n0"))
    done(azure.compute.virtual_machines.begin_start("rg", "n0"))
    done(azure.compute.virtual_machines.begin_restart("rg", "n0"))
    done(azure.resource.resource_groups.begin_delete("rg"))
    for thread in cloud.app._at_work.values():
        thread.join()
    start = f"start n0 #cloud-config {address}"
    assert nodes.told == [start, "halt n0", start, "halt n0", start, "stop n0"]


def test_image_versions_and_locations_are_told(azure: Azure) -> None:
    images = azure.compute.virtual_machine_images
    wanted = ("eastus", "canonical", "0001-com-ubuntu-server-jammy", "22_04-lts-gen2")
    newest = images.list(*wanted, top=1, orderby="name desc")
    assert [one.name for one in newest] == ["22.04.202507300"]
    assert images.get(*wanted, newest[0].name).hyper_v_generation == "V2"
    assert refused(lambda: images.list("eastus", "canonical", "x", "y"))[0] == 404
    told = azure.ask("GET", f"/subscriptions/{SUBSCRIPTION}/locations").json()["value"]
    zones = {one["name"]: len(one.get("availabilityZoneMappings", [])) for one in told}
    assert (zones["eastus"], zones["westus"]) == (3, 0)


def test_an_operation_that_a_test_wants_to_fail_fails(azure: Azure, cloud: Cloud) -> None:
    azure.ground()
    cloud.set(failures={"n0": "OSProvisioningTimedOut"})
    with pytest.raises(HttpResponseError, match="OSProvisioningTimedOut"):
        azure.vm("n0")
    assert "instance n0 eastus failed" in cloud.holdings()


def test_calls_are_named_for_faults(azure: Azure, cloud: Cloud) -> None:
    azure.ground()
    azure.vm("n0")
    cloud.forget_calls()
    done(azure.compute.virtual_machines.begin_restart("rg", "n0"))
    list(azure.compute.virtual_machines.list("rg"))
    azure.resource.resource_groups.get("rg")
    named = [call["action"] for call in cloud.calls() if "operation" not in call["action"]]
    expected = ["POST virtualMachines/restart n0", "LIST virtualMachines", "GET resourceGroups rg"]
    assert named == expected
    cloud.fault("answer", action="LIST virtualMachines", status=429, retry_after=1)
    assert refused(lambda: list(azure.compute.virtual_machines.list("rg"))) == (
        429,
        "TooManyRequests",
    )


# ── Ends at a date and time ──────────────────────────────────────────────────


def test_the_library_of_compute_schedule_arms_tells_and_cancels(azure: Azure, cloud: Cloud) -> None:
    library = pytest.importorskip("azure.mgmt.computeschedule")
    models = importlib.import_module("azure.mgmt.computeschedule.models")
    azure.ground()
    vm = azure.vm("n0")
    client = library.ComputeScheduleMgmtClient(azure.credential, SUBSCRIPTION, **azure.given)
    actions = client.scheduled_actions
    at = datetime.fromtimestamp(cloud.app.now() + 3600, timezone.utc)
    made = actions.virtual_machines_submit_deallocate(
        "eastus",
        models.SubmitDeallocateRequest(
            schedule=models.Schedule(deadline=at, timezone="UTC", deadline_type="InitiateAt"),
            execution_parameters=models.ExecutionParameters(),
            resources=models.Resources(ids=[vm.id]),
            correlationid="c",
        ),
    )
    (result,) = made.results
    assert result.operation.state == "Scheduled"
    asked = {"operation_ids": [result.operation.operation_id], "correlationid": "c"}
    told = actions.virtual_machines_get_operation_status(
        "eastus", models.GetOperationStatusRequest(**asked)
    )
    assert abs(told.results[0].operation.deadline.timestamp() - at.timestamp()) < 1
    gone = actions.virtual_machines_cancel_operations(
        "eastus", models.CancelOperationsRequest(**asked)
    )
    assert gone.results[0].operation.state == "Cancelled"


@pytest.mark.parametrize("ahead", [600, 7200])
def test_a_schedule_that_is_made_too_late_runs_a_day_later(ahead: int) -> None:
    now = datetime(2026, 11, 22, 9, 0, tzinfo=timezone.utc).timestamp()
    time = f"{datetime.fromtimestamp(now + ahead, timezone.utc):%H%M}"
    late = ahead < 1860
    assert first_moment(now, time, None) == now + ahead + (86400 if late else 0)


def test_a_schedule_that_is_changed_shortly_before_its_time_runs_a_day_later() -> None:
    now = datetime(2026, 11, 22, 9, 0, tzinfo=timezone.utc).timestamp()
    assert first_moment(now, "1100", "0910") == now + 7200 + 86400
    assert first_moment(now, "1100", "1000") == now + 7200
    assert first_moment(now, "0910", "0910") == now + 600 + 86400
