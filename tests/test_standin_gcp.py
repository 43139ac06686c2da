"""The stand-in for Compute Engine, driven by Google's own two Python clients and by plain HTTP."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from google.api_core import exceptions
from google.auth.credentials import CredentialsWithRegionalAccessBoundary
from google.auth.transport.requests import AuthorizedSession
from google.cloud import compute_v1
from google.oauth2 import service_account
from googleapiclient import discovery, errors

from tests.standins.gcp import GcpStandIn
from tests.standins.serve import serving

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
ZONE = "us-east4-c"
UBUNTU = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"


class Project:
    """A stand-in that answers, and what a test asks it with."""

    def __init__(self, stand_in: GcpStandIn, url: str, folder: Path) -> None:
        self.stand_in, self.url = stand_in, url
        self.key_file = stand_in.service_account(folder, url)
        self.credentials = service_account.Credentials.from_service_account_file(
            str(self.key_file), scopes=[SCOPE]
        )
        self.http = AuthorizedSession(self.credentials)
        self.base = f"{url}/compute/v1/projects/test-project"

    def ask(self, verb: str, path: str, body: Any = None, **query: Any) -> requests.Response:
        return self.http.request(verb, f"{self.base}/{path}", json=body, params=query)

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        answer = self.ask("GET", path, **query)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    def names(self, path: str, **query: Any) -> list[str]:
        return [item["name"] for item in self.get(path, **query).get("items", [])]

    def done(self, verb: str, path: str, body: Any = None, **query: Any) -> dict[str, Any]:
        """The operation at its end."""
        answer = self.ask(verb, path, body, **query)
        assert answer.status_code == 200, answer.text
        return self.waited(answer.json())

    def waited(self, operation: dict[str, Any]) -> dict[str, Any]:
        scope = operation["selfLink"].partition("/test-project/")[2]
        told: dict[str, Any] = self.ask("POST", f"{scope}/wait").json()
        return told

    def make(self, name: str = "one", zone: str = ZONE, **changes: Any) -> dict[str, Any]:
        return self.done("POST", f"zones/{zone}/instances", vm(name, zone, **changes))

    def refusal(self, verb: str, path: str, body: Any = None, **query: Any) -> tuple[int, str, str]:
        """Status, reason, message."""
        answer = self.ask(verb, path, body, **query)
        assert answer.status_code >= 400, answer.text
        error = answer.json()["error"]
        assert error["code"] == answer.status_code
        return answer.status_code, error["errors"][0]["reason"], error["message"]

    def refused_vm(self, zone: str = ZONE, **changes: Any) -> str:
        """Why such a VM is refused, with 400 or 404."""
        status, _, message = self.refusal(
            "POST", f"zones/{zone}/instances", vm(zone=zone, **changes)
        )
        assert status in (400, 404)
        assert self.stand_in.holdings() == []
        return message


def vm(name: str = "one", zone: str = ZONE, **changes: Any) -> dict[str, Any]:
    """Parts that are None are left out."""
    machine = changes.pop("machine", "n1-standard-8")
    disk = changes.pop("disk", {"sourceImage": UBUNTU, "diskSizeGb": "50"})
    body = {
        "name": name,
        "machineType": f"zones/{zone}/machineTypes/{machine}",
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": disk}],
        "networkInterfaces": [
            {"network": "global/networks/default", "accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}
        ],
        **changes,
    }
    return {key: value for key, value in body.items() if value is not None}


def gpu(kind: str, count: int = 1, zone: str = ZONE) -> list[dict[str, Any]]:
    path = f"projects/test-project/zones/{zone}/acceleratorTypes/{kind}"
    return [{"acceleratorType": path, "acceleratorCount": count}]


SPOT = {"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"}
STAYS = {"onHostMaintenance": "TERMINATE"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    # google-auth asks iamcredentials.googleapis.com in a thread; nothing turns that off.
    monkeypatch.setattr(
        CredentialsWithRegionalAccessBoundary,
        "_is_regional_access_boundary_lookup_required",
        lambda _: False,
    )
    stand_in = GcpStandIn()
    with serving(stand_in) as url:
        yield Project(stand_in, url, tmp_path)
    assert stand_in.wrong == [], "it answered what Google never would"


# ── Google's own clients ─────────────────────────────────────────────────────


def test_google_cloud_compute_makes_lists_and_deletes(project: Project) -> None:
    def client(kind: Any) -> Any:
        return kind(credentials=project.credentials, client_options={"api_endpoint": project.url})

    networks, firewalls = client(compute_v1.NetworksClient), client(compute_v1.FirewallsClient)
    subnets, instances = client(compute_v1.SubnetworksClient), client(compute_v1.InstancesClient)
    operations = {
        "zones": client(compute_v1.ZoneOperationsClient),
        "regions": client(compute_v1.RegionOperationsClient),
        "global": client(compute_v1.GlobalOperationsClient),
    }

    def wait(operation: Any) -> None:
        """`operation.result()` would ask Google: it knows nothing of api_endpoint."""
        kind, place = operation.self_link.split("/")[7:9]
        given = {} if kind == "global" else {kind.removesuffix("s"): place}
        told = operations[kind].wait(project="test-project", operation=operation.name, **given)
        assert (told.status.name, list(told.error.errors)) == ("DONE", [])

    network = compute_v1.Network(name="net", auto_create_subnetworks=False)
    wait(networks.insert(project="test-project", network_resource=network))
    subnet = compute_v1.Subnetwork(
        name="sub", network="global/networks/net", ip_cidr_range="10.0.0.0/24"
    )
    wait(subnets.insert(project="test-project", region="us-east4", subnetwork_resource=subnet))
    firewall = compute_v1.Firewall(
        name="ssh",
        network="global/networks/net",
        allowed=[compute_v1.Allowed(I_p_protocol="tcp", ports=["22"])],
        source_ranges=["203.0.113.7/32"],
        target_tags=["ours"],
    )
    wait(firewalls.insert(project="test-project", firewall_resource=firewall))
    body = compute_v1.Instance(
        name="one",
        machine_type=f"zones/{ZONE}/machineTypes/n1-standard-8",
        labels={"owner": "us"},
        tags=compute_v1.Tags(items=["ours"]),
        disks=[
            compute_v1.AttachedDisk(
                boot=True,
                auto_delete=True,
                initialize_params=compute_v1.AttachedDiskInitializeParams(
                    source_image=UBUNTU, disk_size_gb=50
                ),
            )
        ],
        guest_accelerators=[
            compute_v1.AcceleratorConfig(
                accelerator_type=gpu("nvidia-tesla-t4")[0]["acceleratorType"], accelerator_count=1
            )
        ],
        network_interfaces=[
            compute_v1.NetworkInterface(
                subnetwork="regions/us-east4/subnetworks/sub",
                access_configs=[compute_v1.AccessConfig(type_="ONE_TO_ONE_NAT")],
            )
        ],
        scheduling=compute_v1.Scheduling(
            provisioning_model="SPOT",
            instance_termination_action="DELETE",
            max_run_duration=compute_v1.Duration(seconds=3600),
            on_host_maintenance="TERMINATE",
            automatic_restart=False,
        ),
    )
    asked = compute_v1.InsertInstanceRequest(
        project="test-project",
        zone=ZONE,
        instance_resource=body,
        request_id=str(uuid.uuid4()),
    )
    wait(instances.insert(asked))

    listed = [
        instance
        for _, scoped in instances.aggregated_list(
            request={"project": "test-project", "filter": "labels.owner=us"}
        )
        for instance in scoped.instances
    ]
    assert [(one.name, one.status, one.scheduling.preemptible) for one in listed] == [
        ("one", "RUNNING", True)
    ]
    assert project.stand_in.holdings() == [
        "disk one us-east4-c",
        "firewall ssh",
        "instance one us-east4-c RUNNING",
        "network net",
        "subnetwork sub us-east4",
    ]
    with pytest.raises(exceptions.Conflict):
        instances.insert(project="test-project", zone=ZONE, instance_resource=body)
    with pytest.raises(exceptions.BadRequest, match="already being used by"):
        networks.delete(project="test-project", network="net")
    with pytest.raises(exceptions.NotFound):
        instances.get(project="test-project", zone=ZONE, instance="two")

    wait(instances.delete(project="test-project", zone=ZONE, instance="one"))
    wait(firewalls.delete(project="test-project", firewall="ssh"))
    wait(subnets.delete(project="test-project", region="us-east4", subnetwork="sub"))
    wait(networks.delete(project="test-project", network="net"))
    assert project.stand_in.holdings() == []


def test_google_api_python_client_makes_lists_and_deletes(project: Project) -> None:
    compute = discovery.build(
        "compute",
        "v1",
        credentials=project.credentials,
        client_options={"api_endpoint": f"{project.url}/compute/v1/"},
    )

    def wait(operation: dict[str, Any]) -> dict[str, Any]:
        kind = "zone" if "zone" in operation else "global"
        given = {"zone": ZONE} if kind == "zone" else {}
        collection = getattr(compute, f"{kind}Operations")()
        told: dict[str, Any] = collection.wait(
            project="test-project", operation=operation["name"], **given
        ).execute()
        return told

    auto = {"name": "net", "autoCreateSubnetworks": True}
    made = wait(compute.networks().insert(project="test-project", body=auto).execute())
    assert (made["status"], made["progress"]) == ("DONE", 100)
    body = vm(networkInterfaces=[{"network": "global/networks/net"}])
    wait(compute.instances().insert(project="test-project", zone=ZONE, body=body).execute())
    request = compute.instances().list(project="test-project", zone=ZONE, filter="name=one")
    (found,) = request.execute()["items"]
    assert found["networkInterfaces"][0]["networkIP"].startswith("10.")
    with pytest.raises(errors.HttpError) as refused:
        compute.networks().delete(project="test-project", network="net").execute()
    assert refused.value.error_details[0]["reason"] == "resourceInUseByAnotherResource"
    wait(compute.instances().delete(project="test-project", zone=ZONE, instance="one").execute())
    wait(compute.networks().delete(project="test-project", network="net").execute())
    assert project.stand_in.holdings() == []
