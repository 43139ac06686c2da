"""Nodes as lines and as JSON."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from cloudtrain.checks.node_notes import overdue, without_end
from cloudtrain.core import moments
from cloudtrain.core.codec import pick

if TYPE_CHECKING:
    from cloudtrain.core.errors import CloudtrainError
    from cloudtrain.core.model import Node

MAX_SINGLE = 16
"""Nodes that are shown one by one; of a larger cluster, those that differ from their role."""


def node_lines(nodes: Sequence[Node]) -> Iterator[str]:
    """A line for each node; of a large cluster, ` worker 127 running us-east4-c n1-standard-8` for
    each role, then the nodes that differ."""
    if len(nodes) <= MAX_SINGLE:
        width = max((len(node.task) for node in nodes), default=0)
        for node in nodes:
            yield from _line(node, width)
        return
    for role, group in groupby(nodes, key=lambda node: node.role):
        of_role = tuple(group)
        states = Counter(node.state for node in of_role)
        usual = Counter(map(_kind, of_role)).most_common(1)[0][0]
        counts = ", ".join(f"{number} {state}" for state, number in states.most_common())
        yield "  ".join(["", role, counts, *filter(None, usual)])
        others = [n for n in of_role if n.state != "running" or n.fault or _kind(n) != usual]
        width = max((len(node.task) for node in others), default=0)
        for node in others[:MAX_SINGLE]:
            yield from (f"  {line}" for line in _line(node, width))
        if len(others) > MAX_SINGLE:
            yield f"    and {len(others) - MAX_SINGLE} more that differ: --json has all"


def _line(node: Node, width: int) -> Iterator[str]:
    address = f"{node.address}:{node.ssh_port}" if node.address else "no address yet"
    yield "  ".join(
        ["", f"{node.task:{width}}", f"{node.state:8}", address, *filter(None, _kind(node))]
    )
    if node.fault:
        yield f"    {node.fault}".replace("\n", "\n    ")


def _kind(node: Node) -> tuple[str, ...]:
    return (node.placement, node.machine, node.provisioning.shown)


NO_END = "NO END"


def alarmed(text: str) -> str:
    """A text whose lines on nodes that are not ended are red."""
    return "\n".join(
        click.style(line, fg="red") if f": {NO_END}: " in line or ": OVERDUE " in line else line
        for line in text.split("\n")
    )


def billing_lines(nodes: Sequence[Node], provider: str | None, now: float) -> Iterator[str]:
    """A line for each node that is billed unexpectedly: without end, overdue, or stopped."""
    for node in without_end(nodes, now):
        yield (
            f"{node.name}: {NO_END}: {node.no_end}; it is billed until `cloudtrain up` gives it "
            "one or `cloudtrain down` deletes it"
        )
    for node in overdue(nodes, now):
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(node.expires))
        yield f"{node.name}: OVERDUE since {since}, still billed"
    stopped = [node for node in nodes if node.state == "stopped"]
    if not stopped:
        return
    from cloudtrain.core.cloud import cloud_of

    cloud = cloud_of(provider)
    for node in stopped:
        if cloud is not None:
            parts = "disk and address are" if cloud.stopped_keeps_address else "disk is"
            yield f"{node.name}: stopped, its {parts} still billed"


def node_json(node: Node, now: float | None = None) -> dict[str, Any]:
    keys = (
        "name role index state fault address internal ssh_port user placement machine spot "
        "provisioning created expires no_end"
    )
    is_overdue = bool(overdue([node], moments.now() if now is None else now))
    return {**pick(node, keys, {"Provisioning": str}), "overdue": is_overdue}


def error_json(error: CloudtrainError | None, exit_code: int) -> dict[str, Any] | None:
    """The reason why something could not be queried; None if it was."""
    return None if error is None else {**pick(error, "message hint"), "exit_code": exit_code}
