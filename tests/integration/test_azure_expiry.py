"""Azure's two ways to end a VM at its deadline, on the stand-in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.core.errors import (
    BusyError,
    CapacityError,
    CloudConfigError,
    LeftoverError,
    NodesError,
    PermissionsError,
    TransientError,
)
from cloudtrain.core.model import Limits, Plan
from cloudtrain.core.retry import Clock
from cloudtrain.providers.azure.provider import AzureDriver
from cloudtrain.providers.base.driver import Location, Vm
from cloudtrain.providers.base.provider import CloudProvider
from cloudtrain.providers.base.timing import Timing
from tests.standins.azure_world import SUBSCRIPTION
from tests.standins.cloud import Cloud
from tests.support.azure_parts import (
    CALLER,
    FAST,
    HERE,
    account_of,
    ground_of,
    order_of,
    plain,
    silent,
    stand_in,
)
from tests.support.fakes import make_identity

GROUP = "cloudtrain-mnist-eastus"
MINUTE, HOUR = 60.0, 3600.0
DEADLINES = "Microsoft.ComputeSchedule"


@pytest.fixture
def azure() -> Iterator[Cloud]:
    with stand_in() as cloud:
        yield cloud


@pytest.fixture(params=["deadlines", "schedules alone"])
def either(azure: Cloud, request: pytest.FixtureRequest) -> Cloud:
    """With and without Microsoft.ComputeSchedule."""
    if request.param == "schedules alone":
        azure.set(absent=[DEADLINES])
    return azure


@pytest.fixture
def plan(azure: Cloud) -> Plan:
    return plain(azure)


class Hands:
    """A user whose clock goes with the cloud's."""

    def __init__(self, azure: Cloud, folder: Path, **changes: Any) -> None:
        self.azure, self.skew = azure, 0.0
        self.timing: Timing = replace(FAST, clock=Clock(now=lambda: time.time() + self.skew))
        self.plan = plain(azure, **changes)
        self.identity = make_identity(folder, self.plan)
        self.account = account_of(self.plan, self.timing)
        self.provider = CloudProvider(self.account, caller=lambda: CALLER, timing=self.timing)

    def up(self, nodes: int = 3) -> float:
        """So many nodes of the plan; when all of them end."""
        plan = replace(self.plan, nodes=self.plan.nodes[:nodes])
        self.provider.create(plan, self.identity, silent)
        (end,) = {round(node.expires or 0.0) for node in self.provider.nodes("mnist")}
        return end - self.timing.clock.now()

    def later(self, seconds: float) -> None:
        self.skew += seconds
        self.azure.advance(seconds)
        FAST.clock.sleep(0.05)

    def states(self) -> set[str]:
        return {node.state for node in self.provider.nodes("mnist")}


def first(plan: Plan, account: AzureDriver, place: Location = HERE, **given: Any) -> Vm:
    ground = ground_of(account, plan, place)
    return account.launch(order_of(plan, plan.nodes[0], ground, place=place, **given))


def arm(account: AzureDriver) -> Any:
    return account._arm


def schedule(account: AzureDriver, node: str = "mnist-chief0") -> Any:
    return arm(account).get(arm(account).group(GROUP).schedule(node))


def operations(azure: Cloud) -> list[str]:
    return [one.state for one in azure.app.deadlines.values()]


# ── At its second ────────────────────────────────────────────────────────────


@pytest.mark.parametrize("minutes", [35.0, 36.5, 12 * 60.0, 23 * 60 + 58.0])
def test_a_cluster_ends_when_it_was_promised(either: Cloud, tmp_path: Path, minutes: float) -> None:
    """A schedule fires at its minute; a deadline to the second."""
    hands = Hands(either, tmp_path, limits=Limits(max_lifetime=minutes * MINUTE))
    left = hands.up()
    assert abs(left - minutes * MINUTE) < MINUTE  # The clock goes on while this machine computes.
    hands.later(left - 61.0)
    assert hands.states() == {"running"}
    hands.later(63.0)
    assert hands.states() == {"stopped"}


