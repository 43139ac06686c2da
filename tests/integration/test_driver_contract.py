"""What the driver of every cloud does alike, on its stand-in: places, network, one VM per request.

tests/integration/test_provider_contract.py asks the same of whole clusters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cloudtrain.core.errors import CapacityError, CloudConfigError, NameTakenError, QuotaError
from cloudtrain.core.events import Event, ResourceRequested
from cloudtrain.core.model import NodeGroup
from cloudtrain.core.protocols import Finding
from cloudtrain.providers.base.driver import Location
from tests.support.aws_parts import with_spot
from tests.support.driver_rig import CALLER, RIGS, Rig
from tests.support.gcp_parts import T4, groups


@pytest.fixture(params=RIGS)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with RIGS[request.param]() as rig:
        yield rig


# ── Places ───────────────────────────────────────────────────────────────────

V100 = {"chief": NodeGroup(machine="Standard_NC6s_v3")}


@pytest.mark.parametrize(
    ("rig", "nodes", "placement", "places"),
    [
        (
            "aws",  # T4 are not in 1e
            {"chief": NodeGroup(machine="g4dn.xlarge")},
            "us-west-2 us-east-1f us-east-1",
            "us-west-2a us-west-2b us-west-2c "
            "us-east-1f us-east-1a us-east-1b us-east-1c us-east-1d",
        ),
        ("azure", V100, "East-US westus eastus-2", "eastus-1 eastus westus eastus-2"),
        ("gcp", groups(), "us-east4-c us-east4", "us-east4-c us-east4-a us-east4-b"),
        ("gcp", groups(accelerator=T4), "us-west1", "us-west1-a us-west1-b"),
    ],
    indirect=["rig"],
)
def test_a_region_is_its_zones_that_have_the_machines_in_the_placements_order(
    rig: Rig, nodes: dict[str, NodeGroup], placement: str, places: str
) -> None:
    """Azure's region itself comes after its zones."""
    entries = tuple(entry.replace("East-US", "East US") for entry in placement.split())
    plan = rig.plan(nodes=nodes, placement=entries)
    assert [str(place) for place in rig.account(plan).places(plan)] == places.split()


@pytest.mark.parametrize(
    ("rig", "entry", "words", "nearest"),
    [
        ("aws", "eu-west-11", "region eu-west-11 does not exist", "did you mean eu-west-1"),
        ("aws", "us-east-9", "region us-east-9 does not exist", "did you mean us-east-1"),
        ("aws", "us-east-1x", "zone us-east-1x does not exist", "did you mean us-east-1"),
        ("aws", "us-east4-c", "'us-east4-c' is not a zone or region of AWS", "as us-east-1a"),
        ("aws", "europe", "'europe' is not a zone or region of AWS", "such as us-east-1a"),
        ("azure", "eastuss", "no region eastuss for this subscription", "did you mean eastus"),
        ("azure", "eastus-7", "no zone eastus-7", "has eastus-1, eastus-2, eastus-3"),
        ("gcp", "us-east44-c", "no zone or region us-east44-c", "us-east4-c"),
    ],
    indirect=["rig"],
)
def test_a_place_that_does_not_exist_is_told_with_the_nearest(
    rig: Rig, entry: str, words: str, nearest: str
) -> None:
    for placement in ((entry,), (str(rig.here), entry)):
        plan = rig.plan(placement=placement)
        with pytest.raises(CloudConfigError, match=words) as caught:
            rig.account(plan).places(plan)
        assert nearest in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(
    ("rig", "unknown", "refusal"),
    [
        ("azure", ("LIST skus", "LIST locations"), {"status": 404, "code": "NotFound"}),
        ("gcp", ("machineTypes.*",), {"status": 501}),
    ],
    indirect=["rig"],
)
def test_an_endpoint_without_a_catalogue_of_machines_is_taken_at_the_configs_word(
    rig: Rig, unknown: tuple[str, ...], refusal: dict[str, Any]
) -> None:
    for action in unknown:
        rig.cloud.fault("answer", action=action, times=99, **refusal)
    region, zone = rig.here.region, str(rig.here)
    nodes = {"chief": NodeGroup(machine="n9-quantum-1")}
    placement = (region, zone) if rig.cloud.name == "azure" else (zone,)
    plan = rig.plan(nodes=nodes, placement=placement)
    assert tuple(str(place) for place in rig.account(plan).places(plan)) == placement


