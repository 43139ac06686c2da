"""The stand-in for Compute Engine: driven by Google's own two clients, checked by its document."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from google.api_core import exceptions
from google.auth import jwt
from google.auth.exceptions import RefreshError
from google.auth.transport.requests import Request
from google.cloud import compute_v1
from google.oauth2 import service_account
from googleapiclient import discovery, errors

from tests.standins.gcp import GcpStandIn
from tests.standins.gcp_auth import Authority
from tests.standins.serve import serving
from tests.support import gcp_project
from tests.support.gcp_project import SCOPE, UBUNTU, ZONE, Project, gpu, vm


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[gcp_project.Project]:
    yield from gcp_project.project(tmp_path, monkeypatch)


# ── Google's own clients ───────────────────────────────────────────────────────


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


# ── Who asks ───────────────────────────────────────────────────────────────────


def test_a_call_without_a_token_is_refused(project: Project) -> None:
    answer = requests.get(f"{project.base}/zones", timeout=10)
    assert answer.status_code == 401
    assert answer.json()["error"]["errors"][0]["reason"] == "required"
    assert answer.json()["error"]["status"] == "UNAUTHENTICATED"


def test_a_token_from_elsewhere_is_refused(project: Project) -> None:
    header = {"Authorization": "Bearer ya29.somebody-else"}
    answer = requests.get(f"{project.base}/zones", headers=header, timeout=10)
    assert answer.status_code == 401
    assert answer.json()["error"]["errors"][0]["reason"] == "authError"


def test_a_token_that_was_revoked_is_asked_for_again(project: Project) -> None:
    project.get("zones")
    project.stand_in.forget_tokens()
    assert project.get("zones")["kind"] == "compute#zoneList"


@pytest.mark.parametrize("wrong", ["key", "scope", "account", "grant"])
def test_no_token_for(wrong: str, project: Project, tmp_path: Path) -> None:
    told = json.loads(project.key_file.read_text())
    scopes = [SCOPE]
    if wrong == "key":  # Somebody else's, under a known name.
        stranger = Authority().service_account(tmp_path, project.url, "test-project", "other")
        other = json.loads(stranger.read_text())
        told["private_key"] = other["private_key"]
    elif wrong == "account":
        told["client_email"] = "root@test-project.iam.gserviceaccount.com"
    elif wrong == "scope":
        scopes = ["https://www.googleapis.com/auth/devstorage.read_only"]
    else:
        answer = requests.post(f"{project.url}/token", data={"grant_type": "x"}, timeout=10)
        assert answer.json()["error"] == "unsupported_grant_type"
        return
    credentials = service_account.Credentials.from_service_account_info(told, scopes=scopes)
    with pytest.raises(RefreshError, match="invalid_"):
        credentials.refresh(Request())


def test_a_token_that_google_s_client_signed_for_itself_serves_too(project: Project) -> None:
    signed = jwt.Credentials.from_service_account_file(
        str(project.key_file), audience="https://compute.googleapis.com/"
    )
    signed.refresh(None)
    header = {"Authorization": f"Bearer {signed.token.decode()}"}
    assert requests.get(f"{project.base}/zones", headers=header, timeout=10).status_code == 200


# ── The document ───────────────────────────────────────────────────────────────


def test_what_the_document_lacks_is_not_found(project: Project) -> None:
    assert project.refusal("GET", "zones/us-east4-c/machines")[0] == 404
    assert project.refusal("PUT", f"zones/{ZONE}/instances/one")[:2] == (501, "notImplemented")
    assert project.refusal("DELETE", f"zones/{ZONE}/instances")[0] == 404


def test_what_is_not_acted_out_says_so(project: Project) -> None:
    refused = project.refusal("GET", "global/routes")
    assert refused == (
        501,
        "notImplemented",
        "This stand-in does not act out compute.routes.list",
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"nmae": "x"}, 'Unknown name "nmae": Cannot find field.'),
        ({"scheduling": {"spot": True}}, "Unknown name \"spot\" at 'scheduling'"),
        ({"disks": [{"boot": "yes"}]}, "Invalid value at 'disks[0].boot' (TYPE_BOOL), \"yes\""),
        ({"name": 5}, "Invalid value at 'name' (TYPE_STRING), 5"),
        ({"labels": {"a": 1}}, "Invalid value at 'labels.a' (TYPE_STRING), 1"),
        ({"tags": {"items": "x"}}, "Invalid value at 'tags.items' (a list), \"x\""),
        (
            {"scheduling": {"provisioningModel": "spot"}},
            "Invalid value at 'scheduling.provisioningModel' (TYPE_ENUM), \"spot\"",
        ),
        (
            {"scheduling": {"maxRunDuration": {"seconds": "an hour"}}},
            "Invalid value at 'scheduling.maxRunDuration.seconds' (TYPE_INT64)",
        ),
    ],
)
def test_a_body_that_the_document_does_not_know(
    body: dict[str, Any], message: str, project: Project
) -> None:
    status, reason, told = project.refusal("POST", f"zones/{ZONE}/instances", body)
    assert (status, reason) == (400, "badRequest")
    assert message in told


def test_a_name_is_required(project: Project) -> None:
    refused = project.refusal("POST", f"zones/{ZONE}/instances", vm(name=None))
    assert refused == (400, "required", "Required field 'resource.name' not specified")


def test_a_query_that_the_document_does_not_know(project: Project) -> None:
    assert 'Unknown name "zone"' in project.refusal("GET", "zones", zone=ZONE)[2]
    assert project.refusal("GET", "zones", maxResults="many")[0] == 400
    assert project.refusal("GET", "zones", maxResults="501")[0] == 400
    assert project.refusal("GET", "zones", pageToken="x")[0] == 400


def test_whole_numbers_may_be_text_and_text_numbers(project: Project) -> None:
    project.make(disk={"sourceImage": UBUNTU, "diskSizeGb": 60})
    assert project.get(f"zones/{ZONE}/disks/one")["sizeGb"] == "60"


def test_an_answer_that_google_would_not_give_is_a_fault(tmp_path: Path) -> None:
    stand_in = GcpStandIn()
    stand_in.things["projects/test-project/global/networks/default"].body["id"] = 5
    with serving(stand_in) as url:
        asking = Project(stand_in, url, tmp_path)
        assert asking.refusal("GET", "global/networks/default")[0] == 500
    assert "Network.id: 5 is no string" in stand_in.wrong[0]


# ── Operations ─────────────────────────────────────────────────────────────────


def test_an_operation_is_pending_then_running_then_done(project: Project) -> None:
    project.stand_in.delay = 3000
    operation = project.ask("POST", f"zones/{ZONE}/instances", vm()).json()
    path = f"zones/{ZONE}/operations/{operation['name']}"
    seen = []
    for _ in range(4):
        instance = project.get(f"zones/{ZONE}/instances/one")
        told = project.get(path)
        seen.append((told["status"], told["progress"], instance["status"]))
        project.stand_in.advance(1001)
    assert seen == [
        ("PENDING", 0, "PROVISIONING"),
        ("RUNNING", 0, "PROVISIONING"),
        ("RUNNING", 0, "STAGING"),
        ("DONE", 100, "RUNNING"),
    ]
    assert project.names(f"zones/{ZONE}/operations", filter="status=DONE") == [operation["name"]]


def test_the_same_request_again_is_the_same_operation(project: Project) -> None:
    request = str(uuid.uuid4())
    answers = [
        project.ask("POST", f"zones/{ZONE}/instances", vm(), requestId=request).json()
        for _ in range(2)
    ]
    assert answers[0]["name"] == answers[1]["name"]
    project.waited(answers[0])
    project.done("DELETE", f"zones/{ZONE}/instances/one")
    again = project.done("POST", f"zones/{ZONE}/instances", vm(), requestId=request)
    assert again["name"] == answers[0]["name"]
    assert project.stand_in.holdings() == []
    other = project.refusal("POST", f"zones/{ZONE}/instances", vm("two"), requestId=request)
    assert other[:2] == (400, "invalid")
    project.stand_in.advance(3601)
    project.done("POST", f"zones/{ZONE}/instances", vm(), requestId=request)
    assert len(project.stand_in.holdings()) == 2


@pytest.mark.parametrize("request_id", ["1", "00000000-0000-0000-0000-000000000000"])
def test_a_request_id_is_a_uuid(request_id: str, project: Project) -> None:
    refused = project.refusal("POST", "global/networks", {"name": "n"}, requestId=request_id)
    assert refused[:2] == (400, "invalid")


def test_an_operation_fails_as_a_test_wishes(project: Project) -> None:
    project.stand_in.fail("instances.insert", "RESOURCE_NOT_READY", "not now", name="two")
    assert "error" not in project.make("one")
    failed = project.make("two")
    assert failed["error"] == {"errors": [{"code": "RESOURCE_NOT_READY", "message": "not now"}]}
    assert failed["httpErrorStatusCode"] == 503
    assert "error" not in project.make("two")


def test_many_at_once(project: Project) -> None:
    with ThreadPoolExecutor(16) as threads:
        ended = list(threads.map(lambda number: project.make(f"n{number}"), range(64)))
    assert {operation["status"] for operation in ended} == {"DONE"}
    machines = project.get("aggregated/instances")["items"][f"zones/{ZONE}"]["instances"]
    addresses = {machine["networkInterfaces"][0]["networkIP"] for machine in machines}
    assert len(addresses) == 64
