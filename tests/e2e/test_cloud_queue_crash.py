"""kill -9 at every API call of an `up` whose flex-start requests wait in Google's queue."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cloudtrain.core.model import NodeGroup, Provisioning
from tests.support.cloud_rig import Rig, Rigs
from tests.support.lanes import Cases

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


@pytest.fixture
def rig(rigs: Rigs) -> Rig:
    return rigs.named("queue", FLEX)


def kills(rig: Rig, cases: Cases) -> Iterator[None]:
    """Yields after each kill from the first request for a VM on."""

    def begin() -> None:
        rig.begin_anew()
        rig.cloud.set(flex_start={"": QUEUED})

    begin()
    assert len(rig.run("create").nodes) == 2
    first = [call["action"] for call in rig.cloud.calls()].index("instances.insert") + 1
    waited = 0
    for _ in rig.kills("create", cases, begin, first):
        waited += any(line.endswith("PENDING") for line in rig.cloud.holdings())
        yield
    assert waited > (1 if cases.every else 0)


def test_what_waits_for_an_up_that_was_killed_is_cleared_away(rig: Rig, cases: Cases) -> None:
    for _ in kills(rig, cases):
        assert not rig.run("destroy").error
        assert rig.held() == []


def test_what_waits_for_an_up_that_was_killed_is_waited_for_by_the_next(
    rig: Rig, cases: Cases
) -> None:
    for _ in kills(rig, cases):
        made = rig.run("create").nodes
        assert [node.name for node in made] == rig.instances() == rig.names()
        assert not rig.run("destroy").error
        assert rig.held() == []
