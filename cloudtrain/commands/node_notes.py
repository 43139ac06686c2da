"""Notes on nodes besides their state: overdue, billed while stopped, missing, cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloudtrain.model import Node


@dataclass(frozen=True, kw_only=True)
class CostSoFar:
    """$ so far, at least and at most; None if not known."""

    least: float
    most: float | None

    @property
    def exact(self) -> float | None:
        return self.least if self.least == self.most else None

    def __str__(self) -> str:
        if self.exact is not None:
            return f"{self.exact:.2f} $"
        if self.most is None:
            return f"≥ {self.least:.2f} $" if self.least else "not known"
        return f"≥ {self.least:.2f} $, ≤ {self.most:.2f} $"


def cost_of(
    nodes: Iterable[Node],
    prices: Mapping[str, float | None],
    ceilings: Mapping[str, float | None],
    now: float,
) -> CostSoFar:
    """Cost as if each node had run since its creation.

    `prices` in $/hour by node; `ceilings` are upper bounds for nodes whose price is not known.
    """
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


def overdue(nodes: Iterable[Node], now: float) -> tuple[Node, ...]:
    """Nodes that exist after their end."""
    return tuple(n for n in nodes if n.expires is not None and n.expires < now)
