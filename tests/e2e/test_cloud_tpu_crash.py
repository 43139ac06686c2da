"""kill -9 before and after every API call of up and of down of a TPU: nothing is left."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.support.cloud_client import Verb
from tests.support.cloud_rig import Rig, rigged


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rigged("tpu", tmp_path_factory.mktemp("tpu")) as rig:
        yield rig


def at_every_call(rig: Rig, do: Verb, then: Callable[[], None], half: int) -> None:
    """`then` after each kill; every second point, so that two tests together try all."""
    tried = 0
    for number, after in ((n, a) for n in itertools.count(1) for a in (False, True)):
        if (number + after) % 2 != half:
            continue
        rig.begin_anew()
        if do == "destroy":
            assert rig.run("create").nodes
        if not rig.killed(do, number, after):
            break
        tried += 1
        then()
    assert tried > 5


@pytest.mark.parametrize("verb", ["create", "destroy"])
def test_a_killed_up_or_down_is_cleared_away(rig: Rig, verb: Verb) -> None:
    def destroyed() -> None:
        assert not rig.run("destroy").error
        assert rig.held() == []

    at_every_call(rig, verb, destroyed, half=0)


def test_a_killed_up_is_finished_by_the_next_and_nothing_is_doubled(rig: Rig) -> None:
    def finished() -> None:
        assert [node.name for node in rig.run("create").nodes] == rig.names()
        assert [line for line in rig.held() if line.startswith("TPU")] == [
            "TPU mnist-worker0 us-central1-a"
        ]
        assert not rig.run("destroy").error
        assert rig.held() == []

    at_every_call(rig, "create", finished, half=1)
