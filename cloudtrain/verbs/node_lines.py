"""A cluster's nodes as lines: each on its own, or of a large cluster each role on one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from cloudtrain.model import Node

EACH = 16
"""So many nodes are shown one by one; of more, those that are not as the others of their role."""


def node_lines(nodes: Sequence[Node]) -> Iterator[str]:
    if len(nodes) <= EACH:
        width = max((len(node.task) for node in nodes), default=0)
        for node in nodes:
            yield from _line(node, width)
        return
    for role, of_role in groupby(nodes, key=lambda node: node.role):
        yield from _role(role, tuple(of_role))


def _line(node: Node, width: int) -> Iterator[str]:
    address = f"{node.address}:{node.ssh_port}" if node.address else "no address yet"
    yield "  ".join(
        ["", f"{node.task:{width}}", f"{node.state:8}", address, *filter(None, _kind(node))]
    )
    if node.fault:
        yield f"    {node.fault}".replace("\n", "\n    ")


def _kind(node: Node) -> tuple[str, ...]:
    return (node.placement, node.machine, "spot" if node.spot else "")


def _role(role: str, nodes: tuple[Node, ...]) -> Iterator[str]:
    """`  worker  127 running  us-east4-c  n1-standard-8`, then who is otherwise."""
    states = Counter(node.state for node in nodes)
    usual = Counter(map(_kind, nodes)).most_common(1)[0][0]
    counts = ", ".join(f"{number} {state}" for state, number in states.most_common())
    yield "  ".join(["", role, counts, *filter(None, usual)])
    others = [n for n in nodes if n.state != "running" or n.fault or _kind(n) != usual]
    width = max((len(node.task) for node in others), default=0)
    for node in others[:EACH]:
        yield from (f"  {line}" for line in _line(node, width))
    if len(others) > EACH:
        yield f"    and {len(others) - EACH} more that are not as the others: --json has all"