def test_an_end_may_be_days_ahead_where_azure_keeps_a_date(azure: Cloud, tmp_path: Path) -> None:
    """The schedule, which knows no date, waits behind it, disabled."""
    hands = Hands(azure, tmp_path, limits=Limits(max_lifetime=60 * HOUR))
    hands.up()
    assert schedule(hands.account)["properties"]["status"] == "Disabled"
    hands.later(59 * HOUR)
    assert hands.states() == {"running"}
    hands.up()  # Within a day now: it is enabled.
    assert schedule(hands.account)["properties"]["status"] == "Enabled"
    hands.later(HOUR + 5.0)
    assert hands.states() == {"stopped"}


@pytest.mark.parametrize("seconds", [30.0, 10 * MINUTE, 34 * MINUTE])
def test_a_lifetime_that_might_come_a_day_late_is_refused_before_anything_is_made(
    azure: Cloud, seconds: float
) -> None:
    account = account_of(plain(azure, limits=Limits(max_lifetime=seconds)))
    plan = plain(azure, limits=Limits(max_lifetime=seconds))
    (found,) = [finding for finding in account.check(plan) if finding.what == "lifetime"]
    assert not found.ok
    assert (
        found.hint == "set limits.max_lifetime to 35m or more; to end sooner, run `cloudtrain down`"
    )
    with pytest.raises(CloudConfigError, match="may come a day late"):
        account.places(plan)


def test_an_end_that_azure_cannot_hold_is_refused_before_anything_is_made(azure: Cloud) -> None:
    """Microsoft.ComputeSchedule reaches two weeks."""
    plan = plain(azure, limits=Limits(max_lifetime=20 * 24 * HOUR))
    account = account_of(plan)
    (found,) = [finding for finding in account.check(plan) if finding.what == "lifetime"]
    assert found.error is CloudConfigError
    assert "more than 14 days ahead cannot be held" in found.text
    with pytest.raises(CloudConfigError, match="14 days"):
        account.places(plan)
    plan = plain(azure, limits=Limits(max_lifetime=14 * 24 * HOUR))
    assert all(finding.ok for finding in account_of(plan).check(plan))


def test_check_says_by_what_the_nodes_end(azure: Cloud, plan: Plan) -> None:
    def found() -> str:
        account = account_of(plan)
        return next(f.text for f in account.check(plan) if f.what == "lifetime")

    assert "at a date and time held by Azure, with a daily schedule as a fallback" in found()
    azure.set(not_permitted=["*/virtualMachinesSubmitDeallocate/action"])
    assert "by a daily schedule only: not allowed: Microsoft.ComputeSchedule/" in found()
    azure.set(not_permitted=["*/register/action"], unregistered=[DEADLINES])
    assert "only: Microsoft.ComputeSchedule is not registered" in found()
    azure.set(absent=[DEADLINES])
    assert "only: this endpoint has no Microsoft.ComputeSchedule" in found()


# ── As one ───────────────────────────────────────────────────────────────────


def test_a_node_that_joins_late_takes_all_to_an_end_that_can_be_armed(
    either: Cloud, tmp_path: Path
) -> None:
    """The others' schedules are changed within 30 minutes of their old time."""
    hands = Hands(either, tmp_path, limits=Limits(max_lifetime=HOUR))
    hands.up(nodes=2)
    hands.later(50 * MINUTE)
    left = hands.up()
    assert abs(left - 35 * MINUTE) < 5.0
    hands.later(left - 61.0)  # The old end is long past.
    assert hands.states() == {"running"}
    hands.later(63.0)
    assert hands.states() == {"stopped"}


def test_a_node_that_is_started_again_ends_with_the_others(either: Cloud, tmp_path: Path) -> None:
    hands = Hands(either, tmp_path, limits=Limits(max_lifetime=4 * HOUR))
    hands.up()
    vm = arm(hands.account).group(GROUP).vm("mnist-worker0")
    arm(hands.account).call("POST", f"{vm}/deallocate")
    hands.later(HOUR)
    left = hands.up()
    assert abs(left - 3 * HOUR) < 5.0
    hands.later(left + 2.0)
    assert hands.states() == {"stopped"}


