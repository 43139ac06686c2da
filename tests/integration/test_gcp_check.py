"""What `check` finds at Compute Engine before anything is paid for."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from werkzeug.wrappers import Request, Response

from cloudtrain.core.errors import (
    CloudConfigError,
    CredentialsError,
    PermissionsError,
    QuotaError,
    TransientError,
)
from cloudtrain.core.model import ON_DEMAND, SPOT, Accelerator, Limits, Network, NodeGroup, SshProxy
from cloudtrain.core.protocols import Finding
from cloudtrain.providers.gcp import quota
from cloudtrain.providers.gcp.checks import os_login
from cloudtrain.providers.gcp.images import GcpImage
from cloudtrain.providers.gcp.permissions import NEEDED, OVERRIDE
from tests.standins import serve
from tests.standins.gcp_catalog import IMAGES
from tests.standins.gcp_errors import real
from tests.support.gcp_parts import T4, Gcp, groups, standing_in

ON_SPOT = {"accelerator": T4, "provisioning": SPOT}


@pytest.fixture
def gcp() -> Iterator[Gcp]:
    with standing_in() as gcp:
        yield gcp


def check(gcp: Gcp, **changes: Any) -> dict[str, Finding]:
    before = gcp.cloud.holdings()
    found = gcp.account(**changes).check(gcp.plan(**changes))
    assert gcp.cloud.holdings() == before
    return {finding.what: finding for finding in found}


def test_a_plan_that_can_be_made_is_told_in_words(gcp: Gcp) -> None:
    found = check(gcp, nodes=groups(accelerator=T4), placement=("us-east4-c",))
    assert {what: (f.ok, f.text) for what, f in found.items()} == {
        "project": (True, "test-project, credentials accepted"),
        "permissions": (True, "not reported by this endpoint"),
        "machines": (True, "3 × n1-standard-8 with T4:1 in us-east4-c"),
        "image": (
            True,
            "deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2204-nvidia-580",
        ),
        "quota": (True, "enough in us-east4"),
    }


def without(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    for key, image in list(IMAGES.items()):
        if words in image.family:
            monkeypatch.delitem(IMAGES, key)


def test_ubuntu_24_serves_once_google_has_no_22(gcp: Gcp, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "2204")
    found = check(gcp, nodes=groups(accelerator=T4), placement=("us-east4-c",))
    assert found["image"].text.endswith("/common-cu129-ubuntu-2404-nvidia-580")
    found = check(gcp, placement=("us-east4-c",))
    assert found["image"].text.endswith("/ubuntu-2404-lts-amd64")


def test_nobody_signed_in_is_the_only_finding(gcp: Gcp) -> None:
    gcp.app.authority.keys.clear()
    found = check(gcp)
    assert list(found) == ["project"]
    assert found["project"].error is CredentialsError


def test_a_project_that_does_not_exist_is_the_only_finding(gcp: Gcp) -> None:
    found = check(gcp, project="no-such-project")
    assert list(found) == ["project"]
    assert found["project"].error is CloudConfigError
    assert "no-such-project" in found["project"].text


def test_an_api_that_is_off_says_how_to_turn_it_on(gcp: Gcp) -> None:
    gcp.cloud.fault(
        "answer",
        action="projects.get",
        status=403,
        code="accessNotConfigured",
        message="Compute Engine API has not been used in project 1 before or it is disabled.",
    )
    found = check(gcp)["project"]
    assert found.error is PermissionsError
    assert "gcloud services enable compute.googleapis.com" in str(found.hint)


def test_a_subnet_that_is_not_there_is_named(gcp: Gcp) -> None:
    found = check(gcp, network=Network(subnet="no-such"))["subnet"]
    assert found.error is CloudConfigError
    assert "no-such" in found.text


def test_the_need_of_all_roles_is_summed(gcp: Gcp) -> None:
    gcp.app.quotas = {"CPUS": 23, "NVIDIA_T4_GPUS": 2, "PREEMPTIBLE_NVIDIA_T4_GPUS": 0}
    found = check(gcp, nodes=groups(accelerator=T4), placement=("us-east4-c",))["quota"]
    assert found.error is QuotaError
    assert found.text == (
        "us-east4: CPUS: 24 needed, 0 of 23 in use; NVIDIA_T4_GPUS: 3 needed, 0 of 2 in use"
    )


@pytest.mark.parametrize(
    ("metric", "changes"),
    [
        ("GPUS_ALL_REGIONS", {"nodes": groups(accelerator=T4)}),
        ("NETWORKS", {}),
        ("FIREWALLS", {}),
        ("IN_USE_ADDRESSES", {}),
        ("INSTANCES", {}),
        ("SSD_TOTAL_GB", {}),
        ("N2_CPUS", {"nodes": groups(machine="n2-standard-8")}),
        ("PREEMPTIBLE_CPUS", {"nodes": groups(provisioning=SPOT)}),
    ],
)
def test_each_quota_that_is_drawn_on_is_looked_at(
    gcp: Gcp, metric: str, changes: dict[str, Any]
) -> None:
    gcp.app.quotas = {metric: 1}
    assert f"{metric}: " in check(gcp, **changes)["quota"].text


@pytest.mark.parametrize(
    ("quota", "node", "lifetime", "enough"),
    [
        ({"NVIDIA_T4_GPUS": 0}, ON_SPOT, 3600.0, True),
        ({"PREEMPTIBLE_NVIDIA_T4_GPUS": 0}, ON_SPOT, 3600.0, True),
        ({"PREEMPTIBLE_NVIDIA_T4_GPUS": 0, "NVIDIA_T4_GPUS": 0}, ON_SPOT, 3600.0, False),
        ({"NVIDIA_T4_GPUS": 0}, {"accelerator": T4}, 3600.0, True),
        ({"NVIDIA_T4_GPUS": 0}, {"accelerator": T4}, 8 * 86400.0, False),
    ],
)
def test_gpus_of_spot_and_short_lived_nodes_may_come_from_either_quota(
    gcp: Gcp, quota: dict[str, float], node: dict[str, Any], lifetime: float, enough: bool
) -> None:
    gcp.app.quotas = quota
    limits = Limits(max_lifetime=lifetime)
    assert check(gcp, nodes=groups(**node), limits=limits)["quota"].ok == enough


def machines(name: str, kind: str, count: int, **more: Any) -> dict[str, Any]:
    return groups(machine=name, accelerator=Accelerator(kind=kind, count=count), **more)


@pytest.mark.parametrize(
    ("name", "kind", "count", "spot"),
    [
        ("a2-highgpu-1g", "A100", 1, False),
        ("a2-highgpu-1g", "A100", 1, True),
        ("a3-highgpu-8g", "H100", 8, False),
        ("a3-highgpu-8g", "H100", 8, True),
        ("g2-standard-24", "L4", 2, False),
        ("g4-standard-48", "RTXPRO6000", 1, True),
    ],
)
def test_machines_that_bring_their_gpus_draw_on_no_quota_of_cpus(
    gcp: Gcp, name: str, kind: str, count: int, spot: bool
) -> None:
    gcp.app.quotas = {"A2_CPUS": 0, "CPUS": 0, "PREEMPTIBLE_CPUS": 24, "CPUS_ALL_REGIONS": 32}
    one = {
        "chief": NodeGroup(
            count=1,
            machine=name,
            accelerator=Accelerator(kind=kind, count=count),
            provisioning=SPOT if spot else ON_DEMAND,
        )
    }
    found = check(gcp, nodes=one, placement=("us-central1",))
    assert found["quota"].ok, found["quota"]


def test_cpus_of_all_regions_are_those_of_machines_without_gpus_of_their_own(gcp: Gcp) -> None:
    gcp.app.quotas = {"CPUS_ALL_REGIONS": 16}
    found = check(gcp, placement=("us-east4-c",))["quota"]
    assert found.text == "us-east4: CPUS_ALL_REGIONS: 24 needed, 0 of 16 in use"


def test_a_quota_that_is_only_inferred_stops_nothing() -> None:
    told = {"X9_CPUS": (0.0, 0.0), "N2_CPUS": (0.0, 0.0)}
    with standing_in() as gcp:
        for machine, lines in (("x9-standard-8", 0), ("n2-standard-8", 1)):
            plan = gcp.plan(nodes=groups(machine=machine))
            images = {node.name: GcpImage(source="x") for node in plan.nodes}
            lacks = quota.shortage(plan, plan.nodes, {machine: 8}, images, told, {})
            assert (len(lacks.lines), len(lacks.inferred)) == (lines, 1 - lines)


def test_a_quota_that_is_not_told_is_not_taken_for_none(gcp: Gcp) -> None:
    plan = gcp.plan(nodes=machines("a3-highgpu-8g", "H100", 8, provisioning=SPOT))
    images = {node.name: GcpImage(source="x") for node in plan.nodes}
    told = {"PREEMPTIBLE_NVIDIA_H100_GPUS": (4.0, 0.0)}
    assert quota.shortage(plan, plan.nodes, {}, images, told, {}).lines == ()
    told["NVIDIA_H100_GPUS"] = (8.0, 0.0)
    assert quota.shortage(plan, plan.nodes, {}, images, told, {}).lines


@pytest.mark.parametrize(
    ("nodes", "place", "words"),
    [
        (groups(machine="a4x-highgpu-4g", provisioning=SPOT), "us-central1-a", "is an ARM machine"),
        (machines("g4-standard-96", "RTXPRO6000", 1), "us-east4", "RTXPRO6000:2, not RTXPRO6000:1"),
        (machines("a3-megagpu-8g", "A100", 8), "us-east4", "has H100:8, not A100:8"),
        (machines("n4d-standard-8", "T4", 1), "us-east4", "n4d-standard-8 has no accelerator"),
    ],
)
def test_what_a_zone_tells_of_a_machine_is_believed(
    gcp: Gcp, nodes: dict[str, Any], place: str, words: str
) -> None:
    found = check(gcp, nodes=nodes, placement=(place,))["machines"]
    assert found.error is CloudConfigError
    assert words in found.text


def test_an_image_whose_end_is_only_announced_is_still_taken(
    gcp: Gcp, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "common-cu129-ubuntu-2204-nvidia-580-v20261105"
    image = IMAGES["deeplearning-platform-release", name]
    for state, taken in (("ACTIVE", True), ("DEPRECATED", False), ("OBSOLETE", False)):
        monkeypatch.setitem(IMAGES, (image.project, name), replace(image, state=state))
        found = check(gcp, nodes=groups(accelerator=T4))["image"]
        assert ("cu129" in found.text) == taken


@pytest.mark.parametrize(
    ("refusal", "ok", "cure"),
    [
        (
            "api-disabled",
            True,
            "gcloud services enable cloudresourcemanager.googleapis.com --project test-project",
        ),
        # Not of the project that is meant, but of gcloud's own.
        ("quota-project-not-set", True, "set-quota-project test-project"),
        ("project-suspended", False, "appeal?project=test-project"),
    ],
)
def test_what_resource_manager_refuses_is_told_with_its_cure(
    gcp: Gcp, monkeypatch: pytest.MonkeyPatch, refusal: str, ok: bool, cure: str
) -> None:
    def answer(request: Request) -> Response:
        return real(refusal).response()

    with serve.serving(Request.application(answer)) as url:
        monkeypatch.setenv(OVERRIDE, url)
        found = check(gcp)["permissions"]
    assert found.ok == ok
    assert cure in f"{found.text} {found.hint}"


@pytest.mark.parametrize("action", ["projects.get", "regions.get", "machineTypes.*", "images.*"])
@pytest.mark.parametrize("status", [404, 501])
def test_what_an_endpoint_does_not_tell_stops_nothing(gcp: Gcp, action: str, status: int) -> None:
    gcp.cloud.fault("answer", action=action, status=status, times=999)
    found = check(gcp)
    assert all(finding.ok for finding in found.values()), found


def test_a_cloud_that_does_not_answer_is_a_finding_and_no_crash(gcp: Gcp) -> None:
    gcp.cloud.fault("reset", action="zones.list", times=999)
    assert check(gcp)["machines"].error is TransientError


def resource_manager(given: tuple[str, ...]) -> Any:
    @Request.application
    def answer(request: Request) -> Response:
        assert request.path == "/v1/projects/test-project:testIamPermissions"
        assert request.headers["Authorization"].startswith("Bearer ")
        asked = request.get_json()["permissions"]
        return Response(json.dumps({"permissions": [p for p in asked if p in given]}))

    return answer


def test_permissions_that_are_missing_are_named_where_they_can_be_asked(gcp: Gcp) -> None:
    given = tuple(p for p in NEEDED if p != "compute.networks.create")
    with serve.serving(resource_manager(given)) as url:
        os.environ[OVERRIDE] = f"{url}/"
        found = check(gcp)["permissions"]
    assert found.error is PermissionsError
    assert found.text == "missing: compute.networks.create"
    with serve.serving(resource_manager(NEEDED)) as url:
        os.environ[OVERRIDE] = url
        assert check(gcp)["permissions"].text == "all that up and down need"


def test_the_right_to_open_a_tunnel_is_asked_for_with_iap(gcp: Gcp) -> None:
    network = Network(private=True, ssh_proxy=SshProxy(iap=True))
    with serve.serving(resource_manager(NEEDED)) as url:
        os.environ[OVERRIDE] = url
        found = check(gcp, network=network)
    assert found["permissions"].text == "missing: iap.tunnelInstances.accessViaIAP"
    assert "roles/iap.tunnelResourceAccessor" in str(found["permissions"].hint)
    assert "has no Cloud NAT" in found["network"].text
    with serve.serving(resource_manager((*NEEDED, "iap.tunnelInstances.accessViaIAP"))) as url:
        os.environ[OVERRIDE] = url
        assert check(gcp, network=network)["permissions"].ok


def test_os_login_with_a_second_step_is_told(gcp: Gcp) -> None:
    network = Network(os_login=True)
    assert check(gcp, network=network)["OS Login"].text.startswith("on; nodes keep our own user")
    items = [{"key": "enable-oslogin-2fa", "value": "TRUE"}]
    assert "second step" in os_login({"commonInstanceMetadata": {"items": items}})
