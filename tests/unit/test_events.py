"""The journal's events: their lines, of every version, and what they mean in any order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.core import events
from cloudtrain.core.events import (
    KINDS,
    USES,
    AttemptBegun,
    AttemptStarted,
    CleanupFailed,
    ClusterGone,
    DownBegun,
    DownFailed,
    DownOrdered,
    EndMoveBegun,
    Event,
    ImageChosen,
    Lifetime,
    Line,
    NodeCreated,
    NodeDeletionBegun,
    NodeRequested,
    NodesPlaced,
    PlacementRefused,
    RemovalBegun,
    RunEnded,
    UpBegun,
    UpCompleted,
    being_destroyed,
    down_fault,
    from_line,
    images,
    is_down_ordered,
    known_end,
    last_use,
    made_here,
    nodes_leaving,
    nodes_requested,
    nodes_standing,
    not_given_back,
    pending_nodes,
    places_tried,
    to_line,
    was_ready,
)

READINGS: tuple[Callable[[list[Line]], Any], ...] = (
    *(was_ready, being_destroyed, nodes_leaving, pending_nodes, nodes_requested, nodes_standing),
    *(not_given_back, made_here, places_tried, images, known_end, last_use, down_fault),
)

WORDS = """
create denied destroy down end_moved ended exchange formed gone idle_failed image left_over made
make move_end not_landed place placed ready refused restart shared start started up apart spot_order
budget_continued still moves generation down_ordered notice own_ends
"""


def lines(*of: Event) -> list[Line]:
    """A second apart, from 1."""
    return [to_line(event, time=float(number), pid=7) for number, event in enumerate(of, 1)]


names = st.sampled_from(["a", "b", "c"])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "str": names,
    "bool": st.booleans(),
    "int": st.integers(0, 9),
    "int | None": st.none() | st.integers(-9, 9),
    "float": st.floats(0, 9),
    "float | None": st.none() | st.floats(0, 9),
    "tuple[str, ...]": st.lists(names, unique=True).map(tuple),
    "Made | None": st.none() | st.fixed_dictionaries({}, optional={"lifetime": st.none()}),
    "Mapping[str, str]": st.dictionaries(names, names),
    "Mapping[str, float]": st.dictionaries(names, st.floats(0, 9)),
    "Mapping[str, float | None]": st.dictionaries(names, st.none() | st.floats(0, 9)),
}


def of_kind(kind: type[Event]) -> st.SearchStrategy[Event]:
    facts = {each.name: VALUES[str(each.type)] for each in fields(kind) if each.name != "time"}
    return st.builds(kind, **facts)


TODAY = """
{"event": "apart", "placement": "us-east1-b"}
{"event": "budget continued", "since": 1795339691.5}
{"event": "still", "run": "20261121-062404-k3f9", "since": 1795339691.5, "text": "chief0 waits"}
{"event": "moves", "run": "20261121-062404-k3f9"}
{"event": "notice", "kind": "end", "of": "20261121-062404-k3f9"}
{"event": "create", "node": "a-chief0", "made": {"machine": "n1-standard-8", "lifetime": 43200.0}}
{"event": "denied", "text": "not allowed", "detail": "aws sts decode-authorization-message"}
{"event": "down", "nodes": []}
{"event": "end moved", "lifetime": null, "expires": null}
{"event": "ended", "run": "20261122-082943-r06a", "state": "stopped", "exit_code": null}
{"event": "exchange", "nodes": ["a-worker1"], "whole": false}
{"event": "generation", "id": "0123456789ab"}
{"event": "gone"}
{"event": "down ordered", "why": "the store is away"}
{"event": "idle failed", "why": "the bucket is gone", "again": 1795339691.5}
{"event": "image", "key": "auto/T4", "id": "projects/x/global/images/common-cu124-v1"}
{"event": "left over", "text": "503"}
{"event": "made", "node": "a-chief0", "id": "i-1", "placement": "us-east1-b"}
{"event": "make", "what": "firewall", "name": "cloudtrain-a"}
{"event": "move end", "lifetime": 7200.0, "expires": 1795346891.5}
{"event": "not landed", "run": "20261122-082943-r06a", "why": "the bucket is gone"}
{"event": "own ends", "idle": 2400.0, "gpu": null}
{"event": "place", "placement": "us-east1-b", "region": "us-east1"}
{"event": "refused", "placement": "us-east1-b", "error": "CapacityError", "text": "no T4 today"}
{"event": "restart", "run": "20261122-082943-r06a", "task": "worker1", "attempt": 2}
{"event": "spot order", "places": ["us-east1-c", "us-east1-b"], "text": "us-east1-c 0.9 (advice)"}
{"event": "shared", "why": "unshare: Operation not permitted"}
"""
"""What the frozen sets lack."""


POOL = (
    *(event for facts in TODAY.split("\n")[1:-1] if (event := from_line(json.loads(facts)))),
    *(UpBegun(), UpCompleted(), AttemptBegun(), AttemptStarted(), RunEnded()),
    *(RemovalBegun(nodes=("a", "b"), whole=True), DownBegun(), ClusterGone(), CleanupFailed()),
    *(kind(node=node) for kind in (NodeRequested, NodeDeletionBegun) for node in "ab"),
    *(NodeCreated(node=node, id="i", placement="east-a") for node in "ab"),
    NodesPlaced(places={"a": "east-a", "b": "west-b"}),
)
histories = st.lists(st.sampled_from(POOL), max_size=12).map(lambda found: lines(*found))
strangers = st.builds(
    lambda event, name, junk: {**to_line(event, time=1.0, pid=7), name: junk},
    st.sampled_from(POOL),
    st.sampled_from(sorted({each.name for kind in KINDS.values() for each in fields(kind)})),
    st.sampled_from([None, True, 5, "", [1], {"a": 1}]),
)
"""Lines in which a fact is of another kind."""


# ── lines ────────────────────────────────────────────────────────────────────


def test_the_words_on_disk_are_these_for_ever() -> None:
    assert {word.replace("_", " ") for word in WORDS.split()} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_every_event_is_read_as_it_was_written(kind: type[Event]) -> None:
    @given(of_kind(kind))
    def check(event: Event) -> None:
        line = json.loads(json.dumps(to_line(event, time=5.5, pid=7)))
        assert list(line)[:3] == ["time", "pid", "event"]
        read = from_line(line)
        assert read == event
        assert read is not None
        assert read.time == 5.5

    check()


def frozen() -> Iterator[str]:
    for file in sorted((Path(__file__).parents[1] / "frozen").rglob("events.jsonl")):
        yield from file.read_text().splitlines()


@pytest.mark.parametrize("facts", TODAY.split("\n")[1:-1])
def test_a_line_that_clouds_cause_is_read_and_written_the_same(facts: str) -> None:
    text = facts.replace("{", '{"time": 1795339691.569, "pid": 18752, ', 1)
    line = json.loads(text)
    event = from_line(line)
    assert event is not None
    assert json.dumps(to_line(event, time=line["time"], pid=line["pid"])) == text


def test_every_event_stands_in_one_of_these_lines() -> None:
    texts = [*frozen(), *TODAY.split("\n")[1:-1]]
    assert {json.loads(text)["event"] for text in texts} == set(KINDS)


@pytest.mark.parametrize("text", sorted(set(frozen())))
def test_a_line_of_an_earlier_commit_is_read_and_would_be_written_the_same(text: str) -> None:
    line = json.loads(text)
    event = from_line(line)
    assert event is not None
    assert json.dumps(to_line(event, time=line["time"], pid=line["pid"])) == text


def test_facts_of_a_newer_version_are_passed_over() -> None:
    line = {"event": "create", "node": "a", "zone": "east", "time": "noon"}
    assert from_line(line) == NodeRequested(node="a")


@pytest.mark.parametrize(
    "line", [{}, {"event": "paused"}, {"event": "create"}, {"event": "create", "node": 5}]
)
def test_what_is_not_known_here_counts_for_nothing(line: Line) -> None:
    assert from_line(line) is None


@given(histories, st.data())
def test_no_line_of_another_version_changes_a_reading(history: list[Line], data: Any) -> None:
    newer = {"time": 3.0, "pid": 1, "event": "paused", "node": "a", "nodes": ["a"]}
    at = data.draw(st.integers(0, len(history)))
    more = [*history[:at], newer, *history[at:]]
    for reading in READINGS:
        assert reading(more) == reading(history)


@given(st.lists(strangers, max_size=8))
def test_no_reading_breaks_on_a_line_whatever_it_holds(history: list[Line]) -> None:
    for reading in READINGS:
        reading(history)


# ── what they mean ───────────────────────────────────────────────────────────


@given(histories, histories)
def test_nothing_of_a_cluster_that_is_gone_counts_for_the_next(
    before: list[Line], after: list[Line]
) -> None:
    gone = lines(ClusterGone())
    for reading in READINGS:
        assert reading([*before, *gone, *after]) == reading(after)


@given(histories)
def test_nodes_that_are_being_destroyed_hold_no_work(history: list[Line]) -> None:
    assert not (being_destroyed(history) and was_ready(history))


@given(histories)
def test_nodes_whose_removal_is_begun_are_not_in_a_cluster_that_goes_down_or_works(
    history: list[Line],
) -> None:
    started = lines(AttemptBegun())
    assert nodes_leaving([*history, *started]) == frozenset()
    assert was_ready([*history, *started])
    assert not being_destroyed([*history, *started])


@given(histories)
def test_a_down_is_gone_on_with_until_something_begins(history: list[Line]) -> None:
    down = [*history, *lines(DownBegun())]
    assert being_destroyed([*down, *lines(NodeDeletionBegun(node="a"), DownFailed(why=""))])
    for begins in (UpBegun(), AttemptBegun(), ClusterGone()):
        assert not being_destroyed([*down, *lines(begins)])


@given(histories)
def test_a_node_that_was_asked_for_is_awaited_until_it_was_seen(history: list[Line]) -> None:
    asked = [*history, *lines(NodeRequested(node="new"))]
    assert pending_nodes(asked)["new"] == 1.0
    assert "new" not in pending_nodes([*asked, *lines(NodeDeletionBegun(node="new"))])
    failed = lines(CleanupFailed(), PlacementRefused(placement="east-a"))
    assert "new" in pending_nodes([*asked, *failed])


@given(histories)
def test_only_what_was_asked_for_stands_or_is_awaited(history: list[Line]) -> None:
    requested = nodes_requested(history).keys()
    assert nodes_standing(history).keys() <= requested
    assert pending_nodes(history).keys() <= requested


def test_an_up_that_was_refused_says_that_an_earlier_down_is_over() -> None:
    """Its record begins anew although it made nothing; the nodes are of another machine's `up`."""
    down = lines(UpBegun(), UpCompleted(), DownBegun())
    assert being_destroyed(down)
    assert not being_destroyed([*down, *lines(ClusterGone())])


