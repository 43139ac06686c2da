"""kill -9 before and after every API call of up and of down, on every cloud: nothing is left."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.cloud_client import Verb
from tests.cloud_rig import CLOUDS, Rig, rigged


@pytest.fixture(scope="module", params=CLOUDS)
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rigged(request.param, tmp_path_factory.mktemp(request.param)) as rig:
        yield rig


def points() -> Iterator[tuple[int, bool]]:
    for number in itertools.count(1):
        yield number, False
        yield number, True


def at_every_call(rig: Rig, do: Verb, then: Callable[[int], None]) -> int:
    """`then` after each kill, with the number of the point; returns how many there were."""
    for count, (number, after) in enumerate(points()):
        rig.begin_anew()
        if do == "destroy":
            assert rig.run("create").nodes
        if not rig.killed(do, number, after):
            assert count > 10
            return count
        try:
            then(count)
        except BaseException:
            calls = [call["action"] for call in rig.cloud.calls()]
            when = "after" if after else "before"
            print(f"killed {when} call {number} of {do}: {calls[number - 1 : number]}")
            raise
    raise AssertionError


def test_a_killed_up_or_down_is_cleared_away(
    rig: Rig, record_property: Callable[[str, object], None]
) -> None:
    def destroyed(count: int) -> None:
        assert not rig.run("destroy").error
        assert rig.held() == []

    for verb in ("create", "destroy"):
        count = at_every_call(rig, verb, destroyed)
        record_property(f"{rig.cloud.name} {verb} points", count)
        print(f"{rig.cloud.name}: killed at {count} points of {verb}")


def test_a_killed_up_or_down_is_cleared_away_where_no_file_tells_of_it(rig: Rig) -> None:
    """Another machine, or a lost state folder: what is there is read from labels alone."""

    def swept(count: int) -> None:
        rig.cloud.quiet()
        for name in rig.run("sweep").clusters:
            assert name == "mnist"
            assert not rig.run("destroy", expected=False).error
        assert rig.held() == []

    for verb in ("create", "destroy"):
        at_every_call(rig, verb, swept)


def test_a_killed_up_is_finished_by_the_next_and_nothing_is_doubled(rig: Rig) -> None:
    def finished(count: int) -> None:
        made = rig.run("create").nodes
        assert [node.name for node in made] == rig.instances() == rig.names()
        assert not rig.run("destroy").error
        assert rig.held() == []

    at_every_call(rig, "create", finished)