def test_a_cluster_that_has_ended_begins_a_new_life_as_one(either: Cloud, tmp_path: Path) -> None:
    """Its schedules are changed shortly after their old time."""
    hands = Hands(either, tmp_path, limits=Limits(max_lifetime=HOUR))
    hands.up()
    hands.later(HOUR + 5 * MINUTE)
    assert hands.states() == {"stopped"}
    left = hands.up()
    assert abs(left - HOUR) < 5.0
    hands.later(left - 61.0)
    assert hands.states() == {"running"}
    hands.later(63.0)
    assert hands.states() == {"stopped"}


def test_an_end_that_was_moved_does_not_come_at_its_old_time(either: Cloud, tmp_path: Path) -> None:
    hands = Hands(either, tmp_path, limits=Limits(max_lifetime=2 * HOUR))
    hands.up()
    end = hands.timing.clock.now() + 6 * HOUR
    assert hands.account.move_ends(hands.account.machines("mnist"), end)
    hands.later(2 * HOUR + 60.0)
    assert hands.states() == {"running"}
    hands.later(4 * HOUR)
    assert hands.states() == {"stopped"}


def test_what_was_cut_off_while_an_end_was_moved_is_mended(either: Cloud, tmp_path: Path) -> None:
    """The tag says the new end already; the next `up` arms it."""
    hands = Hands(either, tmp_path, limits=Limits(max_lifetime=2 * HOUR))
    hands.up()
    path = arm(hands.account).group(GROUP).vm("mnist-chief0")
    tags = dict(arm(hands.account).get(path)["tags"])
    end = int(hands.timing.clock.now() + 5 * HOUR)
    for machine in hands.account.machines("mnist"):
        told = {**arm(hands.account).get(machine.id)["tags"], "cloudtrain-expires": str(end)}
        begun = arm(hands.account).call("PATCH", machine.id, {"tags": told})
        arm(hands.account).finish("PATCH", machine.id, begun)
    assert tags["cloudtrain-expires"] != str(end)
    hands.up()
    hands.later(5 * HOUR - 90.0)
    assert hands.states() == {"running"}
    hands.later(95.0)
    assert hands.states() == {"stopped"}


# ── Armed until it is gone ───────────────────────────────────────────────────

SUBMIT = "Microsoft.ComputeSchedule/locations/virtualMachinesSubmitDeallocate/action"


def ends(account: AzureDriver) -> set[int]:
    return {round(machine.node.expires or 0.0) for machine in account.machines("mnist")}


@pytest.mark.parametrize("hours", [40.0, 20.0])
def test_an_end_that_cannot_be_moved_stays_where_it_was(
    azure: Cloud, tmp_path: Path, hours: float
) -> None:
    hands = Hands(azure, tmp_path, limits=Limits(max_lifetime=30 * HOUR))
    left = hands.up()
    before = ends(hands.account)
    azure.set(not_permitted=["Microsoft.DevTestLab/schedules/write" if hours < 30 else SUBMIT])
    wanted = hands.timing.clock.now() + hours * HOUR
    with pytest.raises(NodesError) as caught:
        hands.account.move_ends(hands.account.machines("mnist"), wanted)
    hints = [str(getattr(each, "hint", "")) for each in caught.value.failures.values()]
    assert all("its end is where it was; `cloudtrain up` tries again" in hint for hint in hints)
    assert ends(hands.account) == before
    assert sorted(one.at for one in azure.app.deadlines.values() if one.state == "Scheduled") == (
        pytest.approx([*before] * 3, abs=2.0)
    )
    hands.later(left - 61.0)
    assert hands.states() == {"running"}
    hands.later(63.0)
    assert hands.states() == {"stopped"}


def test_a_schedule_that_had_to_be_made_anew_and_was_refused_is_put_back(
    azure: Cloud, tmp_path: Path
) -> None:
    """Changed within half an hour of its time, it would run a day late: it is deleted first."""
    azure.set(absent=[DEADLINES])
    hands = Hands(azure, tmp_path, limits=Limits(max_lifetime=2 * HOUR))
    hands.up(nodes=1)
    before = schedule(hands.account)["properties"]["dailyRecurrence"]
    hands.later(100 * MINUTE)
    azure.fault("answer", action="PUT schedules*", status=403, code="AuthorizationFailed")
    with pytest.raises(PermissionsError):
        hands.account.move_ends(
            hands.account.machines("mnist"), hands.timing.clock.now() + 2 * HOUR
        )
    assert schedule(hands.account)["properties"]["dailyRecurrence"] == before