# ── Network ──────────────────────────────────────────────────────────────────


def test_a_network_that_is_there_is_adopted_without_a_change(rig: Rig) -> None:
    plan = rig.plan()
    made, held = rig.ground(plan), rig.cloud.holdings()
    rig.cloud.forget_calls()
    entries: list[str] = []
    again = rig.ground(plan, journal=lambda event: entries.append(event.word))
    assert (again, set(entries), rig.cloud.holdings()) == (made, {"image"}, held)
    assert rig.calls()
    assert rig.writes() == []


def test_ssh_alone_is_open_and_only_to_the_caller_wherever_that_is_now(rig: Rig) -> None:
    plan = rig.plan()
    rig.ground(plan)
    assert rig.ssh_sources() == [CALLER]
    rig.cloud.forget_calls()
    rig.ground(plan, "198.51.100.9/32")
    assert rig.ssh_sources() == ["198.51.100.9/32"]
    assert len(rig.writes()) == rig.moves_caller


@pytest.mark.parametrize("rig", RIGS, indirect=True)
def test_without_a_caller_ssh_is_open_to_nobody(rig: Rig) -> None:
    """As where AWS's Session Manager or a tunnel is the way in: its agent connects outwards."""
    plan = rig.plan()
    rig.ground(plan)
    for _ in range(2):
        rig.ground(plan, "")
        assert rig.ssh_sources() == []
        assert rig.lets_itself_in()


@pytest.mark.parametrize(
    ("rig", "first", "then"),
    [
        (
            "aws",
            "security group cloudtrain-mnist",
            ["placement group cloudtrain-mnist-us-east-1a"],
        ),
        (
            "azure",
            "resource group cloudtrain-mnist-eastus",
            [
                "network security group cloudtrain-mnist",
                "proximity placement group cloudtrain-mnist-eastus-1",
                "virtual network cloudtrain-mnist",
            ],
        ),
        (
            "gcp",
            "network cloudtrain-mnist",
            [
                "firewall cloudtrain-mnist-inside",
                "firewall cloudtrain-mnist-ssh",
                "subnetwork cloudtrain-mnist",
            ],
        ),
    ],
    indirect=["rig"],
    ids=RIGS,
)
def test_each_thing_is_announced_before_it_is_made(rig: Rig, first: str, then: list[str]) -> None:
    announced: list[str] = []

    def journal(event: Event, /) -> None:
        if isinstance(event, ResourceRequested):
            assert not any(is_that(held, event) for held in rig.cloud.holdings())
            announced.append(f"{event.what} {event.name}")
            asked.append(event)

    asked: list[ResourceRequested] = []
    rig.ground(rig.plan(), journal=journal)
    assert (announced[0], sorted(announced[1:])) == (first, then)
    held = rig.cloud.holdings()
    assert len(held) == len(asked)
    assert all(any(is_that(one, event) for event in asked) for one in held)


def is_that(held: str, asked: ResourceRequested) -> bool:
    """Whether the line of the account names what was announced."""
    kind, found, _ = f"{held} ".partition(f" {asked.name} ")
    return bool(found) and f" {asked.what}".endswith(f" {kind}")


def test_a_network_of_somebody_else_is_never_taken(rig: Rig) -> None:
    rig.take_the_name()
    plan, held = rig.plan(), rig.cloud.holdings()
    rig.cloud.forget_calls()
    with pytest.raises(NameTakenError, match="cloudtrain did not create it"):
        rig.ground(plan)
    assert (rig.cloud.holdings(), rig.writes()) == (held, [])
    assert rig.account(plan).resources("mnist") == ()


# ── VMs ──────────────────────────────────────────────────────────────────────


