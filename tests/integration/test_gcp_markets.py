"""How machines are bought on Google Cloud: flex-start, reservations, the evidence on spot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.cluster.drift import drift
from cloudtrain.core.errors import (
    CapacityError,
    CloudConfigError,
    NodesError,
    PermissionsError,
    QuotaError,
)
from cloudtrain.core.events import NodeRequested, to_line
from cloudtrain.core.model import SPOT, Accelerator, NodeGroup, Plan, Provisioning
from cloudtrain.providers.base.driver import Location
from cloudtrain.providers.base.provider import CloudProvider
from cloudtrain.providers.gcp import listing, permissions
from tests.support.fakes import make_identity
from tests.support.gcp_parts import CALLER, Gcp, order, standing_in

FLEX = Provisioning(market="flex-start")
MINE = Provisioning(market="reservation", name="mine")
ZONE = Location(region="us-central1", zone="us-central1-a")
BLOCKS = "projects/test-project/zones/us-central1-a/reservations/mine"


@pytest.fixture
def gcp() -> Iterator[Gcp]:
    with standing_in() as gcp:
        yield gcp


def bought(how: Provisioning, machine: str = "a3-highgpu-8g", **changes: Any) -> dict[str, Any]:
    group = NodeGroup(machine=machine, provisioning=how, count=2)
    return {"nodes": {"worker": group}, "strategy": "custom", "placement": (ZONE.zone,), **changes}


def provider(gcp: Gcp, **changes: Any) -> CloudProvider[Any]:
    return CloudProvider(gcp.account(**changes), caller=lambda: CALLER, timing=gcp.timing())


def created(gcp: Gcp, folder: Path, **changes: Any) -> list[str]:
    plan = gcp.plan(**changes)
    nodes = provider(gcp, **changes).create(plan, make_identity(folder, plan), gcp.journal)
    return [f"{node.name} {node.placement} {node.provisioning}" for node in nodes]


def body(gcp: Gcp, name: str = "mnist-worker0") -> dict[str, Any]:
    (thing,) = [
        thing
        for path, thing in gcp.app.things.items()
        if path.endswith(f"/{name}") and "/instances/" in path
    ]
    found: dict[str, Any] = thing.body
    return found


def findings(gcp: Gcp, **changes: Any) -> dict[str, str]:
    found = provider(gcp, **changes).check(gcp.plan(**changes))
    return {each.what: f"{each.ok} {each.text}" for each in found}


# ── flex-start ───────────────────────────────────────────────────────────────


def test_a_flex_start_vm_is_asked_for_as_google_sells_it(gcp: Gcp) -> None:
    changes = bought(FLEX)
    account, plan = gcp.account(**changes), gcp.plan(**changes)
    request = order(plan, gcp.ground(account, plan, ZONE), place=ZONE, expires=None)
    machine = account.launch(replace(request, queue=1800.0, expires=gcp.app.now() + 3600))
    assert machine.node.provisioning == FLEX
    told = body(gcp)
    assert told["scheduling"]["provisioningModel"] == "FLEX_START"
    assert told["scheduling"]["maxRunDuration"] == {"seconds": "3600"}
    assert told["scheduling"]["instanceTerminationAction"] == "DELETE"
    assert told["scheduling"]["onHostMaintenance"] == "TERMINATE"
    assert told["reservationAffinity"] == {"consumeReservationType": "NO_RESERVATION"}
    assert told["params"] == {"requestValidForDuration": {"seconds": "1800"}}


def test_flex_start_vms_that_are_there_at_once_run(gcp: Gcp, tmp_path: Path) -> None:
    assert created(gcp, tmp_path, **bought(FLEX)) == [
        "mnist-worker0 us-central1-a flex-start",
        "mnist-worker1 us-central1-a flex-start",
    ]


def test_a_request_waits_in_the_queue_of_the_last_zone(gcp: Gcp, tmp_path: Path) -> None:
    gcp.app.flex_start = {"": 900.0}
    begun = gcp.slept
    found = created(gcp, tmp_path, **bought(FLEX, placement=("us-central1-b", "us-central1-a")))
    assert [each.split()[1] for each in found] == ["us-central1-a"] * 2
    assert 700 < gcp.slept - begun < 1000  # The clock goes on by itself as well.
    refused = [line for line in gcp.journaled if line.startswith("refused us-central1-b")]
    assert "does not have enough resources available" in refused[0]


def test_a_request_that_waits_in_vain_ends_in_googles_words(gcp: Gcp, tmp_path: Path) -> None:
    gcp.app.flex_start = {"": 5000.0}
    with pytest.raises(CapacityError, match="does not have enough resources available") as caught:
        created(gcp, tmp_path, **bought(FLEX))
    assert caught.value.exit_code == 3
    assert gcp.app.holdings() == []


def test_no_node_is_billed_for_long_while_another_waits(gcp: Gcp, tmp_path: Path) -> None:
    gcp.app.flex_start = {"mnist-worker1": 1700.0}
    with pytest.raises(
        CapacityError, match="mnist-worker1: no capacity 10 min after mnist-worker0"
    ):
        created(gcp, tmp_path, **bought(FLEX))
    assert gcp.app.holdings() == []


def test_a_request_in_the_queue_is_found_and_deleted(gcp: Gcp) -> None:
    """What `down` and `gc` find after `kill -9`."""
    gcp.app.flex_start = {"": 1700.0}
    changes = bought(FLEX)
    account, plan = gcp.account(**changes), gcp.plan(**changes)
    request = order(plan, gcp.ground(account, plan, ZONE), place=ZONE)
    machine = account.launch(replace(request, queue=1800.0))
    assert machine.node.state == "starting"
    assert "instance mnist-worker0 us-central1-a PENDING" in gcp.cloud.holdings()
    assert [each.cluster for each in provider(gcp, **changes).sweep()] == ["mnist"]
    provider(gcp, **changes).destroy("mnist", gcp.journal)
    assert gcp.app.holdings() == []
    gcp.app.advance(2000.0)
    assert gcp.app.holdings() == []


def test_an_up_that_begins_again_adopts_what_is_in_the_queue(gcp: Gcp, tmp_path: Path) -> None:
    gcp.app.flex_start = {"": 1200.0}
    changes = bought(FLEX)
    account, plan = gcp.account(**changes), gcp.plan(**changes)
    ground = gcp.ground(account, plan, ZONE)
    for number in (0, 1):
        account.launch(replace(order(plan, ground, number, place=ZONE), queue=1800.0))
    assert len(created(gcp, tmp_path, **changes)) == 2
    assert gcp.actions.count("instances.insert") == 2


def test_flex_start_vms_draw_on_the_preemptible_quota(gcp: Gcp) -> None:
    gcp.app.quotas = {"PREEMPTIBLE_NVIDIA_A100_GPUS": 1, "NVIDIA_A100_GPUS": 0}
    found = findings(gcp, **bought(FLEX, "a2-highgpu-1g"))
    assert found["quota"].startswith("False us-central1: PREEMPTIBLE_NVIDIA_A100_GPUS: 2 needed")
    changes = bought(FLEX, "a2-highgpu-2g")
    account, plan = gcp.account(**changes), gcp.plan(**changes)
    with pytest.raises(QuotaError, match="PREEMPTIBLE_NVIDIA_A100_GPUS"):
        account.launch(order(plan, gcp.ground(account, plan, ZONE), place=ZONE))


def test_a_stopped_flex_start_vm_is_started_with_what_is_left_of_its_time(gcp: Gcp) -> None:
    changes = bought(FLEX)
    account, plan = gcp.account(**changes), gcp.plan(**changes)
    account.launch(order(plan, gcp.ground(account, plan, ZONE), place=ZONE))
    gcp.app.shut_down("mnist-worker0")
    gcp.app.advance(1.0)
    (machine,) = account.machines("mnist")
    account.start(machine, gcp.app.now() + 3000.0)
    assert body(gcp)["scheduling"]["maxRunDuration"] == {"seconds": "3000"}
    assert body(gcp)["status"] == "RUNNING"


# ── reservations ─────────────────────────────────────────────────────────────


def reserve(gcp: Gcp, path: str = BLOCKS, **facts: Any) -> None:
    gcp.app.reservations[path] = {"machine": "a3-highgpu-8g", "count": 4, **facts}


def test_nodes_are_created_where_their_reservation_is(gcp: Gcp, tmp_path: Path) -> None:
    reserve(gcp)
    gcp.app.capacity = {"us-central1-*": 0}
    found = created(gcp, tmp_path, **bought(MINE, placement=("us-central1",)))
    assert found == [
        "mnist-worker0 us-central1-a reservation mine",
        "mnist-worker1 us-central1-a reservation mine",
    ]
    told = body(gcp)
    assert told["scheduling"]["provisioningModel"] == "STANDARD"
    assert told["reservationAffinity"] == {
        "consumeReservationType": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": ["mine"],
    }


@pytest.mark.parametrize(
    ("machine", "zone", "dense"),
    [("a4-highgpu-8g", "us-central1-b", False), ("a3-highgpu-8g", "us-central1-a", True)],
)
def test_vms_of_a_dense_reservation_end_with_it(
    gcp: Gcp, tmp_path: Path, machine: str, zone: str, dense: bool
) -> None:
    path = f"projects/test-project/zones/{zone}/reservations/mine"
    reserve(gcp, path, machine=machine, dense=dense)
    created(gcp, tmp_path, **bought(MINE, machine, placement=(zone,)))
    scheduling = body(gcp)["scheduling"]
    assert scheduling["provisioningModel"] == "RESERVATION_BOUND"
    assert scheduling["instanceTerminationAction"] == "DELETE"
    assert "maxRunDuration" in scheduling


def test_a_shared_reservation_is_named_with_its_project(gcp: Gcp, tmp_path: Path) -> None:
    reserve(gcp, "projects/other/zones/us-central1-a/reservations/pool")
    shared = Provisioning(market="reservation", name="projects/other/reservations/pool")
    changes = bought(shared)
    assert created(gcp, tmp_path, **changes)[0].endswith(f"reservation {shared.name}")
    plan = gcp.plan(**changes)
    lines = [to_line(NodeRequested(node=node.name), time=1.0, pid=1) for node in plan.nodes]
    nodes = provider(gcp, **changes).nodes("mnist")
    assert "provisioning" not in {each.field for each in drift(plan, nodes, lines).changes}
    own = Provisioning(market="reservation", name="projects/test-project/reservations/mine")
    with pytest.raises(CloudConfigError, match="is in this project"):
        provider(gcp, **bought(own)).create(
            gcp.plan(**bought(own)), make_identity(tmp_path, plan), gcp.journal
        )


def test_the_name_of_a_reservation_of_the_project_is_listed_short() -> None:
    listed = {
        "selfLink": "https://www.googleapis.com/compute/v1/projects/p/zones/z-a/instances/i",
        "reservationAffinity": {
            "consumeReservationType": "SPECIFIC_RESERVATION",
            "values": ["projects/p/reservations/mine"],
        },
    }
    assert listing._provisioning(listed) == MINE


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({}, "True mine in us-central1-a: 4 of 4 free, 2 needed"),
        ({"count": 1}, "False reservation mine in us-central1-a: 2 needed, 1 of 1 free"),
        ({"assured": 1}, "False reservation mine in us-central1-a: 2 needed, 1 of 1 free"),
        ({"status": "CREATING"}, "False reservation mine in us-central1-a is CREATING, not READY"),
        (
            {"machine": "a3-megagpu-8g"},
            "False reservation mine in us-central1-a is of a3-megagpu-8g, but nodes.worker has "
            "a3-highgpu-8g",
        ),
        (
            {"specific": False},
            "True mine in us-central1-a: 4 of 4 free, 2 needed; any VM of the project may take it "
            "(specificReservationRequired is false)",
        ),
        (
            {"ends": 4_102_444_800.0},
            "True mine in us-central1-a: 4 of 4 free, 2 needed; it ends 2100-01-01 00:00 UTC",
        ),
    ],
)
def test_check_says_what_is_free_of_a_reservation(
    gcp: Gcp, facts: dict[str, Any], text: str
) -> None:
    reserve(gcp, **facts)
    found = findings(gcp, **bought(MINE))
    assert found["reservation"] == text
    assert "a3-highgpu-8g with H100:8, reservation mine in us" in found["machines"]


@pytest.mark.parametrize(("dense", "text"), [(True, "end then"), (False, "do on demand")])
def test_a_reservation_that_ends_early_is_told(gcp: Gcp, dense: bool, text: str) -> None:
    reserve(gcp, ends=gcp.app.now() + 3600, dense=dense)
    assert findings(gcp, **bought(MINE))["reservation"].endswith(text)


def test_a_reservation_that_is_not_there_is_told_with_its_zones(gcp: Gcp) -> None:
    found = findings(gcp, **bought(MINE))
    assert found["machines"] == "False placement us-central1-a has no reservation mine"


def test_gpus_attached_to_a_reservation_must_match(gcp: Gcp) -> None:
    worker = NodeGroup(
        machine="n1-standard-8",
        accelerator=Accelerator(kind="T4", count=1),
        provisioning=MINE,
        count=1,
    )
    changes = {**bought(MINE), "nodes": {"worker": worker}}
    reserve(gcp, machine="n1-standard-8", accelerator=("nvidia-tesla-t4", 2))
    assert findings(gcp, **changes)["reservation"].endswith(
        "has nvidia-tesla-t4:2, but nodes.worker nvidia-tesla-t4:1"
    )
    reserve(gcp, machine="n1-standard-8", accelerator=("nvidia-tesla-t4", 1))
    assert findings(gcp, **changes)["reservation"].startswith("True")


def test_nodes_in_a_reservation_need_no_quota_of_gpus(gcp: Gcp) -> None:
    reserve(gcp, machine="a2-highgpu-1g")
    gcp.app.quotas = {"NVIDIA_A100_GPUS": 0, "PREEMPTIBLE_NVIDIA_A100_GPUS": 0}
    gcp.app.quotas["GPUS_ALL_REGIONS"] = 0
    assert findings(gcp, **bought(MINE, "a2-highgpu-1g"))["quota"].startswith("True enough in")


@pytest.mark.parametrize(
    ("facts", "kind", "words"),
    [
        ({"count": 1}, CapacityError, "does not have available resources for the request"),
        ({"status": "UPDATING"}, CapacityError, "to be in READY state"),
        ({"machine": "a3-megagpu-8g"}, CloudConfigError, "No available resources in specified"),
    ],
)
def test_a_refusal_is_in_googles_words(
    gcp: Gcp, tmp_path: Path, facts: dict[str, Any], kind: type[Exception], words: str
) -> None:
    reserve(gcp, **facts)
    with pytest.raises((kind, NodesError), match=words):
        created(gcp, tmp_path, **bought(MINE))
    assert gcp.app.holdings() == []


def test_a_node_of_a_reservation_is_replaced_in_it(gcp: Gcp, tmp_path: Path) -> None:
    reserve(gcp, count=2)
    created(gcp, tmp_path, **bought(MINE))
    account = gcp.account(**bought(MINE))
    account.delete([m for m in account.machines("mnist") if m.node.name == "mnist-worker1"], ())
    assert len(created(gcp, tmp_path, **bought(MINE))) == 2


# ── spot ─────────────────────────────────────────────────────────────────────


def test_spot_zones_are_tried_by_googles_advice(gcp: Gcp, tmp_path: Path) -> None:
    changes = bought(SPOT, placement=("us-central1",))
    gcp.app.obtainability = {"us-central1-a": 0.3, "us-central1-b": 0.4, "us-central1-c": 0.9}
    gcp.app.capacity = {"us-central1-c": 0}
    assert [each.split()[1] for each in created(gcp, tmp_path, **changes)] == ["us-central1-b"] * 2
    (line,) = [line for line in gcp.journaled if line.startswith("spot order")]
    assert line.endswith(
        "us-central1-c 0.9, us-central1-b 0.4, us-central1-a 0.3 (Google's capacity advice: "
        "obtainability from 0 to 1)"
    )


def test_zones_of_which_google_says_nothing_and_attached_gpus_have_no_evidence(gcp: Gcp) -> None:
    def places(plan: Plan, **changes: Any) -> list[str]:
        account = provider(gcp, **changes)
        return [f"{each.place} {each.text}" for each in account.spot_evidence(plan)]

    changes = bought(SPOT, placement=("us-central1",))
    assert places(gcp.plan(**changes), **changes) == []
    gcp.app.obtainability = {"us-central1-c": 0.9}
    assert places(gcp.plan(**changes), **changes) == ["us-central1-c 0.9"]
    worker = NodeGroup(
        machine="n1-standard-8", accelerator=Accelerator(kind="T4", count=1), provisioning=SPOT
    )
    changes |= {"nodes": {"worker": worker}}
    assert places(gcp.plan(**changes), **changes) == []


def test_evidence_that_may_not_be_asked_for_costs_one_call(gcp: Gcp, tmp_path: Path) -> None:
    changes = bought(SPOT, placement=("us-central1",))
    plan = gcp.plan(**changes)
    gcp.app.granted = list(permissions.NEEDED)
    with pytest.raises(PermissionsError, match=r"compute\.advice\.capacity"):
        provider(gcp, **changes).spot_evidence(plan)
    assert gcp.actions.count("advice.capacity") == 1
    assert len(created(gcp, tmp_path, **changes)) == 2