def test_an_old_end_that_azure_does_not_withdraw_is_no_moved_end(
    azure: Cloud, tmp_path: Path
) -> None:
    """It would end the VM at the old time."""
    hands = Hands(azure, tmp_path, limits=Limits(max_lifetime=30 * HOUR))
    hands.up(nodes=1)
    before = ends(hands.account)
    azure.set(not_permitted=[SUBMIT.replace("SubmitDeallocate", "CancelOperations")])
    with pytest.raises(PermissionsError, match="CancelOperations"):
        hands.account.move_ends(
            hands.account.machines("mnist"), hands.timing.clock.now() + 40 * HOUR
        )
    assert ends(hands.account) == before


@pytest.mark.parametrize(
    "settings",
    [
        {"locks": [GROUP]},
        {"not_permitted": ["Microsoft.Resources/subscriptions/resourceGroups/delete"]},
    ],
)
def test_a_refused_down_leaves_the_ends_armed(
    azure: Cloud, tmp_path: Path, settings: dict[str, Any]
) -> None:
    hands = Hands(azure, tmp_path, limits=Limits(max_lifetime=30 * HOUR))
    hands.up()
    azure.set(**{"not_permitted": [], **settings})
    denied = [*settings.get("not_permitted", ()), "*/deallocate/action"]
    azure.set(not_permitted=denied)
    with pytest.raises(LeftoverError):
        hands.provider.destroy("mnist", silent)
    assert hands.states() == {"running"}
    assert operations(azure) == ["Scheduled"] * 3
    hands.later(30 * HOUR)
    assert hands.states() == {"stopped"}


def test_a_down_whose_connection_dies_leaves_the_ends_armed(azure: Cloud, tmp_path: Path) -> None:
    hands = Hands(azure, tmp_path, limits=Limits(max_lifetime=30 * HOUR))
    hands.up(nodes=1)
    azure.fault("reset", action="DELETE *", times=99)
    azure.fault("reset", action="*eallocate*", times=99)
    there = hands.account.machines("mnist"), hands.account.resources("mnist")
    with pytest.raises(TransientError):
        hands.account.delete(*there)
    assert operations(azure) == ["Scheduled"]


def test_the_schedule_of_a_vm_that_was_not_deleted_stays(azure: Cloud, tmp_path: Path) -> None:
    """In a group of the user's own, where everything is deleted by itself."""
    hands = Hands(azure, tmp_path, limits=Limits(max_lifetime=HOUR), resource_group="given")
    team = arm(hands.account).group("given").itself
    arm(hands.account).put(team, {"location": "eastus"})
    hands.up(nodes=1)
    azure.set(not_permitted=["Microsoft.Compute/virtualMachines/delete"])
    there = hands.account.machines("mnist"), hands.account.resources("mnist")
    with pytest.raises((PermissionsError, NodesError, BusyError)):
        hands.account.delete(*there)
    assert operations(azure) == ["Scheduled"]
    assert "schedule shutdown-computevm-mnist-chief0" in azure.holdings()


# ── As Azure says ────────────────────────────────────────────────────────────


def faults(hands: Hands) -> set[str]:
    return {node.no_end for node in hands.provider.nodes_and_ends("mnist")}


@pytest.mark.parametrize("hours", [2.0, 30.0])
def test_an_end_is_asked_of_azure_and_mended_by_up(
    azure: Cloud, tmp_path: Path, hours: float
) -> None:
    hands = Hands(azure, tmp_path, limits=Limits(max_lifetime=hours * HOUR))
    hands.up(nodes=1)
    assert faults(hands) == {""}
    path = arm(hands.account).group(GROUP).schedule("mnist-chief0")
    if hours > 24:
        for one in azure.app.deadlines.values():
            one.state = "Cancelled"
        assert faults(hands) == {"its scheduled deallocation was cancelled or is at another time"}
    else:
        arm(hands.account).delete(path)
        assert faults(hands) == {"Azure has no schedule for it"}
    left = hands.up(nodes=1)
    assert faults(hands) == {""}
    hands.later(left + 2.0)
    assert hands.states() == {"stopped"}