def test_a_vm_of_an_earlier_call_is_adopted(rig: Rig) -> None:
    plan = rig.plan()
    order = rig.order(plan, rig.ground(plan))
    account = rig.account(plan)
    first = account.launch(order)
    assert account.launch(order).id == first.id
    assert rig.account(plan).launch(order).id == first.id
    assert [m.id for m in account.machines("mnist")] == [first.id]
    assert len(rig.vms()) == 1


THROTTLED: dict[str, dict[str, Any]] = {
    "aws": {"status": 503, "code": "RequestLimitExceeded"},
    "azure": {"status": 429, "code": "TooManyRequests"},
    "gcp": {"status": 403, "code": "rateLimitExceeded"},
}


@pytest.mark.parametrize("after", [False, True], ids=["before the work", "after the work"])
@pytest.mark.parametrize("fault", ["reset", 500, 503, "throttled"])
def test_an_unanswered_launch_makes_one_vm(rig: Rig, fault: str | int, after: bool) -> None:
    plan = rig.plan()
    ground = rig.ground(plan)
    if rig.cloud.name == "azure":
        rig.cloud.set(delays={"virtualMachines": 0.2})
    kind, answer = "answer", THROTTLED[rig.cloud.name]
    if fault == "reset":
        kind, answer = "reset", {}
    elif fault != "throttled":
        answer = {"status": fault}
    rig.cloud.fault(kind, action=rig.launch_call, after=after, **answer)
    made = rig.account(plan).launch(rig.order(plan, ground))
    assert [m.id for m in rig.account(plan).machines("mnist")] == [made.id]
    assert len(rig.vms()) == 1


@pytest.mark.parametrize("rig", ["azure", "gcp"], indirect=True)
def test_lists_are_read_to_their_last_page(rig: Rig) -> None:
    plan = rig.plan()
    rig.launched(plan, 3)
    rig.one_on_each_page()
    found = {machine.node.name: machine.node for machine in rig.account(plan).machines("mnist")}
    assert sorted(found) == ["mnist-chief0", "mnist-worker0", "mnist-worker1"]
    assert all(node.address for node in found.values())


def test_what_is_gone_already_is_fine(rig: Rig) -> None:
    plan = rig.plan()
    account, machines = rig.account(plan), rig.launched(plan)
    resources = account.resources("mnist")
    for _ in range(2):
        account.delete(machines, resources)
    assert rig.cloud.holdings() == []


@pytest.mark.parametrize(
    ("rig", "machine", "end"),
    [
        ("aws", "m5.large", "\r"),
        ("aws", "m4.large", "\r"),
        ("azure", "Standard_D4s_v5", "\r\n\n\0\0"),
        ("gcp", "n1-standard-8", ""),
    ],
    indirect=["rig"],
    ids=["aws", "aws-xen", "azure", "gcp"],
)
def test_the_serial_log_of_a_vm_is_to_be_had_without_a_key(
    rig: Rig, machine: str, end: str
) -> None:
    """Azure's by a link that bears its own right: our token stays with Resource Manager."""
    plan = rig.plan(nodes={"chief": NodeGroup(machine=machine)})
    account, (vm,) = rig.account(plan), rig.launched(plan)
    assert account.serial_log(vm) == ""
    lines = f"{end[:1]}\n".join(f"line {n}" for n in range(40))
    rig.cloud.set(serial_logs={"mnist-chief0": lines + end})
    told = account.serial_log(vm).splitlines()
    assert (told[0], told[-1], len(told)) == ("line 20", "line 39", 20)
    rig.cloud.set(serial_logs={})
    assert account.serial_log(vm) == ""


EXHAUSTED = "ZONE_RESOURCE_POOL_EXHAUSTED"
ANYWHERE = Location(region="eastus")


