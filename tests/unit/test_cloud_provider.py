"""Up and down on any cloud, over an account in memory: nothing is ever left or doubled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import pytest

from cloudtrain.commands.down import places_that_may_hold_it
from cloudtrain.core.errors import (
    CapacityError,
    CloudConfigError,
    CloudError,
    CredentialsError,
    LeftoverError,
    NameTakenError,
    NodesError,
    NotAskedError,
    PermissionsError,
    QuotaError,
    TransientError,
)
from cloudtrain.core.events import (
    CreationBegun,
    Event,
    Line,
    NodesPlaced,
    lacks_room,
    pending_nodes,
    to_line,
)
from cloudtrain.core.model import SPOT, Identity, Owner, Plan, Provisioning
from cloudtrain.core.partial_list import Whereabouts
from cloudtrain.money.node_hours import node_hours
from cloudtrain.providers.base import create, labels
from cloudtrain.providers.base.create import Creation, uninterrupted
from cloudtrain.providers.base.driver import Location, Resource, Vm
from cloudtrain.providers.base.provider import CloudProvider
from tests.support.fake_account import ME, PLACES, FakeAccount, cloud_plan
from tests.support.fakes import facts_of, make_identity, make_plan, no_journal

CALLER = "198.51.100.7/32"
EVE = Owner(id="eve", name="eve")


class Rig:
    """One provider, its account, a plan of a chief and two workers, and the journal's lines."""

    def __init__(self, folder: Path) -> None:
        self.account = FakeAccount()
        self.provider = CloudProvider(
            self.account, caller=lambda: CALLER, timing=self.account.clock.timing()
        )
        self.plan: Plan = cloud_plan(make_plan(workers=2))
        self.identity: Identity = make_identity(folder, cloud_plan(make_plan(workers=4)))
        self.lines: list[str] = []
        self.generations: list[str] = []

    def journal(self, event: Event, /) -> None:
        if isinstance(event, CreationBegun):
            self.generations.append(event.id)
            return
        self.lines.append(" ".join([event.word, *map(str, facts_of(event).values())]))

    def create(self, plan: Plan | None = None) -> list[str]:
        nodes = self.provider.create(plan or self.plan, self.identity, self.journal)
        return [f"{node.name} {node.placement}" for node in nodes]

    def refuse(self, place: str, error: Exception, node: str = "mnist-worker1") -> None:
        self.account.refuses[place, node] = error


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_all_nodes_are_made_in_the_first_place(rig: Rig) -> None:
    assert rig.create() == [
        "mnist-chief0 east-a",
        "mnist-worker0 east-a",
        "mnist-worker1 east-a",
    ]
    assert rig.account.callers == [CALLER]
    order = rig.account.orders[0]
    assert order.labels[labels.CLUSTER] == "mnist"
    assert order.expires == 1_000_000.0 + 12 * 3600


def test_a_place_without_capacity_gives_all_back_and_the_next_one_is_tried(rig: Rig) -> None:
    rig.refuse("east-a", CapacityError("no T4 in east-a", scope="zone"))
    assert rig.create() == [
        "mnist-chief0 east-b",
        "mnist-worker0 east-b",
        "mnist-worker1 east-b",
    ]
    assert {m.place.zone for m in rig.account.machines()} == {"east-b"}
    assert "refused east-a CapacityError mnist-worker1: no T4 in east-a" in rig.lines
    assert sorted(line for line in rig.lines if line.startswith("destroy")) == [
        "destroy mnist-chief0",
        "destroy mnist-worker0",
    ]


def test_a_refusal_of_the_region_passes_over_its_other_zones(rig: Rig) -> None:
    rig.refuse("east-a", QuotaError("8 of 8 cores", scope="region"))
    assert rig.create()[0] == "mnist-chief0 west-a"
    assert {str(order.place) for order in rig.account.orders} == {"east-a", "west-a"}
    assert {r.region for r in rig.account.resources()} == {"", "west"}


def test_a_refusal_of_the_account_ends_it_and_leaves_nothing(rig: Rig) -> None:
    rig.refuse("east-a", QuotaError("GPUS_ALL_REGIONS", scope="account", hint="ask for more"))
    with pytest.raises(QuotaError, match="GPUS_ALL_REGIONS") as raised:
        rig.create()
    assert raised.value.hint == "ask for more"
    assert rig.account.holds() == []
    assert {str(order.place) for order in rig.account.orders} == {"east-a"}


def test_no_capacity_anywhere_names_every_place_and_leaves_nothing(rig: Rig) -> None:
    for place in PLACES:
        rig.refuse(str(place), CapacityError(f"no T4 in {place}", scope="zone"))
    with pytest.raises(CapacityError) as raised:
        rig.create()
    assert raised.value.message.split("\n") == [
        "no placement can provide the nodes:",
        "east-a: mnist-worker1: no T4 in east-a",
        "east-b: mnist-worker1: no T4 in east-b",
        "west-a: mnist-worker1: no T4 in west-a",
    ]
    assert raised.value.exit_code == 3
    assert rig.account.holds() == []


