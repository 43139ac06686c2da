"""The GCP driver on its stand-in: what is created, adopted, refused, rolled back, deleted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.core.errors import (
    BusyError,
    CapacityError,
    CloudConfigError,
    CredentialsError,
    LeftoverError,
    NameTakenError,
    NodesError,
    NotAskedError,
    NotFoundError,
    PermissionsError,
    RateError,
)
from cloudtrain.core.model import ON_DEMAND, SPOT, Endpoints, Network, NodeGroup, SshProxy
from cloudtrain.core.partial_list import Whereabouts
from cloudtrain.core.retry import waits_reported_to
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.driver import Location
from cloudtrain.providers.base.http import HttpClient
from cloudtrain.providers.base.provider import CloudProvider
from cloudtrain.providers.gcp.faults import TABLE
from tests.standins import serve
from tests.standins.gcp_errors import Failure
from tests.support.fakes import make_identity
from tests.support.gcp_parts import CALLER, KEY, PLACE, Gcp, groups, order, standing_in

NODES = ["mnist-chief0", "mnist-worker0", "mnist-worker1"]


@pytest.fixture
def gcp() -> Iterator[Gcp]:
    with standing_in() as gcp:
        yield gcp


def instance(gcp: Gcp, name: str = "mnist-chief0", zone: str = "us-east4-c") -> dict[str, Any]:
    body: dict[str, Any] = gcp.app.things[
        f"projects/test-project/zones/{zone}/instances/{name}"
    ].body
    return body


# ── Asking ───────────────────────────────────────────────────────────────────


def test_nothing_is_asked_before_the_first_question(gcp: Gcp) -> None:
    gcp.account()
    assert gcp.cloud.calls() == []


def test_a_machine_that_no_zone_has_is_a_mistake_of_the_config(gcp: Gcp) -> None:
    plan = gcp.plan(nodes=groups(machine="n1-standard-9"))
    with pytest.raises(CloudConfigError, match="us-east4-c has no n1-standard-9"):
        gcp.account().places(plan)


def test_a_zone_that_does_not_answer_is_told_and_hides_no_other(gcp: Gcp) -> None:
    """What runs there would be lost from sight; what runs elsewhere must not be."""
    account, plan = gcp.account(), gcp.plan()
    account.launch(order(plan, gcp.ground(account, plan)))
    gcp.app.unreachable = ["us-east1-b"]
    found = account.machines("mnist")
    assert [m.node.name for m in found] == ["mnist-chief0"]
    (silent,) = found.not_asked
    assert (silent.place, silent.denied) == ("us-east1-b", False)
    assert "is not reachable" in silent.why
    assert [each.place for each in account.resources("mnist").not_asked] == ["us-east1-b"]


def test_a_zone_that_counts_and_does_not_answer_is_an_error_and_not_an_empty_list(
    gcp: Gcp,
) -> None:
    gcp.app.unreachable = ["us-east1-b"]
    assert provider_of(gcp, "us-east4-c").nodes("mnist") == ()
    for place in ("us-east1-b", "us-east1"):
        with pytest.raises(NotAskedError, match="us-east1-b"):
            provider_of(gcp, place).nodes("mnist")
    assert gcp.slept < 10


def provider_of(gcp: Gcp, *places: str) -> CloudProvider[Any]:
    made = CloudProvider(gcp.account(), caller=lambda: "192.0.2.1/32")
    made.whereabouts = Whereabouts(cluster="mnist", places=places)
    return made


def test_a_zone_itself_knows_a_vm_before_the_list_of_the_project(gcp: Gcp) -> None:
    account, plan = gcp.account(), gcp.plan()
    gcp.app.wide_lag = 60
    account.launch(order(plan, gcp.ground(account, plan)))
    assert account.machines("mnist") == ()
    assert len(account.machines("mnist", places=["us-east4-c", "us-west1"])) == 1


@pytest.mark.parametrize("takes_ids", [True, False])
def test_a_vm_is_deleted_by_its_id_and_no_later_one_of_its_name(gcp: Gcp, takes_ids: bool) -> None:
    account, plan = gcp.account(), gcp.plan()
    gcp.app.takes_ids = takes_ids
    ground = gcp.ground(account, plan)
    first = account.launch(order(plan, ground))
    account.delete([first], ())
    assert account.machines("mnist") == ()
    second = account.launch(order(plan, ground))
    assert (second.node.name, second.id == first.id) == (first.node.name, False)
    account.delete([first], ())
    assert [m.id for m in account.machines("mnist")] == [second.id]


def test_an_endpoint_that_knows_no_partial_lists_is_asked_without(gcp: Gcp) -> None:
    words = 'Invalid JSON payload received. Unknown name "returnPartialSuccess": Cannot bind.'
    gcp.cloud.fault("answer", action="instances.agg*", status=400, message=words)
    account = gcp.account()
    assert account.machines("mnist") == ()
    assert account.machines("mnist") == ()
    assert gcp.actions.count("instances.aggregatedList") == 3


def test_a_filter_that_the_endpoint_ignores_shows_no_other_cluster(gcp: Gcp) -> None:
    account = gcp.account()
    for cluster in ("mnist", "other"):
        plan = gcp.plan(name=cluster)
        account.launch(order(plan, gcp.ground(account, plan)))
    pages = account._api.pages

    def unfiltered(what: str, path: str, **params: str) -> Any:
        params.pop("filter", None)
        return pages(what, path, **params)

    account._api.pages = unfiltered  # type: ignore[method-assign]
    assert [m.node.name for m in account.machines("mnist")] == ["mnist-chief0"]
    assert {r.cluster for r in account.resources("other")} == {"other"}
    assert len(account.machines()) == 2


# ── Ground ───────────────────────────────────────────────────────────────────


def test_the_nodes_alone_reach_each_other(gcp: Gcp) -> None:
    gcp.ground(gcp.account(), gcp.plan())
    rules = {
        path.rpartition("/")[2]: thing.body
        for path, thing in gcp.app.things.items()
        if "/firewalls/cloudtrain" in path
    }
    inside = rules["cloudtrain-mnist-inside"]
    assert "sourceRanges" not in inside
    assert inside["sourceTags"] == inside["targetTags"] == ["cloudtrain-mnist"]


def test_a_listed_node_has_the_tunnel_that_gcloud_opens_to_it(gcp: Gcp) -> None:
    network = Network(private=True, ssh_proxy=SshProxy(iap=True))
    plan, account = gcp.plan(network=network), gcp.account(network=network)
    account.launch(order(plan, gcp.ground(account, plan)))
    (machine,) = account.machines()
    assert machine.node.ssh_proxy[:4] == ("gcloud", "compute", "start-iap-tunnel", "mnist-chief0")
    assert {"--project=test-project", "--zone=us-east4-c"} < set(machine.node.ssh_proxy)


def test_a_subnet_that_exists_gets_only_the_rules(gcp: Gcp) -> None:
    network = Network(subnet="default", ssh_from=CALLER)
    account, plan = gcp.account(network=network), gcp.plan(network=network)
    ground = gcp.ground(account, plan)
    assert ground.subnetwork == "projects/test-project/regions/us-east4/subnetworks/default"
    assert gcp.cloud.holdings() == [
        "firewall cloudtrain-mnist-inside",
        "firewall cloudtrain-mnist-ssh",
    ]
    account.launch(order(plan, ground))
    assert instance(gcp)["networkInterfaces"][0]["subnetwork"].endswith(
        "us-east4/subnetworks/default"
    )


@pytest.mark.parametrize(
    ("subnet", "words"),
    [
        ("no-such", "no-such"),
        ("regions/us-west1/subnetworks/default", "is in us-west1"),
        ("a/b", "is invalid"),
    ],
)
def test_a_subnet_that_does_not_fit_is_a_mistake_of_the_config(
    gcp: Gcp, subnet: str, words: str
) -> None:
    network = Network(subnet=subnet, ssh_from=CALLER)
    with pytest.raises(CloudConfigError, match=words):
        gcp.ground(gcp.account(network=network), gcp.plan(network=network))


def test_machines_that_take_one_get_a_placement_policy_and_it_goes_with_them(gcp: Gcp) -> None:
    nodes = groups(machine="g2-standard-8")
    network = Network(ssh_from=CALLER, close="on")
    account, plan = gcp.account(nodes=nodes), gcp.plan(nodes=nodes, network=network)
    place = Location(region="us-central1", zone="us-central1-a")
    ground = gcp.ground(account, plan, place)
    made = [account.launch(order(plan, ground, n, place=place)) for n in range(3)]
    assert "resource policy cloudtrain-mnist us-central1" in gcp.cloud.holdings()
    told = instance(gcp, zone="us-central1-a")
    assert told["resourcePolicies"][0].endswith("us-central1/resourcePolicies/cloudtrain-mnist")
    account.delete(made, account.resources("mnist"))
    assert gcp.cloud.holdings() == []


@pytest.mark.parametrize(
    ("machine", "close", "grouped"),
    [
        ("g2-standard-8", "auto", False),
        ("a2-highgpu-1g", "auto", True),
        ("a2-highgpu-1g", "off", False),
        ("g2-standard-8", "on", True),
    ],
)
def test_only_machines_with_a_fast_network_stand_close_by_themselves(
    gcp: Gcp, machine: str, close: Any, grouped: bool
) -> None:
    nodes, network = groups(machine=machine), Network(ssh_from=CALLER, close=close)
    plan = gcp.plan(nodes=nodes, network=network)
    place = Location(region="us-central1", zone="us-central1-a")
    ground = gcp.ground(gcp.account(nodes=nodes), plan, place)
    assert (ground.policy is not None) == grouped


def test_a_node_alone_and_n1_get_none(gcp: Gcp) -> None:
    for nodes in ({"chief": groups(machine="g2-standard-8")["chief"]}, groups()):
        plan = gcp.plan(nodes=nodes)
        place = Location(region="us-central1", zone="us-central1-a")
        assert gcp.ground(gcp.account(nodes=nodes), plan, place).policy is None


# ── Launching ────────────────────────────────────────────────────────────────


def test_a_vm_is_labelled_tagged_and_bound_to_end_from_its_first_second(gcp: Gcp) -> None:
    account, plan = gcp.account(), gcp.plan()
    expires = gcp.app.now() + 3600
    machine = account.launch(order(plan, gcp.ground(account, plan), 1, expires=expires))
    assert (machine.node.name, machine.node.role, machine.node.index) == (
        "mnist-worker0",
        "worker",
        0,
    )
    assert machine.node.expires == pytest.approx(expires, abs=2)
    assert machine.id == instance(gcp, "mnist-worker0")["id"]
    gcp.app.advance(3601)
    gcp.app.advance(1)
    assert account.machines("mnist") == ()


def test_a_vm_that_is_on_its_way_out_is_waited_for_and_made_anew(gcp: Gcp) -> None:
    account, plan = gcp.account(), gcp.plan()
    ground = gcp.ground(account, plan)
    first = account.launch(order(plan, ground))
    gcp.app.delay = 1.0
    account._api.call("down, cut off", "DELETE", "zones/us-east4-c/instances/mnist-chief0")
    again = account.launch(order(plan, ground))
    assert again.id != first.id
    assert [m.id for m in account.machines("mnist")] == [again.id]


def test_the_same_wish_within_the_hour_makes_a_vm_again(gcp: Gcp) -> None:
    """A request id that outlived its call would be answered with the first operation."""
    account, plan = gcp.account(), gcp.plan()
    ground = gcp.ground(account, plan)
    first = account.launch(order(plan, ground))
    account.delete([first], [])
    account.launch(order(plan, ground))
    assert [m.node.name for m in account.machines("mnist")] == ["mnist-chief0"]


def test_a_vm_of_somebody_else_with_that_name_is_left_alone(gcp: Gcp) -> None:
    account, plan = gcp.account(), gcp.plan()
    ground = gcp.ground(account, plan)
    account.launch(order(plan, ground))
    instance(gcp)["labels"] = {"team": "another"}
    with pytest.raises(
        NameTakenError, match=r"creating mnist-chief0 in us-east4-c: .*already exists"
    ):
        account.launch(order(plan, ground))
    assert "instance mnist-chief0 us-east4-c RUNNING" in gcp.cloud.holdings()


@pytest.mark.parametrize(
    ("machine", "place", "spot"),
    [
        ("g4-standard-48", "us-east4-b", False),
        ("a3-megagpu-8g", "us-east4-a", False),
        ("a3-highgpu-8g-nolssd", "us-east4-a", False),
        ("a3-highgpu-1g", "us-east4-a", True),
        ("a3-ultragpu-8g-nolssd", "us-east4-b", True),
        ("a4-highgpu-8g", "us-central1-b", True),
        ("g2-standard-24", "us-east4-a", True),
        ("n4d-standard-4", "us-east4-a", False),
        ("c4-standard-4", "us-east4-a", True),
    ],
)
def test_each_family_is_asked_for_as_google_makes_it(
    gcp: Gcp, machine: str, place: str, spot: bool
) -> None:
    chief = NodeGroup(machine=machine, provisioning=SPOT if spot else ON_DEMAND)
    changes: Any = {"nodes": {"chief": chief}, "placement": (place,)}
    account, plan = gcp.account(**changes), gcp.plan(**changes)
    (found,) = account.places(plan)
    account.launch(order(plan, gcp.ground(account, plan, found), place=found))
    assert f"instance mnist-chief0 {place} RUNNING" in gcp.cloud.holdings()


@pytest.mark.parametrize(("image", "kind"), [("auto", "GVNIC"), ("own-images/plain", None)])
def test_a_vm_gets_googles_network_card_only_if_its_image_has_the_driver(
    gcp: Gcp, image: str, kind: str | None
) -> None:
    account, plan = gcp.account(image=image), gcp.plan(image=image)
    account.launch(order(plan, gcp.ground(account, plan, PLACE)))
    assert instance(gcp)["networkInterfaces"][0].get("nicType") == kind


@pytest.mark.parametrize("refused", ["preemptionNoticeDuration", "nicType"])
def test_a_wish_that_is_refused_is_left_out_and_said_once(gcp: Gcp, refused: str) -> None:
    gcp.app.unknown_fields = [refused]
    account, plan = gcp.account(), gcp.plan(nodes=groups(provisioning=SPOT))
    ground, said = gcp.ground(account, plan), list[str]()
    with waits_reported_to(said.append):
        for number in range(3):
            account.launch(order(plan, ground, number))
    assert refused not in str(instance(gcp))
    assert [line for line in said if refused in line] == said
    assert len(said) == 1
    assert gcp.actions.count("instances.insert") == 4


def test_a_network_card_that_the_image_cannot_drive_is_left_out(gcp: Gcp) -> None:
    account, plan = gcp.account(image="own-images/plain"), gcp.plan(image="own-images/plain")
    ground = gcp.ground(account, plan, PLACE)
    images = {name: replace(each, gvnic=True) for name, each in ground.images.items()}
    account.launch(order(plan, replace(ground, images=images)))
    assert "GVNIC" not in str(instance(gcp))


def test_a_disk_that_outlived_its_vm_makes_room_for_the_new_one(gcp: Gcp) -> None:
    account, plan = gcp.account(), gcp.plan()
    ground = gcp.ground(account, plan)
    account.launch(order(plan, ground))
    del gcp.app.things["projects/test-project/zones/us-east4-c/instances/mnist-chief0"]
    disk = gcp.app.things["projects/test-project/zones/us-east4-c/disks/mnist-chief0"]
    disk.body["users"] = []
    assert "disk mnist-chief0 in us-east4-c" in map(str, account.resources("mnist"))
    account.launch(order(plan, ground))
    assert [m.node.name for m in account.machines("mnist")] == ["mnist-chief0"]


@pytest.mark.parametrize(
    ("call", "refusal", "tried", "taken"),
    [
        # A policy on places names the zone; a full subnet is of the region.
        ("instances.insert us-east4-*", "place-forbidden", "us-east4-a us-east4-b", "us-west1-a"),
        ("instances.insert us-east4-*", "addresses-exhausted", "us-east4-a", "us-west1-a"),
        ("instances.insert us-east4-a", "field-unknown", "us-east4-a", "us-east4-b"),
    ],
)
def test_what_only_a_place_refuses_goes_on_to_the_next(
    gcp: Gcp, tmp_path: Path, call: str, refusal: str, tried: str, taken: str
) -> None:
    gcp.app.refuses = {call: refusal}
    plan = gcp.plan(
        placement=("us-east4-a", "us-east4-b", "us-west1-a"),
        nodes={"chief": NodeGroup(machine="n1-standard-8")},
    )
    provider = CloudProvider(gcp.account(), caller=lambda: CALLER, timing=gcp.timing())
    made = provider.create(plan, make_identity(tmp_path, plan), gcp.journal)
    refused = [line.split()[1] for line in gcp.journaled if line.startswith("refused")]
    assert refused == tried.split()
    assert [node.placement for node in made] == [taken]
    gcp.app.refuses = {"instances.insert *": "place-forbidden"}
    provider.destroy("mnist", gcp.journal)
    with pytest.raises(PermissionsError, match="us-west1-a violates constraint") as caught:
        provider.create(plan, make_identity(tmp_path, plan), gcp.journal)
    assert caught.value.message.count("violates constraint") == 3
    assert "describe gcp.resourceLocations --effective --project test-project" in str(
        caught.value.hint
    )
    assert gcp.app.holdings() == []


@pytest.mark.parametrize(
    ("call", "refusal", "cure"),
    [
        ("instances.insert *", "image-forbidden", "image: ubuntu-22.04"),
        ("instances.insert *", "external-address-forbidden", "network.ssh_proxy: iap"),
        ("subnetworks.insert *", "flow-logs-required", "network.subnet"),
    ],
)
def test_what_a_policy_forbids_everywhere_ends_the_tour_with_its_cure(
    gcp: Gcp, tmp_path: Path, call: str, refusal: str, cure: str
) -> None:
    gcp.app.refuses = {call: refusal}
    chief = {"chief": NodeGroup(machine="n1-standard-8")}
    plan = gcp.plan(placement=("us-east4-a", "us-west1-a"), nodes=chief)
    provider = CloudProvider(gcp.account(), caller=lambda: CALLER, timing=gcp.timing())
    with pytest.raises(PermissionsError, match="Constraint") as caught:
        provider.create(plan, make_identity(tmp_path, plan), gcp.journal)
    assert not [line for line in gcp.journaled if "us-west1" in line]
    assert cure in str(caught.value.hint)
    assert gcp.app.holdings() == []


def test_a_zone_that_google_says_has_room_is_tried_next(gcp: Gcp, tmp_path: Path) -> None:
    gcp.app.capacity = {"us-east4-a": 0}
    gcp.app.capacity_elsewhere = ["us-east4-c"]
    plan = gcp.plan(placement=("us-east4",))
    provider = CloudProvider(gcp.account(), caller=lambda: CALLER, timing=gcp.timing())
    made = provider.create(plan, make_identity(tmp_path, plan), gcp.journal)
    assert {node.placement for node in made} == {"us-east4-c"}
    said = next(line for line in gcp.journaled if line.startswith("refused"))
    assert "A n1-standard-8 VM instance" in said
    assert "currently unavailable in the us-east4-a zone" in said


def test_an_operation_that_fails_in_passing_is_asked_for_again(gcp: Gcp) -> None:
    account, plan = gcp.account(), gcp.plan()
    ground = gcp.ground(account, plan)
    gcp.app.fail("instances.insert", "INTERNAL_ERROR", times=2)
    account.launch(order(plan, ground))
    assert len(account.machines("mnist")) == 1


def test_an_operation_that_keeps_failing_ends_the_call(gcp: Gcp) -> None:
    account, plan = gcp.account(), gcp.plan()
    ground = gcp.ground(account, plan)
    gcp.app.fail("instances.insert", "RESOURCE_OPERATION_RATE_EXCEEDED", times=999)
    with pytest.raises(BusyError, match="creating mnist-chief0"):
        account.launch(order(plan, ground))
    assert gcp.slept < 200


def test_a_vm_that_a_failed_operation_left_is_deleted(gcp: Gcp) -> None:
    account, plan = gcp.account(), gcp.plan()
    ground = gcp.ground(account, plan)
    end = gcp.app._end

    def fail_and_leave(operation: Any) -> None:
        end(operation)
        of_vm = "/instances/" in operation.body["targetLink"]
        if of_vm and operation.done and operation.body["operationType"] == "insert":
            words = "The resource 'projects/test-project/…' was not found"
            failure = Failure(code="RESOURCE_NOT_FOUND", message=words, status=404)
            operation.body |= failure.fields()

    gcp.app._end = fail_and_leave
    with pytest.raises(CapacityError, match="was not found"):
        account.launch(order(plan, ground))
    assert account.machines("mnist") == ()


def test_a_machine_that_is_refused_is_a_mistake_of_the_config(gcp: Gcp) -> None:
    account, plan = gcp.account(), gcp.plan()
    ground = gcp.ground(account, plan)
    wrong = order(plan, ground)
    with pytest.raises(CloudConfigError, match="n1-standard-9"):
        account.launch(replace(wrong, node=replace(wrong.node, machine="n1-standard-9")))


def test_no_error_shows_the_first_boot_data(gcp: Gcp) -> None:
    """Google repeats what it refuses."""
    account, plan = gcp.account(), gcp.plan()
    wish = order(plan, gcp.ground(account, plan))
    gcp.cloud.fault(
        "answer",
        action="instances.insert",
        status=400,
        code="invalid",
        message=f"Invalid value for field 'resource.metadata.items[0].value': '{wish.user_data}'.",
    )
    with pytest.raises(CloudConfigError) as caught:
        account.launch(wish)
    assert "c2VjcmV0" not in f"{caught.value} {caught.value!r}"
    assert KEY.splitlines()[1] == "c2VjcmV0"


def test_a_stopped_vm_is_started_with_its_disk(gcp: Gcp) -> None:
    account, plan = gcp.account(), gcp.plan()
    machine = account.launch(order(plan, gcp.ground(account, plan)))
    account._api.run("stop", "POST", "zones/us-east4-c/instances/mnist-chief0/stop")
    [stopped] = account.machines("mnist")
    assert stopped.node.state == "stopped"
    end = int(stopped.node.expires or 0) - 600
    account.start(stopped, end)
    [started] = account.machines("mnist")
    assert (started.id, started.node.state) == (machine.id, "running")
    assert started.node.expires == end


def test_a_vm_without_an_end_is_started_without_one(gcp: Gcp) -> None:
    account, plan = gcp.account(), gcp.plan()
    account.launch(order(plan, gcp.ground(account, plan)))
    account._api.run("stop", "POST", "zones/us-east4-c/instances/mnist-chief0/stop")
    [stopped] = account.machines("mnist")
    account.start(stopped, None)
    body = account._api.get("it", "zones/us-east4-c/instances/mnist-chief0")
    assert "maxRunDuration" not in body["scheduling"]
    assert labels.EXPIRES not in body["labels"]


def test_a_vm_that_is_still_stopping_is_waited_for_and_started(gcp: Gcp) -> None:
    account, plan = gcp.account(), gcp.plan()
    machine = account.launch(order(plan, gcp.ground(account, plan)))
    gcp.app.delay = 1.0
    account._api.call("stop", "POST", "zones/us-east4-c/instances/mnist-chief0/stop")
    account.start(machine, machine.node.expires)
    [started] = account.machines("mnist")
    assert started.node.state == "running"


# ── HTTP ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "answer", "status": 429, "retry_after": 7},
        {"kind": "answer", "status": 500},
        {"kind": "answer", "status": 503, "code": "backendError"},
        {"kind": "answer", "status": 403, "code": "rateLimitExceeded"},
        {"kind": "reset"},
        {"kind": "reset", "after": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("action", ["networks.insert", "instances.insert", "*Operations.wait"])
def test_what_fails_in_passing_is_asked_again_and_makes_nothing_twice(
    gcp: Gcp, fault: dict[str, Any], action: str
) -> None:
    gcp.cloud.fault(**fault, action=action)
    account, plan = gcp.account(), gcp.plan()
    ground = gcp.ground(account, plan)
    for number in range(3):
        account.launch(order(plan, ground, number))
    assert sorted(m.node.name for m in account.machines("mnist")) == NODES
    assert gcp.slept >= fault.get("retry_after", 0)
    account.delete(account.machines("mnist"), account.resources("mnist"))
    assert gcp.cloud.holdings() == []


def test_a_call_that_is_throttled_for_ever_ends_as_such(gcp: Gcp) -> None:
    gcp.cloud.fault("answer", action="instances.*", status=429, times=999)
    with pytest.raises(RateError, match="instances: "):
        gcp.account().machines("mnist")


def test_an_endpoint_that_cannot_wait_is_asked_how_far_it_is(gcp: Gcp) -> None:
    gcp.cloud.fault("answer", action="*Operations.wait", status=404, times=999)
    account, plan = gcp.account(), gcp.plan()
    account.launch(order(plan, gcp.ground(account, plan)))
    assert gcp.actions.count("globalOperations.wait") == 1
    assert "zoneOperations.get" in gcp.actions


def test_a_token_that_was_revoked_is_renewed(gcp: Gcp) -> None:
    account = gcp.account()
    assert account.machines("mnist") == ()
    gcp.app.forget_tokens()
    assert account.machines("mnist") == ()


def test_credentials_that_google_does_not_take_stop_at_once(gcp: Gcp) -> None:
    gcp.app.authority.keys.clear()
    with pytest.raises(CredentialsError, match="invalid_grant"):
        gcp.account().machines("mnist")
    assert gcp.slept == 0


def test_no_credentials_at_all_say_how_to_get_some(
    gcp: Gcp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    with pytest.raises(CredentialsError) as caught:
        gcp.account().machines("mnist")
    assert "gcloud auth application-default login" in str(caught.value.hint)


def test_the_endpoints_of_the_config_go_before_the_environments(gcp: Gcp) -> None:
    os.environ["CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"] = "http://127.0.0.1:9/"
    told = Endpoints(compute=gcp.cloud.url, auth=f"{gcp.cloud.url}/token")
    assert gcp.account(endpoints=told).machines("mnist") == ()


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://host/", "http://", "http://h:x/"])
def test_an_endpoint_that_is_none_is_a_mistake_of_the_config(gcp: Gcp, url: str) -> None:
    with pytest.raises(CloudConfigError, match="is not an endpoint"):
        gcp.account(endpoints=Endpoints(compute=url))


def test_the_project_of_the_credentials_serves_where_no_other_is_named(gcp: Gcp) -> None:
    del os.environ["GOOGLE_CLOUD_PROJECT"]
    assert gcp.account(project=None).machines("mnist") == ()


# ── Erasing ──────────────────────────────────────────────────────────────────


def test_all_of_a_cluster_is_erased_in_the_order_that_google_needs(gcp: Gcp) -> None:
    account, plan = gcp.account(), gcp.plan()
    ground = gcp.ground(account, plan)
    machines = [account.launch(order(plan, ground, number)) for number in range(3)]
    resources = account.resources("mnist")
    assert [str(resource) for resource in resources] == [
        "firewall cloudtrain-mnist-inside",
        "firewall cloudtrain-mnist-ssh",
        "subnetwork cloudtrain-mnist in us-east4",
        "network cloudtrain-mnist",
    ]
    assert {resource.owner for resource in resources} == {m.owner for m in machines}
    account.delete(machines, resources)
    assert gcp.cloud.holdings() == []


def test_a_network_in_use_is_tried_again_and_told_in_the_end(gcp: Gcp) -> None:
    """A VM of somebody else in it: all but the network and its subnetwork go."""
    account, plan = gcp.account(), gcp.plan()
    machine = account.launch(order(plan, gcp.ground(account, plan)))
    resources = account.resources("mnist")
    with pytest.raises(NodesError, match="is already being used by") as caught:
        account.delete([], resources)
    assert set(caught.value.failures) == {
        "network cloudtrain-mnist",
        "subnetwork cloudtrain-mnist in us-east4",
    }
    assert [str(r) for r in account.resources("mnist")] == [
        "subnetwork cloudtrain-mnist in us-east4",
        "network cloudtrain-mnist",
    ]
    account.delete([machine], account.resources("mnist"))
    assert gcp.cloud.holdings() == []


def test_a_rule_of_somebody_else_in_our_network_is_named_at_once(gcp: Gcp, tmp_path: Path) -> None:
    plan = gcp.plan(placement=("us-east4-c",))
    provider = CloudProvider(gcp.account(), caller=lambda: CALLER, timing=gcp.timing())
    provider.create(plan, make_identity(tmp_path, plan), gcp.journal)
    network = gcp.app.things["projects/test-project/global/networks/cloudtrain-mnist"]
    body = {"name": "tensorboard", "network": network.body["selfLink"]}
    path = "projects/test-project/global/firewalls/tensorboard"
    gcp.app.add(path, "firewall", {**body, "direction": "INGRESS", "allowed": []})
    slept = gcp.slept
    with pytest.raises(LeftoverError, match=r"already being used by '.*/tensorboard'") as caught:
        provider.destroy("mnist", gcp.journal)
    assert gcp.slept - slept < 30
    assert "run `gcloud compute firewall-rules delete tensorboard --project test-project`" in str(
        caught.value.hint
    )
    del gcp.app.things[path]
    provider.destroy("mnist", gcp.journal)
    assert gcp.cloud.holdings() == []


def test_nothing_is_tried_that_a_living_vm_uses(gcp: Gcp) -> None:
    account, plan = gcp.account(), gcp.plan()
    machine = account.launch(order(plan, gcp.ground(account, plan)))
    denial = {"status": 403, "code": "forbidden", "message": "Required permission"}
    gcp.cloud.fault("answer", action="instances.delete", times=99, **denial)
    gcp.cloud.forget_calls()
    with pytest.raises(PermissionsError):
        account.delete([machine], account.resources("mnist"))
    assert not [action for action in gcp.actions if action.endswith(("works.delete", "ls.delete"))]
    assert gcp.slept < 5


def test_a_path_that_google_does_not_know_is_no_deleted_thing(gcp: Gcp) -> None:
    """What is listed without its region has it from the list's own scope."""
    account, plan = gcp.account(), gcp.plan()
    gcp.ground(account, plan)
    for thing in gcp.app.things.values():
        if thing.collection == "subnetworks":
            thing.body.pop("region", None)
    resources = account.resources("mnist")
    assert "subnetwork cloudtrain-mnist in us-east4" in map(str, resources)
    nowhere = [replace(r, region="") for r in resources if r.kind == "subnetwork"]
    with pytest.raises(NotFoundError):
        account.delete([], nowhere)


