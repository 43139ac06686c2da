"""Which nodes a cloud took while something was done on them, by its lists."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from cloudtrain.artifacts.land import not_landed
from cloudtrain.cluster.provision import TAKEN, lost_as_no_capacity, lost_nodes
from cloudtrain.core.errors import (
    CapacityError,
    CloudtrainError,
    NodesError,
    NodeUnreachable,
    NotLanded,
    StepFailed,
    StoreError,
    TransientError,
)
from cloudtrain.core.model import ON_DEMAND, SPOT, Node, NodeState
from cloudtrain.core.retry import Clock


class Cluster:
    """A session whose cloud lists, one after the other, what it is told; time passes by itself."""

    def __init__(self, *lists: Sequence[Node] | CloudtrainError, spot: bool = True) -> None:
        self.nodes = (node("a", spot=spot), node("b", spot=spot))
        self.now, self.lists = 0.0, list(lists)
        self.clock = Clock(monotonic=lambda: self.now, sleep=self._sleep)

    def refreshed(self) -> Any:
        answer = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        if isinstance(answer, CloudtrainError):
            raise answer
        return SimpleNamespace(nodes=tuple(answer))

    def _sleep(self, seconds: float) -> None:
        self.now += seconds


def node(name: str, state: NodeState = "running", *, spot: bool = True) -> Node:
    return Node(
        name=name,
        role="worker",
        index=0,
        state=state,
        address="",
        internal="",
        provisioning=SPOT if spot else ON_DEMAND,
    )


BOTH = [node("a"), node("b")]
SILENT = NodeUnreachable("a", "connection refused")


def lost(here: Any, error: CloudtrainError) -> tuple[str, ...]:
    return lost_nodes(here, error)


def test_a_node_that_does_not_answer_and_is_listed_no_more_is_lost() -> None:
    assert lost(Cluster([node("b")]), SILENT) == ("a",)
    assert lost(Cluster([node("a", "gone"), node("b")]), SILENT) == ("a",)


def test_one_that_answered_is_not_asked_for() -> None:
    here = Cluster([node("b")])
    assert lost(here, StepFailed("a", "exit 1", step="pip", step_exit_code=1)) == ()
    assert here.now == 0.0


def test_it_is_found_in_the_causes_of_an_error() -> None:
    error = NotLanded("nothing landed")
    error.__cause__ = NodesError({"a": SILENT, "b": NotLanded("disk full")})
    assert lost(Cluster([node("b")]), error) == ("a",)


def test_a_store_that_refuses_is_no_lost_node_and_ends_the_search() -> None:
    """Of `finish_run`: an error that was its own cause was searched for ever, on paid nodes."""
    refused = StoreError("run: a file is in the way of a folder")
    with pytest.raises(StoreError) as raised:
        raise not_landed(refused) from refused
    assert lost(Cluster(BOTH), raised.value) == ()


def test_a_spot_node_may_be_listed_for_a_while() -> None:
    here = Cluster(BOTH, BOTH, TransientError("503"), [node("b")])
    assert lost(here, SILENT) == ("a",)
    assert here.now == 2 * TAKEN.pause


def test_a_spot_node_that_stays_is_not_lost() -> None:
    here = Cluster(BOTH)
    assert lost(here, SILENT) == ()
    assert here.now >= TAKEN.within - TAKEN.pause


def test_a_node_on_demand_is_asked_for_once() -> None:
    here = Cluster(BOTH, spot=False)
    assert lost(here, SILENT) == ()
    assert here.now == 0.0


def test_nodes_that_are_lost_during_setup_are_no_capacity() -> None:
    here: Any = Cluster([node("b")])
    with (
        pytest.raises(CapacityError, match="a: the cloud took it while it was set up"),
        lost_as_no_capacity(here),
    ):
        raise NodesError({"a": SILENT})


def test_another_fault_beside_them_is_raised_as_it_is() -> None:
    here: Any = Cluster([node("b")])
    failed = StepFailed("b", "exit 1", step="pip", step_exit_code=1)
    with pytest.raises(NodesError, match="exit 1"), lost_as_no_capacity(here):
        raise NodesError({"a": SILENT, "b": failed})
    with pytest.raises(StepFailed), lost_as_no_capacity(here):
        raise failed
