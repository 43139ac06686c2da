"""kill -9 before and after every API call of up and of down of a TPU: nothing is left."""

from __future__ import annotations

import pytest

from tests.support.cloud_client import Verb
from tests.support.cloud_rig import Rig
from tests.support.lanes import Cases

pytestmark = pytest.mark.parametrize("rig", ["tpu"], indirect=True)


@pytest.mark.parametrize("verb", ["create", "destroy"])
def test_a_killed_up_or_down_is_cleared_away(rig: Rig, verb: Verb, cases: Cases) -> None:
    for _ in rig.kills(verb, cases):
        assert not rig.run("destroy").error
        assert rig.held() == []


def test_a_killed_up_is_finished_by_the_next_and_nothing_is_doubled(rig: Rig, cases: Cases) -> None:
    for _ in rig.kills("create", cases):
        assert [node.name for node in rig.run("create").nodes] == rig.names()
        assert [line for line in rig.held() if line.startswith("TPU")] == [
            "TPU mnist-worker0 us-central1-a"
        ]
        assert not rig.run("destroy").error
        assert rig.held() == []
