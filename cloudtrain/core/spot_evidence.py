"""Evidence from clouds on where spot machines are likely to be had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SpotEvidence:
    """Likelihood that a cloud has spot machines in one place and does not take them back."""

    place: str
    """A zone, or a region if it has no zones."""
    score: float
    """Higher is better; only to be compared with scores of the same answer."""
    text: str
    """The score in the cloud's own terms: `9/10`."""
    source: str
    """What says so: `Spot placement score`."""


def shown(found: Sequence[SpotEvidence]) -> str:
    """Best first: `us-east-1b 9/10, us-east-1a 3/10 (Spot placement score)`."""
    by_source: dict[str, list[SpotEvidence]] = {}
    for each in sorted(found, key=lambda evidence: -evidence.score):
        by_source.setdefault(each.source, []).append(each)
    return "; ".join(
        f"{', '.join(f'{each.place} {each.text}' for each in those)} ({source})"
        for source, those in by_source.items()
    )