def test_nodes_that_are_all_removed_hold_nothing_until_up_comes_to_its_end() -> None:
    """`up --replace` has landed all of it before it says so."""
    ready = lines(UpBegun(), UpCompleted())
    assert was_ready([*ready, *lines(RemovalBegun(nodes=("a",)))])
    removed = [*ready, *lines(RemovalBegun(nodes=("a", "b"), whole=True))]
    assert not was_ready(removed)
    assert not was_ready([*removed, *lines(UpBegun())])
    assert was_ready([*removed, *lines(UpBegun(), UpCompleted())])


def test_a_down_that_did_not_say_so_ends_what_was_known_of_the_cluster() -> None:
    """One that could not see every place writes no DownBegun, and may come to its end."""
    made = {"lifetime": 60.0}
    before = lines(
        UpBegun(),
        ImageChosen(key="k", id="i"),
        NodeRequested(node="a", made=made),
        NodesPlaced(places={"a": "east-a"}),
        UpCompleted(),
    )
    assert known_end(before) == Lifetime(lifetime=60.0, born=3.0)
    assert nodes_standing(before) == {"a": {**made, "placement": "east-a"}}
    gone = [*before, *lines(ClusterGone())]
    assert known_end(gone) is None
    assert (was_ready(gone), made_here(gone), images(gone)) == (False, False, {})
    assert nodes_standing(gone) == {}