@pytest.mark.parametrize("error", [CredentialsError("expired"), CloudConfigError("no such image")])
def test_credentials_and_config_do_not_tour_the_places(rig: Rig, error: Exception) -> None:
    rig.refuse("east-a", error)
    with pytest.raises(type(error), match=f"mnist-worker1: {error}"):
        rig.create()
    assert {str(order.place) for order in rig.account.orders} == {"east-a"}
    assert rig.account.holds() == []


def test_nothing_is_waited_for_after_requests_that_were_refused(rig: Rig) -> None:
    """The record says that they came to nothing: `down` does not wait for late nodes."""
    events: list[Event] = []
    rig.refuse("east-a", PermissionsError("not authorized"))
    with pytest.raises(PermissionsError):
        rig.provider.create(rig.plan, rig.identity, events.append)
    lines: list[Line] = [to_line(event, time=1.0, pid=1) for event in events]
    assert pending_nodes(lines) == {}
    assert not lacks_room(lines)


@pytest.mark.parametrize(
    "error",
    [
        PermissionsError("places of the organization", scope="zone", hint="other places"),
        CloudConfigError("no such disk there", scope="zone"),
        TransientError("no answer for 90 s", scope="zone"),
        CloudError("a code that nobody knows", scope="zone"),
    ],
)
def test_whatever_only_a_place_refuses_the_next_one_is_tried(rig: Rig, error: CloudError) -> None:
    rig.refuse("east-a", error, "mnist-worker0")
    rig.refuse("east-a", error)
    assert rig.create()[0] == "mnist-chief0 east-b"
    assert {m.place.zone for m in rig.account.machines()} == {"east-b"}


def test_what_every_place_refuses_is_listed_as_the_kind_that_may_end(rig: Rig) -> None:
    rig.refuse("east-a", PermissionsError("a policy", scope="region", hint="other places"))
    rig.refuse("west-a", PermissionsError("a policy, too", scope="zone"))
    with pytest.raises(PermissionsError) as alone:
        rig.create()
    assert alone.value.message.split("\n")[1:] == [
        "east-a: mnist-worker1: a policy",
        "west-a: mnist-worker1: a policy, too",
    ]
    assert alone.value.hint == "other places"
    rig.refuse("west-a", CapacityError("no T4", scope="zone"))
    with pytest.raises(CapacityError, match="a policy"):
        rig.create()
    assert rig.account.holds() == []


def test_a_zone_that_has_room_as_the_cloud_says_is_tried_next(rig: Rig) -> None:
    full = CapacityError("none", scope="zone")
    full.elsewhere = ("west-a",)
    rig.refuse("east-a", full)
    assert rig.create()[0] == "mnist-chief0 west-a"
    assert {str(order.place) for order in rig.account.orders} == {"east-a", "west-a"}


def test_where_a_refused_place_cannot_be_cleaned_up_the_next_one_is_not_tried(rig: Rig) -> None:
    rig.refuse("east-a", PermissionsError("a policy", scope="zone"))

    def cannot(machines: list[Vm], resources: list[Resource]) -> None:
        raise CredentialsError("expired")

    rig.account.delete = cannot  # type: ignore[method-assign,assignment]
    with pytest.raises(PermissionsError, match="a policy"):
        rig.create()
    assert {str(order.place) for order in rig.account.orders} == {"east-a"}


def test_several_refused_nodes_are_one_refusal_as_wide_as_the_widest(rig: Rig) -> None:
    rig.refuse("east-a", CapacityError("none", scope="zone"), "mnist-worker0")
    rig.refuse("east-a", QuotaError("8 of 8", scope="region"), "mnist-worker1")
    assert rig.create()[0] == "mnist-chief0 west-a"


@pytest.mark.parametrize(
    "error",
    [
        PermissionsError("not authorized", hint="grant the role", code="403"),
        CloudConfigError("no such image", hint="see the list"),
        NameTakenError("the name is taken"),
    ],
)
def test_the_same_refusal_of_all_nodes_is_one_error(rig: Rig, error: CloudError) -> None:
    for node in ("mnist-chief0", "mnist-worker0", "mnist-worker1"):
        rig.refuse("east-a", error, node)
    with pytest.raises(type(error)) as raised:
        rig.create()
    assert str(raised.value) == f"mnist-chief0, mnist-worker0, mnist-worker1: {error}"
    assert (raised.value.hint, raised.value.code) == (error.hint, error.code)


def test_different_refusals_of_nodes_are_each_said(rig: Rig) -> None:
    rig.refuse("east-a", PermissionsError("not authorized"), "mnist-worker0")
    rig.refuse("east-a", CloudConfigError("not authorized"), "mnist-worker1")
    with pytest.raises(NodesError) as raised:
        rig.create()
    assert set(raised.value.failures) == {"mnist-worker0", "mnist-worker1"}
    assert raised.value.exit_code == 4


def test_the_nodes_of_one_refusal_are_named_up_to_three(rig: Rig) -> None:
    plan = cloud_plan(make_plan(workers=4))
    for node in plan.nodes:
        rig.refuse("east-a", PermissionsError("not authorized"), node.name)
    with pytest.raises(PermissionsError) as raised:
        rig.create(plan)
    assert str(raised.value) == (
        "mnist-chief0, mnist-worker0, mnist-worker1 and 2 more: not authorized"
    )


