"""A node that its cloud takes while it boots is not waited for as if it could still answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.cluster.bootstrap import ASKED_EVERY, BOOT, await_first_login
from cloudtrain.cluster.provision import preemption_as_no_capacity
from cloudtrain.core.errors import (
    CapacityError,
    CloudError,
    NodeGone,
    NodesError,
    NodeUnreachable,
    TransientError,
)
from cloudtrain.core.model import Node
from cloudtrain.core.retry import Clock
from tests.support.fakes import make_identity, make_plan


@dataclass
class Boot:
    """Nodes that never answer, in a cloud that lists what it is told, on a clock of its own."""

    lists: list[Sequence[str] | CloudError]
    now: float = 0.0
    asked: list[float] = field(default_factory=list)

    def ask(self, node: Node, line: str) -> Any:
        raise NodeUnreachable(node.name, "connection refused")

    def listed(self) -> list[Node]:
        self.asked.append(self.now)
        answer = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        if isinstance(answer, CloudError):
            raise answer
        return [node(name) for name in answer]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def enter(self, folder: Path) -> None:
        transport: Any = self
        await_first_login(
            [node("mnist-chief0")],
            make_identity(folder, make_plan()),
            folder,
            transport,
            transport,
            Silent(),
            clock=Clock(monotonic=lambda: self.now, sleep=self.sleep),
            listed=self.listed,
        )


class Silent:
    def node(self, name: str, text: str) -> None:
        pass

    def done(self, name: str, text: str = "") -> None:
        pass


def node(name: str, state: Any = "running") -> Node:
    return Node(name=name, role="chief", index=0, state=state, address="a", internal="a")


def test_it_is_given_up_once_two_lists_lack_it(tmp_path: Path) -> None:
    boot = Boot([["mnist-chief0"], [], []])
    with pytest.raises(NodeGone, match="mnist-chief0: its cloud took it while it booted"):
        boot.enter(tmp_path)
    assert len(boot.asked) == 3
    assert 3 * ASKED_EVERY <= boot.now <= 3 * ASKED_EVERY + 3 * BOOT.longest


def test_one_list_without_it_or_no_answer_says_nothing(tmp_path: Path) -> None:
    silence = TransientError("no answer")
    boot = Boot([[], silence, ["mnist-chief0"], [], ["mnist-chief0"]])
    with pytest.raises(NodeUnreachable, match="no login within 600 s"):
        boot.enter(tmp_path)
    assert boot.now >= BOOT.within


def test_it_counts_as_a_lack_of_capacity_unless_something_else_failed_too() -> None:
    gone = NodeGone("a", "its cloud took it while it booted")
    silent = NodeUnreachable("b", "no login")
    with pytest.raises(CapacityError, match="a: its cloud took it"), preemption_as_no_capacity():
        raise gone
    with pytest.raises(CapacityError), preemption_as_no_capacity():
        raise NodesError({"a": gone, "c": gone})
    with pytest.raises(NodesError), preemption_as_no_capacity():
        raise NodesError({"a": gone, "b": silent})
    with pytest.raises(NodeUnreachable), preemption_as_no_capacity():
        raise silent
