"""Each API call in turn goes wrong, on every cloud: done or a clean failure, no leak, no double."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.standins.faults import EVER, FAULTS
from tests.support.cloud_client import Haste
from tests.support.cloud_rig import MACHINES, THOROUGH, Rig, rigged

NEVER = (503, 403, 500, 429)
GOOGLES_OWN_PATIENCE = "token"
"""google-auth asks for it again and again by itself, and sleeps in real time: 50 s."""
IN_TURN = list(FAULTS) if THOROUGH else ["reset after the work"]


@pytest.fixture(scope="module", params=MACHINES)
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rigged(request.param, tmp_path_factory.mktemp(request.param)) as rig:
        yield rig


def assert_done(rig: Rig) -> None:
    """All our calls say the same thing once however often they are made."""
    made = rig.run("create").nodes
    assert [node.name for node in made] == rig.instances() == rig.names()
    assert not rig.run("destroy").error
    assert rig.held() == []


@pytest.mark.parametrize("fault", FAULTS)
def test_every_call_goes_wrong_once(rig: Rig, fault: str) -> None:
    rig.begin_anew()
    rig.cloud.fault(**FAULTS[fault], action="*", times=EVER, once_each=True)
    assert_done(rig)


@pytest.mark.parametrize("fault", IN_TURN)
def test_one_call_after_another_goes_wrong(rig: Rig, fault: str) -> None:
    for number in itertools.count(1):
        rig.begin_anew()
        rig.cloud.fault(**FAULTS[fault], number=number)
        assert_done(rig)
        calls = rig.cloud.calls()
        if number > len(calls):
            break
    print(f"{rig.name}: {fault} at {number - 1} calls")
    assert number > 20


@pytest.mark.parametrize("shift", range(len(NEVER)) if THOROUGH else [0])
def test_an_action_that_never_works_ends_clean(rig: Rig, shift: int) -> None:
    """Each action by one of these answers, or by all."""
    rig.begin_anew()
    assert rig.run("create").nodes
    assert not rig.run("destroy").error
    hasty = Haste(speed=1000.0).timing()
    actions = sorted({call["action"] for call in rig.cloud.calls()})
    if not THOROUGH:
        actions = [action for action in actions if action != GOOGLES_OWN_PATIENCE]
    for number, action in enumerate(actions):
        status = NEVER[(number + shift) % len(NEVER)]
        rig.begin_anew()
        rig.cloud.fault("answer", status=status, action=action, times=EVER)
        made = rig.run("create", timing=hasty)
        assert made.clean, (action, made)
        assert made.error or made.nodes
        gone = rig.run("destroy", timing=hasty)
        assert gone.clean, (action, gone)
        assert gone.error or rig.held() == []
        rig.cloud.no_more_faults()
        # By the clock of the journal's times: with a slower one, they would be in the future.
        assert not rig.run("destroy", timing=hasty).error
        assert rig.held() == [], action


@pytest.mark.parametrize("seconds", [0.0, 0.1])
def test_ctrl_c_at_any_call_of_up_leaves_nothing(rig: Rig, seconds: float) -> None:
    """The call in flight is done at once, or only when the client has long turned to clearing."""
    for number in itertools.count(1):
        rig.begin_anew()
        running = rig.client.ready(rig.job("create"), rig.journal)
        rig.cloud.fault("interrupt", number=number, pid=running.pid, seconds=seconds)
        outcome = running.go().outcome()
        calls = rig.cloud.calls()
        if number > len(calls):
            break
        assert outcome.error == "KeyboardInterrupt", (calls[number - 1], outcome)
        assert rig.held() == [], calls[number - 1]
    print(f"{rig.name}: Ctrl-C at {number - 1} calls")
    assert number > 10


def test_what_is_listed_late_is_destroyed_too(rig: Rig) -> None:
    """The client dies right after the last node was asked for; no list tells of any of them."""
    launches = launching(rig)
    for number, after in itertools.product(launches, (False, True) if THOROUGH else (True,)):
        rig.begin_anew()
        rig.cloud.set(lag=0.3)
        rig.killed("create", number, after)
        assert not rig.run("destroy").error
        assert rig.held() == []


def launching(rig: Rig) -> list[int]:
    """The numbers of the calls of `create` that made VMs, and of those just after."""
    rig.begin_anew()
    assert rig.run("create").nodes
    words = ("RunInstances", "instances.insert", "virtualMachines", "nodes.create")
    named = [c["number"] for c in rig.cloud.calls() if any(word in c["action"] for word in words)]
    assert not rig.run("destroy").error
    return list(range(named[0], named[-1] + 2))


def test_up_again_makes_no_node_twice(rig: Rig) -> None:
    rig.begin_anew()
    assert rig.run("create").nodes
    again = rig.run("create").nodes
    assert [node.name for node in again] == rig.instances() == rig.names()
    assert not rig.run("destroy").error


def test_up_after_down_makes_new_nodes_with_the_same_keys(rig: Rig) -> None:
    """Also where a token is the same: EC2 tells of the instance that has ended by it."""
    rig.begin_anew()
    for _ in range(3):
        assert_done(rig)