def test_one_other_failure_among_refusals_is_no_refusal(rig: Rig) -> None:
    rig.refuse("east-a", CapacityError("none", scope="zone"), "mnist-worker0")
    rig.refuse("east-a", CredentialsError("expired"), "mnist-worker1")
    with pytest.raises(Exception, match="expired") as raised:
        rig.create()
    assert raised.value.exit_code == 4
    assert rig.account.holds() == []


@pytest.mark.parametrize("what", ["", "mnist-worker0", "its disk"])
def test_a_node_that_dies_while_it_starts_is_a_refusal_with_its_reason(rig: Rig, what: str) -> None:
    died = CapacityError("out of hosts", scope="zone", what=what)
    rig.account.dies_starting["mnist-worker0"] = died
    own = "its disk: " if what == "its disk" else ""
    with pytest.raises(CapacityError, match=f"east-a: mnist-worker0: {own}out of hosts"):
        rig.create()
    assert len({order.place for order in rig.account.orders}) == len(PLACES)
    assert rig.account.holds() == []


def test_a_node_that_is_listed_late_is_waited_for(rig: Rig) -> None:
    rig.account.lag = 20.0
    assert len(rig.create()) == 3


def test_a_node_that_is_never_listed_is_given_back(rig: Rig) -> None:
    rig.account.lag = 100.0
    with pytest.raises(TransientError, match="does not list the node"):
        rig.create()
    assert rig.account.holds() == []


def test_an_answer_lost_after_the_work_was_done_leaks_nothing(rig: Rig) -> None:
    """The node appears only after it was asked for in vain: it is waited for, then erased."""
    rig.account.breaks_after.add("mnist-worker0")
    rig.account.lag = 30.0
    with pytest.raises(TransientError, match="mnist-worker0: connection reset"):
        rig.create()
    assert rig.account.holds() == []


def test_a_second_create_adopts_and_completes(rig: Rig) -> None:
    rig.create(cloud_plan(make_plan(workers=1)))
    rig.lines.clear()
    assert len(rig.create()) == 3
    assert rig.lines == [
        "place east-a east",
        "create mnist-worker1",
        "made mnist-worker1 i-3-mnist-worker1 east-a",
    ]
    assert [order.node.name for order in rig.account.orders[2:]] == ["mnist-worker1"]


def test_what_was_adopted_is_kept_when_the_rest_cannot_be_had(rig: Rig) -> None:
    rig.create(cloud_plan(make_plan(workers=1)))
    before = rig.account.holds()
    rig.refuse("east-a", CapacityError("none", scope="zone"))
    with pytest.raises(CapacityError):
        rig.create()
    assert rig.account.holds() == before
    assert {str(order.place) for order in rig.account.orders} == {"east-a"}


def test_nothing_to_make_still_lets_the_caller_in(rig: Rig) -> None:
    rig.create()
    rig.lines.clear()
    rig.create()
    assert rig.lines == []
    assert rig.account.callers == [CALLER, CALLER]


def test_a_stopped_node_is_started_again(rig: Rig) -> None:
    rig.create()
    id, machine = next(iter(rig.account.machines_.items()))
    rig.account.machines_[id] = replace(machine, node=replace(machine.node, state="stopped"))
    assert len(rig.create()) == 3
    assert {node.state for node in rig.provider.nodes("mnist")} == {"running"}
    assert len(rig.account.orders) == 3


def test_of_two_vms_for_one_node_the_first_made_stays(rig: Rig) -> None:
    rig.create()
    first = next(m for m in rig.account.machines() if m.node.name == "mnist-worker0")
    later = replace(first, id="i-twin", node=replace(first.node, created=2e6))
    rig.account.machines_["i-twin"] = later
    rig.account.listed_from["i-twin"] = 0.0
    rig.create()
    assert [m.id for m in rig.account.machines() if m.node.name == "mnist-worker0"] == [first.id]


def test_a_node_that_joins_ends_with_its_cluster(rig: Rig) -> None:
    rig.create(cloud_plan(make_plan(workers=1)))
    rig.account.clock.time += 3600
    rig.create()
    assert len({order.expires for order in rig.account.orders}) == 1


def test_where_an_end_has_to_lie_ahead_all_of_the_cluster_moves_to_it(rig: Rig) -> None:
    rig.account.soonest_end = 2100.0
    rig.create(cloud_plan(make_plan(workers=1)))
    rig.account.clock.time += 12 * 3600 - 300.0
    rig.create()
    (end,) = {machine.node.expires for machine in rig.account.machines()}
    assert end == pytest.approx(rig.account.clock.now() + 2100.0, abs=1.0)


def test_a_stopped_node_ends_with_the_others_when_it_is_started_again(rig: Rig) -> None:
    rig.create()
    (end,) = {machine.node.expires for machine in rig.account.machines()}
    id, machine = next(iter(rig.account.machines_.items()))
    rig.account.machines_[id] = replace(machine, node=replace(machine.node, state="stopped"))
    rig.account.clock.time += 3600
    rig.create()
    assert {machine.node.expires for machine in rig.account.machines()} == {end}