def test_what_uses_a_cluster_keeps_it_from_being_idle() -> None:
    used = lines(UpBegun(), UpCompleted(), AttemptBegun(), AttemptStarted(), RunEnded())
    assert {line["event"] for line in used} == USES
    assert last_use(used) == 5.0
    fault = to_line(DownFailed(why="no bucket"), time=9.0, pid=7)
    assert (last_use([*used, fault]), down_fault([*used, fault])) == (
        5.0,
        DownFailed(why="no bucket"),
    )
    assert down_fault([*used, fault, *used]) is None


def test_an_order_to_go_down_holds_until_somebody_uses_the_cluster_again() -> None:
    ordered = lines(UpCompleted(), DownOrdered(why="no answer"))
    assert is_down_ordered(ordered)
    assert is_down_ordered([*ordered, *lines(RunEnded(), DownFailed(why="no answer"))])
    for use in (UpBegun(), AttemptBegun()):
        assert not is_down_ordered([*ordered, *lines(use)])
    assert not is_down_ordered([*ordered, *lines(ClusterGone())])


def test_a_move_that_is_begun_is_known() -> None:
    begun = lines(
        NodeRequested(node="a", made={"lifetime": 60.0}), EndMoveBegun(lifetime=9.0, expires=99.0)
    )
    assert known_end(begun) == Lifetime(
        lifetime=60.0, born=1.0, moving=events.ClusterEnd(lifetime=9.0, expires=99.0)
    )


def test_a_node_is_known_by_the_clouds_own_id() -> None:
    made = lines(NodeCreated(node="a-chief0", id="i-1", placement="east-a"))
    assert not_given_back(made) == ("a-chief0 (i-1) in east-a",)
