"""kill -9 before and after every API call of up and of down, on every cloud: nothing is left."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.support.cloud_client import Verb
from tests.support.cloud_rig import CLOUDS, THOROUGH, Rig, rigged


@pytest.fixture(scope="module", params=CLOUDS)
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rigged(request.param, tmp_path_factory.mktemp(request.param)) as rig:
        yield rig


def at_every_call(rig: Rig, do: Verb, then: Callable[[], None], half: int | None = None) -> None:
    """`then` after each kill. `half`: only where number and moment add up to even, or to odd,
    so that two tests together try every point."""
    tried = 0
    points = ((number, after) for number in itertools.count(1) for after in (False, True))
    for number, after in points:  # itertools.product would list the endless count first
        if half is not None and (number + after) % 2 != half and not THOROUGH:
            continue
        rig.begin_anew()
        if do in ("destroy", "remove", "leave"):
            assert rig.run("create").nodes
        if not rig.killed(do, number, after):
            break
        tried += 1
        try:
            then()
        except BaseException:
            calls = [call["action"] for call in rig.cloud.calls()]
            when = "after" if after else "before"
            print(f"killed {when} call {number} of {do}: {calls[number - 1 : number]}")
            raise
    assert tried > (2 if do in ("remove", "leave") else 10)
    print(f"{rig.cloud.name}: {do} was killed at {tried} points")


@pytest.mark.parametrize("verb", ["create", "destroy"])
def test_a_killed_up_or_down_is_cleared_away(rig: Rig, verb: Verb) -> None:
    def destroyed() -> None:
        assert not rig.run("destroy").error
        assert rig.held() == []

    at_every_call(rig, verb, destroyed, half=0)


@pytest.mark.parametrize("verb", ["create", "destroy"])
def test_a_killed_up_or_down_is_cleared_away_where_no_file_tells_of_it(
    rig: Rig, verb: Verb
) -> None:
    """Another machine, or a lost state folder: what is there is read from labels alone."""

    def swept() -> None:
        rig.cloud.quiet()
        for name in rig.run("sweep").clusters:
            assert name == "mnist"
            assert not rig.run("destroy", expected=False).error
        assert rig.held() == []

    at_every_call(rig, verb, swept, half=1)


def test_a_killed_up_is_finished_by_the_next_and_nothing_is_doubled(rig: Rig) -> None:
    def finished() -> None:
        made = rig.run("create").nodes
        assert [node.name for node in made] == rig.instances() == rig.names()
        assert not rig.run("destroy").error
        assert rig.held() == []

    at_every_call(rig, "create", finished)


def test_a_killed_removal_of_one_node_is_finished_and_touches_no_other(rig: Rig) -> None:
    """`up --shrink` and `up --replace`: the rest of the cluster goes on, and grows again."""

    def removed() -> None:
        rig.cloud.quiet()
        assert not rig.run("remove").error
        assert rig.instances() == rig.names()[:-1]
        assert [node.name for node in rig.run("create").nodes] == rig.names()
        assert not rig.run("destroy").error
        assert rig.held() == []

    at_every_call(rig, "remove", removed)


LEFT = {
    "gcp": ["network cloudtrain-mnist", "subnetwork cloudtrain-mnist"],
    "aws": ["security group cloudtrain-mnist"],
    "azure": [],
}
"""What a machine that deletes itself was using until then; it has no price."""


def test_a_machine_that_deletes_itself_leaves_only_what_it_was_using(rig: Rig) -> None:
    rig.begin_anew()
    assert rig.run("create").nodes
    assert not rig.run("leave").error
    held = rig.held()
    assert [line for each in LEFT[rig.name] for line in held if line.startswith(each)] == held
    assert rig.run("sweep").clusters == (["mnist"] if held else [])
    assert not rig.run("destroy", expected=False).error
    assert rig.held() == []


def test_a_machine_killed_while_it_deletes_itself_is_cleared_away(rig: Rig) -> None:
    def cleared() -> None:
        rig.cloud.quiet()
        for name in rig.run("sweep").clusters:
            assert not rig.run("destroy", expected=False).error, name
        assert rig.held() == []

    at_every_call(rig, "leave", cleared, half=0)