def test_a_cluster_whose_end_has_come_begins_a_new_life_as_one(rig: Rig) -> None:
    rig.create()
    rig.account.clock.time += 13 * 3600
    for id, machine in list(rig.account.machines_.items()):
        state = "stopped" if machine.node.name != "mnist-chief0" else "running"
        rig.account.machines_[id] = replace(machine, node=replace(machine.node, state=state))
    rig.create()
    (end,) = {machine.node.expires for machine in rig.account.machines()}
    assert end == pytest.approx(rig.account.clock.now() + 12 * 3600, abs=1.0)


def test_where_nodes_have_no_room_close_together_the_same_place_is_asked_without(
    rig: Rig,
) -> None:
    rig.account.close, rig.account.no_room_close = True, {"east-a"}
    assert rig.create() == [
        "mnist-chief0 east-a",
        "mnist-worker0 east-a",
        "mnist-worker1 east-a",
    ]
    assert "apart east-a" in rig.lines
    assert len(rig.account.machines()) == 3


def test_without_a_group_a_place_that_is_full_is_asked_once(rig: Rig) -> None:
    rig.refuse("east-a", CapacityError("no T4 in east-a", scope="zone"))
    assert rig.create()[0] == "mnist-chief0 east-b"
    assert [line for line in rig.lines if line.startswith("refused east-a")] == [
        "refused east-a CapacityError mnist-worker1: no T4 in east-a"
    ]


def test_one_wish_has_one_token_and_another_place_another(rig: Rig) -> None:
    rig.refuse("east-a", CapacityError("none", scope="zone"))
    rig.create()
    tokens = [order.token for order in rig.account.orders]
    assert len(set(tokens)) == len(tokens) == 6
    again = Rig(rig.identity.private_key.parent)
    again.identity = rig.identity
    again.refuse("east-a", CapacityError("none", scope="zone"))
    again.create()
    assert sorted(order.token for order in again.account.orders) == sorted(tokens)


def test_destroy_asks_again_until_nothing_is_listed(rig: Rig) -> None:
    rig.create()
    rig.account.busy = 2
    rig.provider.destroy("mnist", rig.journal)
    assert rig.account.holds() == []


def test_destroy_waits_for_a_node_that_was_asked_for_and_is_not_listed_yet(rig: Rig) -> None:
    rig.create()
    for id in rig.account.machines_:
        rig.account.listed_from[id] = rig.account.clock.now() + 30.0
    rig.account.resources_.clear()
    rig.provider.destroy("mnist", rig.journal, {"mnist-chief0": rig.account.clock.now()})
    assert rig.account.holds() == []


def test_destroy_does_not_wait_for_what_was_asked_for_long_ago(rig: Rig) -> None:
    before = rig.account.clock.time
    rig.provider.destroy("mnist", rig.journal, {"mnist-chief0": before - 3600.0})
    assert rig.account.clock.time == before


def test_what_cannot_be_erased_is_named(rig: Rig) -> None:
    rig.create()
    stuck = next(m.id for m in rig.account.machines() if m.node.name == "mnist-worker0")
    rig.account.stays.add(stuck)
    with pytest.raises(LeftoverError) as raised:
        rig.provider.destroy("mnist", rig.journal)
    assert raised.value.message == (
        f"not deleted: instance mnist-worker0 ({stuck}) in east-a, network mnist"
        " (network mnist ), subnet mnist (subnet mnist east) in east: the network is in use"
    )


def test_giving_back_that_fails_is_told_and_never_hides_the_first_error(rig: Rig) -> None:
    rig.refuse("east-a", CredentialsError("expired"))

    def cannot(machines: list[Vm], resources: list[Resource]) -> None:
        raise CredentialsError("expired too")

    rig.account.delete = cannot  # type: ignore[method-assign,assignment]
    with pytest.raises(CredentialsError, match="mnist-worker1: expired") as raised:
        rig.create()
    assert raised.value.hint is not None
    assert "not deleted: instance mnist-chief0" in raised.value.hint
    assert any(line.startswith("left over not deleted: instance") for line in rig.lines)


@pytest.mark.parametrize("in_group", [False, True])
def test_no_other_place_is_tried_while_what_was_made_in_one_cannot_be_deleted(
    rig: Rig, in_group: bool
) -> None:
    """Its nodes are billed, and a second set in the next place would hide them."""
    full = CapacityError("no room", scope="zone")
    full.in_group = in_group
    rig.refuse("east-a", full)

    def cannot(machines: list[Vm], resources: list[Resource]) -> None:
        raise PermissionsError("locked")

    delete, rig.account.delete = rig.account.delete, cannot  # type: ignore[method-assign,assignment]
    with pytest.raises(CapacityError, match="mnist-worker1: no room") as raised:
        rig.create()
    assert "not deleted: instance mnist-chief0" in (raised.value.hint or "")
    assert {str(machine.place) for machine in rig.account.machines()} == {"east-a"}
    rig.account.delete = delete  # type: ignore[method-assign]
    rig.provider.destroy("mnist", rig.journal)
    assert rig.account.holds() == []


