"""The stand-in for Compute Engine: networks, subnetworks, firewalls, placement policies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import gcp_project
from tests.support.gcp_project import ZONE, Project, vm


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[gcp_project.Project]:
    yield from gcp_project.project(tmp_path, monkeypatch)


NET = {"name": "net", "autoCreateSubnetworks": False}
SUBNET = {"name": "sub", "network": "global/networks/net", "ipCidrRange": "10.0.0.0/24"}
RULE = {
    "name": "ssh",
    "network": "global/networks/net",
    "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}],
    "sourceRanges": ["203.0.113.7/32"],
}


def test_a_network_goes_last(project: Project) -> None:
    project.done("POST", "global/networks", NET)
    project.done("POST", "regions/us-east4/subnetworks", SUBNET)
    project.done("POST", "global/firewalls", RULE)
    project.make(networkInterfaces=[{"subnetwork": "regions/us-east4/subnetworks/sub"}])
    in_use = (400, "resourceInUseByAnotherResource")
    assert project.refusal("DELETE", "global/networks/net")[:2] == in_use
    assert project.refusal("DELETE", "regions/us-east4/subnetworks/sub")[:2] == in_use
    project.done("DELETE", f"zones/{ZONE}/instances/one")
    project.done("DELETE", "regions/us-east4/subnetworks/sub")
    refused = project.refusal("DELETE", "global/networks/net")
    assert refused[2] == (
        "The network resource 'projects/test-project/global/networks/net' is already being used "
        "by 'projects/test-project/global/firewalls/ssh'"
    )
    project.done("DELETE", "global/firewalls/ssh")
    project.done("DELETE", "global/networks/net")
    assert project.stand_in.holdings() == []


def test_what_is_being_made_or_deleted_is_not_ready(project: Project) -> None:
    project.stand_in.delay = 1000
    project.ask("POST", "global/networks", NET)
    assert project.refusal("POST", "global/networks", NET)[:2] == (409, "alreadyExists")
    assert project.refusal("POST", "regions/us-east4/subnetworks", SUBNET)[1] == "resourceNotReady"
    project.stand_in.advance(1001)
    project.ask("DELETE", "global/networks/net")
    assert project.refusal("DELETE", "global/networks/net")[1] == "resourceNotReady"
    project.stand_in.advance(1001)
    assert project.refusal("DELETE", "global/networks/net")[:2] == (404, "notFound")


def test_an_automatic_network_has_subnetworks_of_its_own(project: Project) -> None:
    project.done("POST", "global/networks", {"name": "net", "autoCreateSubnetworks": True})
    assert project.names("regions/us-west1/subnetworks") == ["default", "net"]
    project.done("DELETE", "global/networks/net")
    assert project.names("regions/us-west1/subnetworks") == ["default"]


def test_legacy_networks_and_those_of_own_subnetworks(project: Project) -> None:
    assert project.refusal("POST", "global/networks", {"name": "net"})[1] == "invalid"
    project.done("POST", "global/networks", NET)
    body = vm(networkInterfaces=[{"network": "global/networks/net"}])
    assert (
        "Subnetwork should be specified"
        in project.refusal("POST", f"zones/{ZONE}/instances", body)[2]
    )
    project.done("POST", "regions/us-east4/subnetworks", SUBNET)
    twice = {**SUBNET, "name": "again"}
    assert "conflicts with" in project.refusal("POST", "regions/us-east4/subnetworks", twice)[2]
    body = vm(networkInterfaces=[{"subnetwork": "regions/us-west1/subnetworks/sub"}])
    assert "cannot be found" in project.refusal("POST", f"zones/{ZONE}/instances", body)[2]


@pytest.mark.parametrize(
    "change",
    [
        {"network": "global/networks/none"},
        {"sourceRanges": ["203.0.113.7/24"]},
        {"sourceRanges": ["everywhere"]},
        {"allowed": [{"IPProtocol": "icmp", "ports": ["22"]}]},
        {"allowed": [{"IPProtocol": "tcp", "ports": ["ssh"]}]},
        {"allowed": [{"ports": ["22"]}]},
        {"allowed": []},
        {"denied": [{"IPProtocol": "all"}]},
        {"targetTags": ["Ours"]},
        {"priority": 70000},
        {"destinationRanges": ["10.0.0.0/8"]},
        {"name": "Ssh"},
    ],
)
def test_a_firewall_that_is_refused(change: dict[str, Any], project: Project) -> None:
    project.done("POST", "global/networks", NET)
    assert project.refusal("POST", "global/firewalls", {**RULE, **change})[0] == 400


def test_a_firewall_is_changed(project: Project) -> None:
    project.done("POST", "global/networks", NET)
    project.done("POST", "global/firewalls", RULE)
    change = {"name": "ssh", "sourceRanges": ["198.51.100.1/32"]}
    project.done("PATCH", "global/firewalls/ssh", change)
    found = project.get("global/firewalls/ssh")
    assert (found["sourceRanges"], found["allowed"][0]["ports"]) == (["198.51.100.1/32"], ["22"])
    assert project.refusal("PUT", "global/firewalls/ssh", {"name": "ssh"})[1] == "invalid"
    project.done("PUT", "global/firewalls/ssh", {**RULE, "sourceRanges": ["192.0.2.1/32"]})
    assert project.get("global/firewalls/ssh")["sourceRanges"] == ["192.0.2.1/32"]


def test_a_placement_policy_holds_families_that_can_be_placed(project: Project) -> None:
    policy = {"name": "near", "groupPlacementPolicy": {"collocation": "COLLOCATED"}}
    project.done("POST", "regions/us-east4/resourcePolicies", policy)
    near = ["regions/us-east4/resourcePolicies/near"]
    body = vm(resourcePolicies=near)
    assert "Compact placement" in project.refusal("POST", f"zones/{ZONE}/instances", body)[2]
    project.make(resourcePolicies=near, machine="n2-standard-8")
    refused = project.refusal("DELETE", "regions/us-east4/resourcePolicies/near")
    assert refused[1] == "resourceInUseByAnotherResource"
    project.done("DELETE", f"zones/{ZONE}/instances/one")
    project.done("DELETE", "regions/us-east4/resourcePolicies/near")
    assert project.stand_in.holdings() == []