def test_an_endpoint_that_knows_no_disks_or_policies_holds_none(gcp: Gcp) -> None:
    account, plan = gcp.account(), gcp.plan()
    gcp.ground(account, plan)
    for action in ("disks.*", "resourcePolicies.*"):
        gcp.cloud.fault("answer", action=action, status=501, times=99)
    account.delete([], account.resources("mnist"))
    assert gcp.cloud.holdings() == []


def test_clusters_whose_names_go_on_where_another_ends_keep_apart(gcp: Gcp) -> None:
    account = gcp.account()
    for cluster in ("mnist", "mnist-ssh"):
        gcp.ground(account, gcp.plan(name=cluster))
    account.delete([], account.resources("mnist"))
    assert [str(r) for r in account.resources()] == [
        "firewall cloudtrain-mnist-ssh-inside",
        "firewall cloudtrain-mnist-ssh-ssh",
        "subnetwork cloudtrain-mnist-ssh in us-east4",
        "network cloudtrain-mnist-ssh",
    ]


def test_a_users_own_authorities_are_trusted_and_a_netrc_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """requests' own variable, as google-auth takes it; a netrc would replace the token."""
    folder = tmp_path / "tls"
    folder.mkdir()
    context = serve.certificate(folder)
    seen: list[str] = []

    def app(environ: dict[str, str], start_response: Any) -> list[bytes]:
        seen.append(environ.get("HTTP_AUTHORIZATION", ""))
        start_response("200 OK", [("Content-Type", "application/json")])
        return [b"{}"]

    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(folder / "standin.crt"))
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password mine\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with serve.serving(app, 0, context) as url:
        token = {"Authorization": "Bearer token"}
        client = HttpClient("gcp", "Google Cloud", TABLE)
        assert client.ask("x", url, "GET", "projects/x", headers=token).ok
    assert seen == ["Bearer token"]


def test_of_a_long_serial_log_the_end_is_read(gcp: Gcp) -> None:
    plan, account = gcp.plan(), gcp.account()
    machine = account.launch(order(plan, gcp.ground(account, plan)))
    assert account.serial_log(machine) == ""
    log = "\n".join(f"line {n}" + "." * 1000 for n in range(40))
    gcp.cloud.set(serial_logs={"mnist-chief0": log})
    told = [line.rstrip(".") for line in account.serial_log(machine).splitlines()]
    assert (told[-1], told[-10]) == ("line 39", "line 30")