def test_the_next_place_is_tried_once_the_rollback_of_the_whole_place_was_accepted(
    rig: Rig,
) -> None:
    full = CapacityError("no room", scope="zone")
    full.left_over = True  # of the node's own rollback
    for node in ("mnist-worker0", "mnist-worker1"):
        rig.refuse("east-a", full, node)
    assert {line.rpartition(" ")[2] for line in rig.create()} == {"east-b"}


def stuck() -> CapacityError:
    error = CapacityError("accepted, and not created after 15 min", scope="zone")
    error.stuck = True
    return error


def test_a_node_that_the_cloud_never_creates_is_requested_once_more(rig: Rig) -> None:
    """As one that is being created from then on."""
    launch, until = rig.account.launch, list[float | None]()

    def never(order):  # type: ignore[no-untyped-def]
        if order.node.name == "mnist-worker0":
            until.append(order.plan.creating_until)
            if len(until) == 1:
                rig.account.clock.sleep(900.0)
                raise stuck()
        return launch(order)

    rig.account.launch = never  # type: ignore[method-assign]
    assert rig.create() == [f"{node.name} east-a" for node in rig.plan.nodes]
    assert until == [until[0], until[0] + 900.0]  # type: ignore[operator]
    assert [rig.lines.count(f"create mnist-{name}") for name in ("chief0", "worker0")] == [1, 2]


@pytest.mark.parametrize("error", [None, stuck()])
def test_ctrl_c_waits_for_creations_in_flight_and_gives_them_back(
    rig: Rig, error: CapacityError | None
) -> None:
    launch, asked = rig.account.launch, list[str]()
    arrived = threading.Event()

    def slow(order):  # type: ignore[no-untyped-def]
        asked.append(order.node.name)
        if order.node.name == "mnist-worker0":
            arrived.wait(60)
            if error is not None:
                raise error
        return launch(order)

    rig.account.launch = slow  # type: ignore[method-assign]
    interrupting(rig, arrived)
    with pytest.raises(KeyboardInterrupt):
        rig.create()
    assert rig.account.holds() == []
    assert asked.count("mnist-worker0") == 1


def interrupting(rig: Rig, arrived: threading.Event) -> None:
    """SIGINT to this process once two nodes are there; then the third goes on."""
    import os
    import signal
    import time

    heard, before = threading.Event(), signal.getsignal(signal.SIGINT)

    def interrupted(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        heard.set()
        raise KeyboardInterrupt

    def press() -> None:
        while len(rig.account.orders) < 2:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)
        heard.wait(60)
        time.sleep(0.05)
        arrived.set()

    signal.signal(signal.SIGINT, interrupted)
    threading.Thread(target=press).start()


