"""Each API call in turn goes wrong, on every cloud: done or a clean failure, no leak, no double."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cloud_client import PACE
from tests.cloud_rig import CLOUDS, THOROUGH, Rig, rigged
from tests.standins.faults import EVER

FAULTS: dict[str, dict[str, Any]] = {
    "429": {"kind": "answer", "status": 429, "retry_after": 0.05},
    "500": {"kind": "answer", "status": 500},
    "503": {"kind": "answer", "status": 503},
    "no answer": {"kind": "silence"},
    "no answer after the work": {"kind": "silence", "after": True},
    "500 after the work": {"kind": "answer", "status": 500, "after": True},
    "reset": {"kind": "reset"},
    "reset after the work": {"kind": "reset", "after": True},
}
IN_TURN = list(FAULTS) if THOROUGH else ["reset after the work"]


@pytest.fixture(scope="module", params=CLOUDS)
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rigged(request.param, tmp_path_factory.mktemp(request.param)) as rig:
        yield rig


def assert_done(rig: Rig) -> None:
    """All our calls say the same thing once however often they are made."""
    made = rig.run("create").nodes
    assert [node.name for node in made] == rig.instances() == rig.names()
    assert not rig.run("destroy").error
    assert rig.cloud.holdings() == []


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
    print(f"{rig.cloud.name}: {fault} at {number - 1} calls")
    assert number > 20


@pytest.mark.parametrize("status", [429, 500, 503, 403])
def test_an_action_that_never_works_ends_clean(rig: Rig, status: int) -> None:
    rig.begin_anew()
    assert rig.run("create").nodes
    assert not rig.run("destroy").error
    actions = sorted({call["action"] for call in rig.cloud.calls()})
    for action in actions:
        rig.begin_anew()
        rig.cloud.fault("answer", status=status, action=action, times=EVER)
        made = rig.run("create")
        assert made.clean, (action, made)
        assert made.error or made.nodes
        gone = rig.run("destroy")
        assert gone.clean, (action, gone)
        assert gone.error or rig.cloud.holdings() == []
        rig.cloud.no_more_faults()
        assert not rig.run("destroy").error
        assert rig.cloud.holdings() == [], action


@pytest.mark.parametrize("calls", [5, 12, 17, 20, 23])
def test_ctrl_c_with_creations_in_flight_leaves_nothing(rig: Rig, calls: int) -> None:
    rig.begin_anew()
    rig.cloud.set(delay=0.2)
    running = rig.client.ready(rig.job("create"), rig.journal)
    rig.cloud.fault("delay", action="*", seconds=0.02, times=EVER)
    running.go()
    while len(rig.cloud.calls()) < calls:
        time.sleep(0.005)
    os.kill(running.pid, signal.SIGINT)
    outcome = running.outcome()
    assert outcome.error == "KeyboardInterrupt", outcome
    assert [line for line in rig.cloud.holdings() if not line.startswith("key pair")] == []


def test_what_is_listed_late_is_destroyed_too(rig: Rig) -> None:
    """The client dies right after the last node was asked for; no list tells of any of them."""
    rig.begin_anew()
    rig.cloud.set(lag=0.3)
    assert rig.run("create").nodes
    rig.cloud.set(lag=0.0)
    assert not rig.run("destroy").error
    launches = launching(rig)
    for number, after in itertools.product(launches, (False, True)):
        rig.begin_anew()
        rig.cloud.set(lag=0.3)
        rig.killed("create", number, after)
        assert not rig.run("destroy").error
        rig.cloud.quiet()
        assert rig.cloud.holdings() == []


def launching(rig: Rig) -> list[int]:
    """The numbers of the calls of `create` that made VMs, and of those just after."""
    rig.begin_anew()
    assert rig.run("create").nodes
    words = ("RunInstances", "instances.insert", "virtualMachines")
    named = [c["number"] for c in rig.cloud.calls() if any(word in c["action"] for word in words)]
    assert not rig.run("destroy").error
    return list(range(named[0], named[-1] + 2))


def test_two_processes_that_create_at_once_make_no_node_twice(rig: Rig) -> None:
    rig.begin_anew()
    first = rig.client.run(rig.job("create"), rig.journal)
    assert first.nodes
    again = rig.client.run(rig.job("create"), rig.journal)
    assert [node.name for node in again.nodes] == rig.instances() == rig.names()
    assert PACE.listing < 1
    assert not rig.run("destroy").error
