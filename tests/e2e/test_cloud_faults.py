"""Each API call in turn goes wrong, on every cloud: done or a clean failure, no leak, no double."""

from __future__ import annotations

import itertools

import pytest

from tests.standins.faults import EVER, FAULTS
from tests.support.cloud_client import Haste
from tests.support.cloud_rig import MACHINES, Point, Rig, named, on_each_cloud
from tests.support.lanes import Cases

NEVER = (503, 403, 500, 429)
GOOGLES_OWN_PATIENCE = "token"
"""google-auth asks for it again and again by itself, and sleeps in real time: 50 s."""
pytestmark = pytest.mark.parametrize("rig", MACHINES, indirect=True)


def assert_done(rig: Rig) -> None:
    """All our calls say the same thing once however often they are made."""
    made = rig.run("create").nodes
    assert [node.name for node in made] == rig.instances() == rig.names()
    assert not rig.run("destroy").error
    assert rig.held() == []


@pytest.mark.sweep(1, per="rig")
@pytest.mark.parametrize("fault", FAULTS)
def test_every_call_goes_wrong_once(rig: Rig, fault: str) -> None:
    rig.begin_anew()
    rig.cloud.fault(**FAULTS[fault], action="*", times=EVER, once_each=True)
    assert_done(rig)


def calls_of_up_and_down(rig: Rig) -> list[str]:
    return rig.undisturbed("up and down", lambda: assert_done(rig))


def calls_of_up(rig: Rig) -> list[str]:
    return rig.undisturbed("up", lambda: rig.run("create").nodes)


@pytest.mark.sweep(1, per="rig")
@pytest.mark.parametrize("fault", FAULTS)
def test_one_call_after_another_goes_wrong(rig: Rig, fault: str, cases: Cases) -> None:
    """The sample: the call that makes a VM, the first that deletes anything, and two drawn."""
    actions = calls_of_up_and_down(rig)
    assert len(actions) > 20
    numbers = range(1, len(actions) + 1)
    known = [actions.index(str(point.action)) + 1 for point in named(actions)]
    tried = 0
    for number in cases.of(numbers, 2, always=known):
        rig.begin_anew()
        rig.cloud.fault(**FAULTS[fault], number=number)
        assert_done(rig)
        tried += any(call["fault"] for call in rig.cloud.calls())
    print(f"{rig.name}: {fault} at {tried} calls")
    assert tried > (20 if cases.every else 2)


@pytest.mark.sweep(1, per="rig")
@pytest.mark.parametrize("shift", range(len(NEVER)))
def test_an_action_that_never_works_ends_clean(rig: Rig, shift: int, cases: Cases) -> None:
    """Each action by one of these answers, or by all."""
    hasty = Haste(speed=1000.0).timing()
    actions = calls_of_up_and_down(rig)
    known = [str(point.action) for point in named(actions)]
    different = sorted(set(actions) - ({GOOGLES_OWN_PATIENCE} if not cases.every else set()))
    for action in cases.of(different, 1, always=known):
        status = NEVER[(different.index(action) + shift) % len(NEVER)]
        rig.begin_anew()
        rig.cloud.fault("answer", status=status, action=action, times=EVER)
        made = rig.run("create", timing=hasty)
        assert made.clean, (action, made)
        assert made.error or made.nodes
        gone = rig.run("destroy", timing=hasty)
        assert gone.clean, (action, gone)
        assert gone.error or rig.held() == []
        assert any(call["fault"] for call in rig.cloud.calls()), action
        rig.cloud.no_more_faults()
        # By the clock of the journal's times: with a slower one, they would be in the future.
        assert not rig.run("destroy", timing=hasty).error
        assert rig.held() == [], action


@on_each_cloud(0.0, 0.1)
@pytest.mark.parametrize("seconds", [0.0, 0.1])
def test_ctrl_c_at_any_call_of_up_leaves_nothing(rig: Rig, seconds: float, cases: Cases) -> None:
    """The call in flight is done at once, or only when the client has long turned to clearing. The
    sample: at the call that makes a VM, where a fault was found, and at two drawn ones."""
    actions = calls_of_up(rig)
    every = (Point(number=number) for number in itertools.count(1))
    some = [Point(number=number) for number in cases.of(range(1, len(actions) + 1), 2)]
    tried = 0
    for point in every if cases.every else [*named(actions)[:1], *some]:
        rig.begin_anew()
        running = rig.client.ready(rig.job("create"), rig.journal)
        where = {"number": point.number, "action": point.action}
        rig.cloud.fault("interrupt", **where, pid=running.pid, seconds=seconds)
        outcome = running.go().outcome()
        met = [call for call in rig.cloud.calls() if call["fault"]]
        if not met:
            break
        tried += 1
        assert outcome.error == "KeyboardInterrupt", (met, outcome)
        assert rig.held() == [], met
    print(f"{rig.name}: Ctrl-C at {tried} calls")
    assert tried > (10 if cases.every else 0)


@on_each_cloud()
def test_what_is_listed_late_is_destroyed_too(rig: Rig, cases: Cases) -> None:
    """The client dies right after the last node was asked for; no list tells of any of them."""
    launches = launching(rig)
    points = [Point(number=n, after=after) for n in launches for after in (False, True)]
    for point in cases.of(points, 1, always=[Point(number=launches[0], after=True)]):
        rig.begin_anew()
        rig.cloud.set(lag=0.3)
        rig.killed("create", point)
        assert not rig.run("destroy").error
        assert rig.held() == []


def launching(rig: Rig) -> list[int]:
    """The numbers of the calls of `create` that made VMs, and of those just after."""
    words = ("RunInstances", "instances.insert", "virtualMachines", "nodes.create")
    numbered = enumerate(calls_of_up(rig), start=1)
    named = [number for number, action in numbered if any(word in action for word in words)]
    return list(range(named[0], named[-1] + 2))


@on_each_cloud()
def test_up_again_makes_no_node_twice(rig: Rig) -> None:
    rig.begin_anew()
    assert rig.run("create").nodes
    again = rig.run("create").nodes
    assert [node.name for node in again] == rig.instances() == rig.names()
    assert not rig.run("destroy").error


@on_each_cloud()
def test_up_after_down_makes_new_nodes_with_the_same_keys(rig: Rig) -> None:
    """Also where a token is the same: EC2 tells of the instance that has ended by it."""
    rig.begin_anew()
    for _ in range(3):
        assert_done(rig)
