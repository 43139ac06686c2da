"""kill -9 at every API call of an `up` whose flex-start requests wait in Google's queue."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from cloudtrain.model import NodeGroup, Provisioning
from tests.standins.cloud import start
from tests.support.cloud_client import client
from tests.support.cloud_rig import Rig

FLEX = {
    "strategy": "custom",
    "nodes": {
        "worker": NodeGroup(
            machine="a2-highgpu-1g", count=2, provisioning=Provisioning(market="flex-start")
        )
    },
    "placement": ("us-central1-a",),
}
QUEUED = 0.3
"""Seconds of this machine for which each request waits."""


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("queue")
    with start("gcp") as cloud, client(cloud, folder) as clients:
        yield Rig("gcp", cloud, clients, folder, FLEX)


def at_every_call(rig: Rig, then: Callable[[], None], half: int) -> None:
    """`then` after each kill from the first request for a VM on; every second point, so that two
    tests together try all."""
    rig.begin_anew()
    rig.cloud.set(flex_start={"": QUEUED})
    assert len(rig.run("create").nodes) == 2
    first = [call["action"] for call in rig.cloud.calls()].index("instances.insert") + 1
    waited = 0
    for number, after in ((n, a) for n in itertools.count(first) for a in (False, True)):
        if (number + after) % 2 != half:
            continue
        rig.begin_anew()
        rig.cloud.set(flex_start={"": QUEUED})
        if not rig.killed("create", number, after):
            break
        waited += any(line.endswith("PENDING") for line in rig.cloud.holdings())
        then()
    assert waited > 1


def test_what_waits_for_an_up_that_was_killed_is_cleared_away(rig: Rig) -> None:
    def destroyed() -> None:
        assert not rig.run("destroy").error
        assert rig.held() == []

    at_every_call(rig, destroyed, half=0)


def test_what_waits_for_an_up_that_was_killed_is_waited_for_by_the_next(rig: Rig) -> None:
    def finished() -> None:
        made = rig.run("create").nodes
        assert [node.name for node in made] == rig.instances() == rig.names()
        assert not rig.run("destroy").error
        assert rig.held() == []

    at_every_call(rig, finished, half=1)
