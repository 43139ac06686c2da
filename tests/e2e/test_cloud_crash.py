"""kill -9 before and after every API call of up and of down, on every cloud: nothing is left."""

from __future__ import annotations

import pytest

from tests.support.cloud_client import Verb
from tests.support.cloud_rig import CLOUDS, Rig
from tests.support.lanes import Cases

pytestmark = pytest.mark.parametrize("rig", CLOUDS, indirect=True)


@pytest.mark.parametrize("verb", ["create", "destroy"])
def test_a_killed_up_or_down_is_cleared_away(rig: Rig, verb: Verb, cases: Cases) -> None:
    for _ in rig.kills(verb, cases):
        assert not rig.run("destroy").error
        assert rig.held() == []


@pytest.mark.parametrize("verb", ["create", "destroy"])
def test_a_killed_up_or_down_is_cleared_away_where_no_file_tells_of_it(
    rig: Rig, verb: Verb, cases: Cases
) -> None:
    """Another machine, or a lost state folder: what is there is read from labels alone."""
    for _ in rig.kills(verb, cases):
        rig.cloud.quiet()
        for name in rig.run("sweep").clusters:
            assert name == "mnist"
            assert not rig.run("destroy", expected=False).error
        assert rig.held() == []


def test_a_killed_up_is_finished_by_the_next_and_nothing_is_doubled(rig: Rig, cases: Cases) -> None:
    for _ in rig.kills("create", cases):
        made = rig.run("create").nodes
        assert [node.name for node in made] == rig.instances() == rig.names()
        assert not rig.run("destroy").error
        assert rig.held() == []


def test_a_killed_removal_of_one_node_is_finished_and_touches_no_other(
    rig: Rig, cases: Cases
) -> None:
    """`up --shrink` and `up --replace`: the rest of the cluster goes on, and grows again."""
    for _ in rig.kills("remove", cases):
        rig.cloud.quiet()
        assert not rig.run("remove").error
        assert rig.instances() == rig.names()[:-1]
        assert [node.name for node in rig.run("create").nodes] == rig.names()
        assert not rig.run("destroy").error
        assert rig.held() == []


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


def test_a_machine_killed_while_it_deletes_itself_is_cleared_away(rig: Rig, cases: Cases) -> None:
    for _ in rig.kills("leave", cases):
        rig.cloud.quiet()
        for name in rig.run("sweep").clusters:
            assert not rig.run("destroy", expected=False).error, name
        assert rig.held() == []