@pytest.mark.parametrize(
    ("rig", "room", "place", "code", "scope"),
    [
        ("aws", "m5.large us-east-1a", None, "InsufficientInstanceCapacity", "zone"),
        ("azure", "eastus-1", None, "ZonalAllocationFailed", "zone"),
        ("azure", "eastus", ANYWHERE, "AllocationFailed", "region"),
        ("azure", "eastus-1", None, "OverconstrainedZonalAllocationRequest", "zone"),
        ("azure", "eastus-1", None, "SkuNotAvailable", "zone"),
        ("azure", "eastus", ANYWHERE, "SkuNotAvailable", "region"),
        ("gcp", "us-east4-c", None, EXHAUSTED, "zone"),
        ("gcp", "us-east4-c", None, f"{EXHAUSTED}_WITH_DETAILS", "zone"),
        ("gcp", "us-east4-c", None, "insufficientCapacity", "zone"),
        ("gcp", "us-east4-c", None, "RESOURCE_NOT_READY", "zone"),
        ("gcp", "us-east4-c", None, "UNSUPPORTED_OPERATION", "zone"),
    ],
    indirect=["rig"],
)
def test_a_vm_that_there_is_no_room_for_leaves_nothing_behind(
    rig: Rig, room: str, place: Location | None, code: str, scope: str
) -> None:
    words = {
        "aws": r"do not have sufficient m5\.large",
        "azure": code,
        "gcp": r"mnist-chief0 in us-east4-c: .*enough resources",
    }
    rig.cloud.set(capacity={room: 0}, capacity_code=code)
    plan = rig.plan()
    ground = rig.ground(plan, place=place)
    before = rig.cloud.holdings()
    with pytest.raises(CapacityError, match=words[rig.cloud.name]) as caught:
        rig.account(plan).launch(rig.order(plan, ground, place=place))
    assert caught.value.scope == scope
    assert rig.cloud.name == "gcp" or caught.value.code == code
    assert rig.cloud.holdings() == before
    assert rig.account(plan).machines("mnist") == ()


@pytest.mark.parametrize(
    ("rig", "settings", "words", "scope"),
    [
        ("aws", {"quotas": {"L-1216C47A": 1}}, "vCPU limit of 1", "region"),
        ("azure", {"quotas": {"eastus/cores": 3}}, "exceeding approved Total Regional", "region"),
        *(
            ("gcp", {"quotas": {quota: 0}, "refused_at_once": at_once}, words, scope)
            for quota, words, scope in (
                ("us-east4/NVIDIA_T4_GPUS", "NVIDIA_T4_GPUS", "region"),
                ("GPUS_ALL_REGIONS", "GPUS_ALL_REGIONS", "account"),
            )
            for at_once in (True, False)
        ),
    ],
    indirect=["rig"],
)
def test_a_quota_reaches_over_its_region_or_over_all(
    rig: Rig, settings: dict[str, Any], words: str, scope: str
) -> None:
    """Google refuses a creation at once, or by its operation."""
    plan = rig.plan(nodes=groups(accelerator=T4)) if "refused_at_once" in settings else rig.plan()
    ground = rig.ground(plan)
    before = rig.cloud.holdings()
    rig.cloud.set(**settings)
    with pytest.raises(QuotaError, match=words) as caught:
        rig.account(plan).launch(rig.order(plan, ground))
    assert caught.value.scope == scope
    assert rig.cloud.name != "aws" or "L-1216C47A" in (caught.value.hint or "")
    assert rig.cloud.holdings() == before


def test_a_spot_vm_is_deleted_when_it_is_taken_back(rig: Rig) -> None:
    plan = with_spot(rig.plan())
    (machine,) = rig.launched(plan)
    assert machine.node.spot
    rig.account(plan).machines("mnist", rig.here)
    rig.cloud.tell("interrupt", name="mnist-chief0")
    rig.pass_a_minute()
    left = rig.account(plan).machines("mnist")
    assert all(m.node.state == "gone" for m in left)
    # AWS lists what has ended for an hour, with the reason.
    assert [type(m.error) for m in left] == ([CapacityError] if rig.cloud.name == "aws" else [])
    words = ("instance", "virtual machine", "disk")
    assert not [h for h in rig.cloud.holdings() if h.startswith(words)]


# ── Check ────────────────────────────────────────────────────────────────────


