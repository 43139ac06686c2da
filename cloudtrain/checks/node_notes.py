"""Notes on nodes besides their state: overdue, billed while stopped, missing, cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from cloudtrain.money.node_hours import CostSoFar

if TYPE_CHECKING:
    from cloudtrain.core.model import Node


def cost_of(
    nodes: Iterable[Node],
    prices: Mapping[str, float | None],
    ceilings: Mapping[str, float | None],
    now: float,
) -> CostSoFar:
    """Cost as if each node had run since its creation. `prices` in $/hour by node; `ceilings` are
    upper bounds for nodes whose price is not known."""
    least, most = 0.0, 0.0
    known = True
    for node in nodes:
        price = prices.get(node.name)
        ceiling = ceilings.get(node.name) if price is None else price
        hours = 0.0 if node.created is None else max(0.0, now - node.created) / 3600
        least += (price or 0.0) * hours
        most += (ceiling or 0.0) * hours
        known = known and ceiling is not None and (not ceiling or node.created is not None)
    return CostSoFar(least=least, most=most if known else None)


def without_end(nodes: Iterable[Node], now: float) -> tuple[Node, ...]:
    """Nodes that run and that their cloud will not end, as it says."""
    return tuple(
        n for n in nodes if n.no_end and n.state == "running" and (n.expires or now) >= now
    )


def overdue(nodes: Iterable[Node], now: float) -> tuple[Node, ...]:
    """Nodes that exist after their end."""
    return tuple(n for n in nodes if n.expires is not None and n.expires < now)
