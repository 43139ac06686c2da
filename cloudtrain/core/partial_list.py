"""Answers of a cloud: items found in a whole account and places that could not be queried, and
evidence on spot machines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

from cloudtrain.core.dataclass import dataclass

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class NotAsked:
    """A zone or region that could not be queried, or a resource whose labels cannot be ours."""

    place: str
    why: str
    """The cloud's own message."""
    denied: bool = False
    """True if this account may not use it, by an organization's policy; not an outage."""
    foreign: bool = False
    """True for a resource with labels that this program never writes: shown, and never changed."""

    @property
    def silent(self) -> bool:
        """True for an outage: what is there is not known."""
        return not self.denied and not self.foreign

    def __str__(self) -> str:
        return f"{self.place} {self.why}" if self.foreign else f"{self.place} ({self.why})"


class PartialList(tuple[T, ...]):
    """Items that were found; `not_asked` has the places that could not be queried."""

    not_asked: tuple[NotAsked, ...]

    def __new__(cls, seen: Iterable[T] = (), not_asked: Iterable[NotAsked] = ()) -> PartialList[T]:
        found = super().__new__(cls, seen)
        found.not_asked = tuple({each.place: each for each in not_asked}.values())
        return found

    @classmethod
    def of_read(
        cls, read: Iterable[T | NotAsked | None], not_asked: Iterable[NotAsked] = ()
    ) -> PartialList[T]:
        """List what was read: None is left out, and what is foreign is among `not_asked`."""
        every = list(read)
        foreign = [each for each in every if isinstance(each, NotAsked)]
        ours = [each for each in every if each is not None and not isinstance(each, NotAsked)]
        return cls(ours, [*not_asked, *foreign])

    @property
    def foreign(self) -> tuple[NotAsked, ...]:
        return tuple(each for each in self.not_asked if each.foreign)


@dataclass(frozen=True, kw_only=True)
class Whereabouts:
    """Places where a cluster may be."""

    cluster: str
    places: tuple[str, ...] = ()
    """Zones and regions in which it was requested, by the record, and its placement."""
    complete: bool = False
    """True if the record has every place in which anything of it was ever requested."""
    generations: tuple[str, ...] = ()
    """Creations of it that the record has, last first."""
    tried: tuple[str, ...] = ()
    """Those of the places in which it was requested, by the record."""

    def has(self, place: str) -> bool:
        """True if that zone or region is, contains or is within one of the places."""
        return _touches(place, self.places)

    def leaves_unknown(self, missed: NotAsked) -> bool:
        """True if nobody knows whether a node is billed there: after an outage, or where the
        cluster was requested and this account may not look any more."""
        return missed.silent or (missed.denied and _touches(missed.place, self.tried))


def _touches(place: str, places: Iterable[str]) -> bool:
    return any(place == each or is_within(place, each) or is_within(each, place) for each in places)


def is_within(zone: str, region: str) -> bool:
    """True for `us-east1-b` in `us-east1`, `us-east-1a` in `us-east-1`, `us-west-2-lax-1a` in
    `us-west-2`, `eastus-1` in `eastus`."""
    return zone.startswith(region) and re.match(r"-|[a-z]\Z", zone[len(region) :]) is not None


# ── Evidence from clouds on where spot machines are likely to be had ──────────────────────────


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


def evidence_text(found: Sequence[SpotEvidence]) -> str:
    """Best first: `us-east-1b 9/10, us-east-1a 3/10 (Spot placement score)`."""
    by_source: dict[str, list[SpotEvidence]] = {}
    for each in sorted(found, key=lambda evidence: -evidence.score):
        by_source.setdefault(each.source, []).append(each)
    return "; ".join(
        f"{', '.join(f'{each.place} {each.text}' for each in those)} ({source})"
        for source, those in by_source.items()
    )