def findings(rig: Rig, what: str, **changes: Any) -> list[Finding]:
    """Of the plan that is changed so; nothing is made."""
    plan, held = rig.plan(**changes), rig.cloud.holdings()
    found = [each for each in rig.account(plan).check(plan) if each.what == what]
    assert rig.cloud.holdings() == held
    return found


@pytest.mark.parametrize(
    ("rig", "machine", "words"),
    [
        ("aws", "g4dn.huge", "g4dn.huge is not available in us-east-1"),
        ("azure", "Standard_NC6", "Standard_NC6"),
        ("gcp", "n1-standard-9", "us-east4-c has no n1-standard-9"),
    ],
    indirect=["rig"],
)
def test_a_machine_that_is_not_there_is_named(rig: Rig, machine: str, words: str) -> None:
    nodes = {"chief": NodeGroup(machine=machine)}
    (found,) = findings(rig, "machines", nodes=nodes, placement=(str(rig.here),))
    assert (found.ok, found.error) == (False, CloudConfigError)
    assert words in found.text
    assert rig.cloud.name != "gcp" or findings(rig, "quota", nodes=nodes) == []


@pytest.mark.parametrize(
    ("rig", "image", "words"),
    [
        ("gcp", "debian-cloud/debian-99", "debian-99"),
        ("azure", "Canonical:nothing:server:latest", "no image Canonical:nothing:server:latest"),
        ("azure", "Canonical:ubuntu-24_04-lts:server:1.2.3", "versions are 24.04.202506060"),
        ("azure", "ubuntu", "image 'ubuntu' is invalid on Azure"),
        (
            "azure",
            "Canonical:ubuntu-24_04-lts:server-arm64:latest",
            "is for Arm64, but nodes are x86-64",
        ),
        (
            "azure",
            "nvidia:ngc_azure_17_11:ngc-base-version-24_10_1_gen2:latest",
            "the terms of image nvidia:ngc_azure_17_11:ngc-base-version-24_10_1_gen2:latest are "
            "not accepted in this subscription",
        ),
        (
            "azure",
            "microsoft-dsvm:ubuntu-2204:2204-gen2:latest",
            "needs 128 GB, but the disk of mnist-chief0 has 64",
        ),
    ],
    indirect=["rig"],
)
def test_an_image_that_is_not_there_is_named(rig: Rig, image: str, words: str) -> None:
    found = next(each for each in findings(rig, "image", image=image) if not each.ok)
    assert found.error is CloudConfigError
    assert words in found.text


@pytest.mark.parametrize(
    ("rig", "quotas", "words"),
    [
        ("azure", {"eastus/cores": 0}, "eastus: cores: 12 needed, 0 of 0 left"),
        (
            "gcp",
            {"us-east4/CPUS": 10},
            "enough in us-central1, not in us-east4: CPUS: 24 needed",
        ),
    ],
    indirect=["rig"],
)
def test_a_region_that_lacks_quota_is_no_trouble_where_another_has_it(
    rig: Rig, quotas: dict[str, int], words: str
) -> None:
    rig.cloud.set(quotas=quotas)
    found = findings(rig, "quota")
    assert found[0].text.startswith(words)
    assert all(each.ok for each in found)
    assert len(found) == (2 if rig.cloud.name == "azure" else 1)


@pytest.mark.parametrize(
    ("rig", "quotas"),
    [("aws", {"L-1216C47A": 6}), ("azure", {"cores": 12}), ("gcp", {"CPUS": 24})],
    indirect=["rig"],
)
def test_nodes_that_exist_need_no_more_quota(rig: Rig, quotas: dict[str, int]) -> None:
    rig.launched(rig.plan(), 3)
    rig.cloud.set(quotas=quotas)
    here = {"placement": (str(rig.here) if rig.cloud.name != "azure" else "eastus",)}
    assert [each.ok for each in findings(rig, "quota", **here)] == [True]
    if rig.cloud.name != "azure":
        assert [each.ok for each in findings(rig, "quota", name="other", **here)] == [False]
