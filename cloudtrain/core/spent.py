"""Amounts of money of which only bounds may be known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


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


def total(costs: Iterable[CostSoFar]) -> CostSoFar:
    """Their sum; not known as soon as one has no upper bound."""
    least, most = 0.0, 0.0
    known = True
    for each in costs:
        least += each.least
        most += each.most or 0.0
        known = known and each.most is not None
    return CostSoFar(least=least, most=most if known else None)


KEPT_FOR = 72 * 3600.0
"""Seconds that a budget pays for what ended nodes leave behind until `down`: a weekend."""


def lasts(amount: float, *, per_hour: float, after_end: float, end_takes: float) -> float:
    """Seconds until the nodes must end so that `amount` $ pay for them, for the `end_takes` seconds
    that their end takes, and for KEPT_FOR of `after_end` $/hour.

    Negative if the amount is too small; infinite if nothing costs anything.
    """
    left = amount - after_end * KEPT_FOR / 3600
    return left / per_hour * 3600 - end_takes if per_hour > 0 else float("inf")