def test_an_end_that_azure_does_not_answer_for_is_not_believed(
    azure: Cloud, tmp_path: Path
) -> None:
    hands = Hands(azure, tmp_path, limits=Limits(max_lifetime=2 * HOUR))
    hands.up(nodes=1)
    azure.fault("answer", action="LIST schedules*", status=500, times=99)
    (why,) = faults(hands)
    assert why.startswith("azure did not answer: ")
    azure.no_more_faults()
    azure.set(not_permitted=["Microsoft.DevTestLab/schedules/read"])
    assert faults(hands) == {""}, "a role that may not ask is no reason for alarm"


# ── What is left behind ──────────────────────────────────────────────────────


def test_down_withdraws_the_ends_of_what_it_deletes(azure: Cloud, tmp_path: Path) -> None:
    """Or they would end the next cluster of that name."""
    hands = Hands(azure, tmp_path, limits=Limits(max_lifetime=2 * HOUR))
    hands.up()
    assert operations(azure) == ["Scheduled"] * 3
    hands.provider.destroy("mnist", silent)
    assert operations(azure) == ["Cancelled"] * 3
    hands.later(HOUR)
    hands.up()
    hands.later(HOUR + 60.0)
    assert hands.states() == {"running"}


def test_the_end_of_one_node_that_is_replaced_is_withdrawn(azure: Cloud, tmp_path: Path) -> None:
    hands = Hands(azure, tmp_path)
    hands.up()
    hands.account.delete([m for m in hands.account.machines() if m.node.role == "chief"], ())
    assert sorted(operations(azure)) == ["Cancelled", "Scheduled", "Scheduled"]
    hands.up()
    assert sorted(operations(azure)) == ["Cancelled", *["Scheduled"] * 3]


# ── Refusals ─────────────────────────────────────────────────────────────────


def test_a_deadline_that_wants_a_finished_vm_is_armed_after_it(azure: Cloud, plan: Plan) -> None:
    azure.set(deadlines_need_finished=True, delays={"virtualMachines": 0.1})
    account = account_of(plan)
    first(plan, account)
    assert operations(azure) == ["Scheduled"]
    (id,) = azure.app.deadlines
    assert schedule(account)["tags"]["cloudtrain-deadline"] == id


@pytest.mark.parametrize(
    "settings",
    [
        {"not_permitted": ["Microsoft.ComputeSchedule/*"]},
        {"lacking": {"Microsoft.ComputeSchedule/locations": ["eastus"]}},
        {"unregistered": [DEADLINES], "not_permitted": ["Microsoft.ComputeSchedule/*"]},
    ],
)
def test_without_a_deadline_the_schedule_holds(
    azure: Cloud, plan: Plan, settings: dict[str, Any]
) -> None:
    azure.set(**settings)
    account = account_of(plan)
    first(plan, account, lifetime=HOUR)
    assert operations(azure) == []
    azure.advance(HOUR + 2.0)
    FAST.clock.sleep(0.05)
    assert account.machines()[0].node.state == "stopped"


def test_a_region_that_keeps_no_dates_is_left_out_for_a_long_life(azure: Cloud) -> None:
    azure.set(lacking={"Microsoft.ComputeSchedule/locations": ["eastus"]})
    plan = plain(azure, limits=Limits(max_lifetime=48 * HOUR))
    assert {place.region for place in account_of(plan).places(plan)} == {"westeurope"}


def test_a_schedule_that_azure_keeps_otherwise_is_an_error(azure: Cloud, plan: Plan) -> None:
    account = account_of(plan)
    get = arm(account).get

    def other(path: str, **query: str) -> Any:
        told = get(path, **query)
        if "/schedules/" in path:
            told["properties"]["dailyRecurrence"]["time"] = "0000"
        return told

    arm(account).get = other
    with pytest.raises(TransientError, match="reports a different one"):
        first(plan, account)


def test_a_lifetime_that_no_schedule_reaches_is_refused_before_anything_is_made(
    azure: Cloud,
) -> None:
    azure.set(absent=["Microsoft.ComputeSchedule"])
    plan = plain(azure, limits=Limits(max_lifetime=48 * 3600.0))
    account = account_of(plan)
    ground = ground_of(account, plan)
    before = azure.holdings()
    with pytest.raises(CloudConfigError, match="max_lifetime of 48 h") as caught:
        account.launch(order_of(plan, plan.nodes[0], ground, lifetime=48 * 3600.0))
    assert "24h or less" in str(caught.value.hint)
    with pytest.raises(CloudConfigError):
        account.places(plan)
    assert azure.holdings() == before
    findings = {finding.what: finding for finding in account.check(plan)}
    assert not findings["lifetime"].ok