@pytest.mark.parametrize("begun", [True, False])
def test_an_interrupt_while_the_thread_starts_loses_no_work(
    begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    working, done = threading.Event(), []

    class Interrupted(threading.Thread):
        def start(self) -> None:
            if begun:
                super().start()
                working.wait()
            raise KeyboardInterrupt

    def work() -> None:
        working.set()
        threading.Event().wait(0.05)  # longer than the caller takes to see the interrupt
        done.append("created")

    monkeypatch.setattr(threading, "Thread", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        uninterrupted(work)
    assert done == (["created"] if begun else [])


def test_what_must_not_be_interrupted_is_finished_and_the_interrupt_is_told_then() -> None:
    import os
    import signal
    import time

    done: list[bool] = []

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        done.append(True)

    with pytest.raises(KeyboardInterrupt):
        uninterrupted(work)
    assert done == [True]


# ── Refused, in use, late ────────────────────────────────────────────────────


def erasing(rig: Rig, *refusals: Exception | None) -> list[tuple[int, int]]:
    """How many machines and resources each erase was asked for; the first ones are refused."""
    asked: list[tuple[int, int]] = []
    erase = rig.account.delete

    def watched(machines: list[Vm], resources: list[Resource]) -> None:
        asked.append((len(machines), len(resources)))
        refusal = refusals[len(asked) - 1] if len(asked) <= len(refusals) else None
        if refusal is not None:
            raise refusal
        erase(machines, resources)

    rig.account.delete = watched  # type: ignore[method-assign,assignment]
    return asked


@pytest.mark.parametrize(
    "refusal",
    [
        PermissionsError("ScopeLocked"),
        NodesError({"a": TransientError("no answer"), "b": PermissionsError("not authorized")}),
    ],
)
def test_a_refusal_for_good_is_told_at_once_with_what_is_billed(
    rig: Rig, refusal: Exception
) -> None:
    rig.create()
    asked, before = erasing(rig, *[refusal] * 9), rig.account.clock.time
    with pytest.raises(LeftoverError, match="not deleted: instance mnist-chief0") as raised:
        rig.provider.destroy("mnist", rig.journal)
    assert len(asked) == 1
    assert rig.account.clock.time == before
    assert "billed until they are deleted" in str(raised.value.hint)


def test_credentials_that_have_expired_are_tried_once_more(rig: Rig) -> None:
    rig.create()
    asked = erasing(rig, CredentialsError("ExpiredToken"))
    rig.provider.destroy("mnist", rig.journal)
    assert rig.account.holds() == []
    again = Rig(rig.identity.private_key.parent)
    again.create()
    asked = erasing(again, *[CredentialsError("ExpiredToken")] * 9)
    with pytest.raises(LeftoverError, match="ExpiredToken"):
        again.provider.destroy("mnist", again.journal)
    assert len(asked) == 2


def test_what_a_late_node_may_use_stays_until_that_is_listed(rig: Rig) -> None:
    rig.create()
    late = next(id for id in rig.account.machines_ if id.endswith("worker0"))
    rig.account.listed_from[late] = rig.account.clock.now() + 20.0
    expected = {"mnist-worker0": rig.account.clock.now()}
    asked, before = erasing(rig), rig.account.clock.time
    rig.provider.destroy("mnist", rig.journal, expected)
    assert rig.account.holds() == []
    assert asked == [(2, 0), (1, 2)]
    assert rig.account.clock.time - before < 30.0


def test_what_is_in_use_is_looked_at_anew_before_it_is_waited_for(rig: Rig) -> None:
    """No record tells of the node that is listed late."""
    rig.create()
    for id in rig.account.listed_from:
        rig.account.listed_from[id] = rig.account.clock.now() + 8.0
    before = rig.account.clock.time
    rig.provider.destroy("mnist", rig.journal)
    assert rig.account.holds() == []
    assert rig.account.clock.time - before < 40.0


def test_what_stays_in_use_is_given_up_in_the_end(rig: Rig) -> None:
    rig.create()
    rig.account.busy = 10**6
    before = rig.account.clock.time
    with pytest.raises(LeftoverError, match=r"network mnist .* the network is in use"):
        rig.provider.destroy("mnist", rig.journal)
    assert 200.0 < rig.account.clock.time - before < 320.0


def test_what_was_made_is_named_where_the_cloud_answers_no_more(rig: Rig) -> None:
    """As credentials do that expire right after the instances were asked for."""
    launch, expired = rig.account.launch, CredentialsError("DescribeInstances: ExpiredToken")

    def last(order):  # type: ignore[no-untyped-def]
        machine = launch(order)
        rig.account.broken = expired
        return machine

    rig.account.launch = last  # type: ignore[method-assign]
    erasing(rig, *[expired] * 9)
    with pytest.raises(CredentialsError) as raised:
        rig.create(cloud_plan(make_plan(workers=0)))
    assert "may still exist and be billed: instance mnist-chief0 (i-1-mnist-chief0) in east-a" in (
        str(raised.value.hint)
    )
    assert "made mnist-chief0 i-1-mnist-chief0 east-a" in rig.lines


def test_what_was_made_is_deleted_by_its_id_where_no_list_answers(rig: Rig) -> None:
    launch = rig.account.launch

    def last(order):  # type: ignore[no-untyped-def]
        machine = launch(order)
        rig.account.broken = TransientError("DescribeInstances: 503")
        return machine

    rig.account.launch = last  # type: ignore[method-assign]
    with pytest.raises(TransientError):
        rig.create(cloud_plan(make_plan(workers=0)))
    assert rig.account.machines_ == {}


# ── Places that do not answer ────────────────────────────────────────────────


def known_in(rig: Rig, *places: str, complete: bool = True) -> None:
    rig.provider.whereabouts = Whereabouts(cluster="mnist", places=places, complete=complete)


def test_a_place_elsewhere_that_does_not_answer_matters_to_nobody(rig: Rig) -> None:
    known_in(rig, "east-a")
    rig.account.silent = {"west-a"}
    rig.create()
    assert len(rig.provider.nodes("mnist")) == 3
    assert rig.create()[0] == "mnist-chief0 east-a"


@pytest.mark.parametrize("place", ["east-a", "east"])
def test_a_place_that_counts_must_answer(rig: Rig, place: str) -> None:
    known_in(rig, place)
    rig.account.silent = {"east-a"}
    for ask in (lambda: rig.provider.nodes("mnist"), rig.create):
        with pytest.raises(NotAskedError, match=r"not checked: east-a \(it does not answer\)"):
            ask()
    assert rig.account.orders == []


def test_where_nothing_is_known_of_a_cluster_every_place_counts(rig: Rig) -> None:
    rig.account.silent = {"west-a"}
    with pytest.raises(NotAskedError, match="west-a"):
        rig.provider.nodes("mnist")
    assert [each.place for each in rig.provider.find("mnist").not_asked] == ["west-a"]


def test_destroy_deletes_all_that_is_seen_before_it_names_what_was_not_asked(rig: Rig) -> None:
    rig.create()
    rig.account.silent = {"west-a"}
    with pytest.raises(NotAskedError, match="everything found is deleted; not checked: west-a"):
        rig.provider.destroy("mnist", rig.journal)
    assert rig.account.holds() == []


def test_destroy_is_done_where_the_record_has_nothing_there(rig: Rig) -> None:
    rig.create()
    known_in(rig, "east-a")
    rig.account.silent = {"west-a"}
    assert [each.place for each in rig.provider.destroy("mnist", rig.journal)] == ["west-a"]
    assert rig.account.holds() == []


def test_destroy_is_not_done_where_the_record_is_not_of_all_its_life(rig: Rig) -> None:
    rig.create()
    known_in(rig, "east-a", complete=False)
    rig.account.silent = {"west-a"}
    with pytest.raises(NotAskedError, match="west-a"):
        rig.provider.destroy("mnist", rig.journal)
    assert rig.account.holds() == []


def test_a_place_that_this_account_may_not_use_any_more_counts_where_it_was_tried(
    rig: Rig,
) -> None:
    rig.create()
    known_in(rig, "east-a", "west-a")
    rig.account.silent, rig.account.denied = {"west-a"}, True
    assert len(rig.provider.nodes("mnist")) == 3
    assert rig.provider.whereabouts is not None
    rig.provider.whereabouts = replace(rig.provider.whereabouts, tried=("west-a",))
    unknown = r"not checked: west-a \(it is not enabled\)"
    with pytest.raises(NotAskedError, match=unknown):
        rig.provider.nodes("mnist")
    assert places_that_may_hold_it(rig.provider, rig.provider.find("mnist")) == ("west-a",)
    with pytest.raises(NotAskedError, match=f"everything found is deleted; {unknown}"):
        rig.provider.destroy("mnist", rig.journal)
    assert rig.account.holds() == []


def test_nodes_in_a_place_that_nobody_has_seen_stay(rig: Rig) -> None:
    rig.create()
    before = [m.id for m in rig.account.machines()]
    with pytest.raises(LeftoverError):
        rig.provider.destroy("mnist", rig.journal, spared=("east-a",))
    assert [m.id for m in rig.account.machines()] == before


def test_a_place_is_on_record_before_anything_is_asked_for_there(rig: Rig) -> None:
    rig.refuse("east-a", CapacityError("none", scope="zone"))
    rig.create()
    places = [line for line in rig.lines if line.startswith("place ")]
    assert places == ["place east-a east", "place east-b east"]
    assert rig.lines[0] == "place east-a east"


def test_sweep_tells_what_was_not_asked(rig: Rig) -> None:
    rig.create()
    rig.account.silent = {"west-a"}
    held = rig.provider.sweep()
    assert [h.cluster for h in held] == ["mnist"]
    assert [each.place for each in held.not_asked] == ["west-a"]


def test_sweep_tells_what_each_cluster_holds(rig: Rig) -> None:
    rig.create()
    rig.account.resources_["orphan"] = Resource(
        cluster="old", kind="disk", name="old-chief0", id="d-1", region="west", owner=EVE
    )
    held = rig.provider.sweep()
    assert [(h.cluster, len(h.nodes), h.resources, h.owners) for h in held] == [
        (
            "mnist",
            3,
            ("network mnist (network mnist )", "subnet mnist (subnet mnist east) in east"),
            (ME,),
        ),
        ("old", 0, ("disk old-chief0 (d-1) in west",), (EVE,)),
    ]


def test_places_read_as_people_write_them() -> None:
    written: Callable[[Location], str] = str
    assert written(Location(region="us-east4", zone="us-east4-c")) == "us-east4-c"
    assert written(Location(region="eastus")) == "eastus"


def listings(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry for each list of machines that is asked for from now on."""
    asked: list[None] = []
    machines = rig.account.machines

    def counted(*given: Any, **named: Any) -> Any:
        asked.append(None)
        return machines(*given, **named)

    monkeypatch.setattr(rig.account, "machines", counted)
    return asked


def test_nodes_that_all_run_are_listed_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a cloud counts the end of each from its own start, as Google does."""
    made = rig.create()
    machine = next(iter(rig.account.machines_.values()))
    later = replace(machine.node, expires=(machine.node.expires or 0.0) + 2.0)
    rig.account.machines_[machine.id] = replace(machine, node=later)
    asked = listings(rig, monkeypatch)
    assert rig.create() == made
    assert len(asked) == 1


def test_nodes_of_which_one_was_started_or_moved_are_asked_for_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.create()
    machine = next(iter(rig.account.machines_.values()))
    rig.account.machines_[machine.id] = replace(
        machine, node=replace(machine.node, state="stopped")
    )
    asked = listings(rig, monkeypatch)
    rig.create()
    assert len(asked) > 1
    rig.account.clock.sleep(13 * 3600)  # past their end: they begin a new life
    nodes = rig.provider.create(rig.plan, rig.identity, no_journal)
    assert {node.expires for node in nodes} == {rig.account.clock.now() + 12 * 3600}


SPOT_PLAN = cloud_plan(make_plan(workers=2))
SPOT_PLAN = replace(
    SPOT_PLAN, nodes=tuple(replace(node, provisioning=SPOT) for node in SPOT_PLAN.nodes)
)


def test_spot_zones_of_a_region_are_tried_in_the_order_of_the_evidence(rig: Rig) -> None:
    plan = placed(SPOT_PLAN, "west-a", "east")
    rig.account.spot = {"east-b": 9.0, "east-a": 3.0}
    for place in ("west-a", "east-b"):
        rig.refuse(place, CapacityError(f"no T4 in {place}", scope="zone"))
    assert rig.create(plan)[0] == "mnist-chief0 east-a"
    assert rig.account.asked_of_spot == [("east-a", "east-b")]
    assert rig.lines[0] == (
        "spot order ('west-a', 'east-b', 'east-a') east-b 9/10, east-a 3/10 (score)"
    )


@pytest.mark.parametrize(
    "told", [{}, {"east-a": 5.0, "east-b": 5.0}, PermissionsError("may not ask")], ids=str
)
def test_without_evidence_the_order_is_the_cloud_s(rig: Rig, told: Any) -> None:
    rig.account.spot = told
    assert rig.create(placed(SPOT_PLAN, "east"))[0] == "mnist-chief0 east-a"
    assert not [line for line in rig.lines if line.startswith("spot order")]


def test_named_zones_and_nodes_on_demand_need_no_evidence(rig: Rig) -> None:
    rig.account.spot = {"east-b": 9.0}
    plan = placed(SPOT_PLAN, "east-a", "east-b", "west-a")
    assert rig.create(plan)[0] == "mnist-chief0 east-a"
    rig.provider.destroy("mnist", rig.journal)
    assert rig.create(placed(rig.plan, "east"))[0] == "mnist-chief0 east-a"
    assert rig.account.asked_of_spot == []


def test_zones_without_evidence_are_tried_last(rig: Rig) -> None:
    rig.account.spot = {"east-b": 1.0}
    assert rig.create(placed(SPOT_PLAN, "east"))[0] == "mnist-chief0 east-b"


def placed(plan: Plan, *placement: str) -> Plan:
    return replace(plan, config=replace(plan.config, placement=placement))


FLEX = Provisioning(market="flex-start")
QUEUED = replace(
    SPOT_PLAN, nodes=tuple(replace(node, provisioning=FLEX) for node in SPOT_PLAN.nodes)
)
"""Waits 1800 s in the queue of the last place."""


def test_flex_start_nodes_wait_in_the_queue_of_the_last_place_alone(rig: Rig) -> None:
    rig.account.queue = dict.fromkeys(QUEUED.names, 900.0)
    assert rig.create(QUEUED)[0] == "mnist-chief0 west-a"
    assert {(str(order.place), order.queue) for order in rig.account.orders} == {
        ("east-a", 0.0),
        ("east-b", 0.0),
        ("west-a", 1800.0),
    }


def test_what_waits_in_the_queue_is_not_counted_as_billed(rig: Rig) -> None:
    events: list[Line] = []
    rig.account.queue = dict.fromkeys(QUEUED.names, 900.0)

    def journal(event: Event, /) -> None:
        events.append(to_line(event, time=rig.account.clock.now(), pid=1))

    begun = rig.account.clock.now()
    nodes = rig.provider.create(QUEUED, rig.identity, journal)
    journal(NodesPlaced(places={node.name: node.placement for node in nodes}))
    hours = node_hours(events, is_up=True)
    assert {span.node for span in hours} == set(QUEUED.names)
    assert all(900 <= span.begin - begun < 1000 for span in hours)


def test_a_request_that_waited_in_vain_leaves_nothing_and_says_why(rig: Rig) -> None:
    rig.account.queue = {"mnist-worker1": 7200.0, "mnist-chief0": 7200.0, "mnist-worker0": 7200.0}
    with pytest.raises(CapacityError, match="no capacity in west-a while the request waited"):
        rig.create(QUEUED)
    assert rig.account.holds() == []
    rig.account.unqueued = QuotaError("PREEMPTIBLE_GPUS: 0", scope="region")
    with pytest.raises(CapacityError, match="PREEMPTIBLE_GPUS: 0"):
        rig.create(QUEUED)
    assert rig.account.holds() == []


def test_nodes_are_not_billed_for_long_while_others_wait(rig: Rig) -> None:
    """The chief is there at once, the last worker in half an hour."""
    rig.account.queue = {"mnist-worker1": 1700.0}
    begun = rig.account.clock.now()
    with pytest.raises(CapacityError) as caught:
        rig.create(placed(QUEUED, "west-a"))
    assert (
        "mnist-worker1: no capacity 10 min after mnist-chief0, mnist-worker0 began to run, which "
        "would be billed until all of them do"
    ) in caught.value.message
    assert 600 <= rig.account.clock.now() - begun < 700
    assert rig.account.holds() == []


def test_a_node_that_is_replaced_waits_as_long_as_it_may(rig: Rig) -> None:
    rig.create(placed(QUEUED, "west-a"))
    (lost,) = [m.id for m in rig.account.machines() if m.node.name == "mnist-worker1"]
    del rig.account.machines_[lost]
    rig.account.queue = {"mnist-worker1": 1700.0}
    assert rig.create(QUEUED)[2] == "mnist-worker1 east-a"


def test_an_up_that_was_killed_in_the_queue_goes_on_waiting(rig: Rig) -> None:
    rig.account.queue = dict.fromkeys(QUEUED.names, 1700.0)
    begun = rig.account.clock.now()
    with (
        patch.object(Creation, "_await", side_effect=SystemExit),
        patch.object(create, "roll_back", lambda error, *_: error),
        pytest.raises(SystemExit),
    ):
        rig.create(placed(QUEUED, "west-a"))
    assert len(rig.account.machines()) == 3
    requests = len(rig.account.orders)
    assert rig.create(placed(QUEUED, "west-a"))[0] == "mnist-chief0 west-a"
    assert rig.account.clock.now() - begun >= 1700
    assert len(rig.account.orders) == requests