def test_a_vm_ends_by_itself_at_the_time_of_day_of_its_end(azure: Cloud, plan: Plan) -> None:
    account = account_of(plan)
    first(plan, account, lifetime=7200.0)
    azure.advance(7000.0)
    assert account.machines()[0].node.state == "running"
    azure.advance(260.0)
    FAST.clock.sleep(0.05)
    assert account.machines()[0].node.state == "stopped"


def test_without_a_limit_nothing_is_armed(azure: Cloud, plan: Plan) -> None:
    first(plan, account_of(plan), lifetime=None)
    assert not [held for held in azure.holdings() if held.startswith("schedule")]


def test_a_schedule_that_needs_a_finished_vm_is_made_after_it(azure: Cloud, plan: Plan) -> None:
    refusal = {"status": 400, "code": "InvalidTargetResourceId"}
    azure.fault("answer", action="PUT schedules*", times=1, **refusal)
    first(plan, account_of(plan))
    assert "schedule shutdown-computevm-mnist-chief0" in azure.holdings()


def test_a_vm_that_cannot_be_armed_is_not_kept(azure: Cloud, plan: Plan) -> None:
    account = account_of(plan)
    ground = ground_of(account, plan)
    azure.set(unregistered=["Microsoft.DevTestLab"])
    with pytest.raises(PermissionsError, match="DevTestLab") as caught:
        account.launch(order_of(plan, plan.nodes[0], ground))
    assert "az provider register" in str(caught.value.hint)
    assert not [held for held in azure.holdings() if "chief0" in held]


def test_what_is_not_registered_and_may_not_be_is_told_before_anything_is_made(
    azure: Cloud, plan: Plan
) -> None:
    azure.set(unregistered=["Microsoft.DevTestLab"], not_permitted=["*/register/action"])
    with pytest.raises(PermissionsError, match="DevTestLab is not registered") as caught:
        first(plan, account_of(plan))
    assert "az provider register" in str(caught.value.hint)
    assert azure.holdings() == []


def test_a_region_that_turns_out_to_have_no_schedules_is_passed_over(
    azure: Cloud, plan: Plan
) -> None:
    azure.fault(
        "answer",
        action="PUT schedules*",
        status=400,
        code="LocationNotAvailableForResourceType",
        times=9,
    )
    account = account_of(plan)
    ground = ground_of(account, plan)
    with pytest.raises(CapacityError) as caught:
        account.launch(order_of(plan, plan.nodes[0], ground))
    assert caught.value.scope == "region"
    assert not [held for held in azure.holdings() if "chief0" in held]


def test_a_vm_whose_creation_was_cut_off_before_it_was_armed_is_armed_by_the_next_up(
    azure: Cloud, plan: Plan
) -> None:
    account = account_of(plan)
    machine = first(plan, account)
    schedule = "schedule shutdown-computevm-mnist-chief0"
    group = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers"
    arm(account).delete(f"{group}/Microsoft.DevTestLab/schedules/{schedule.split()[1]}")
    assert schedule not in azure.holdings()
    ground_of(account, plan)
    assert schedule in azure.holdings()
    assert machine.id in {m.id for m in account.machines()}


def test_a_stopped_vm_is_started_and_armed_anew(azure: Cloud, plan: Plan) -> None:
    account = account_of(plan)
    first(plan, account, lifetime=3600.0)
    azure.advance(3700.0)
    FAST.clock.sleep(0.05)
    (stopped,) = account.machines()
    assert stopped.node.state == "stopped"
    account.start(stopped, FAST.clock.now() + 12 * 3600.0)
    (machine,) = account.machines()
    assert machine.node.state == "running"
    assert machine.node.expires
    assert abs(machine.node.expires - FAST.clock.now() - 12 * 3600.0) < 60
    assert machine.owner == stopped.owner
    assert machine.node.role == "chief"
