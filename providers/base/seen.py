"""Creations of a cluster on which a command works: those that it saw first, and its own."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

from cloudtrain.core.errors import CreatedAnewError
from cloudtrain.core.model import Owner, is_being_created
from cloudtrain.core.paths import some
from cloudtrain.providers.base.driver import Resource, Vm


def new_generation() -> str:
    """A name for one creation: 12 hex digits, which every cloud takes in a label."""
    return secrets.token_hex(6)


@dataclass
class SeenGenerations:
    """The generations of one cluster that one command may delete. What has none was created by an
    earlier version, and is known by the cluster's name alone."""

    known: set[str] = field(default_factory=set)
    looked: bool = False
    """Whether the cluster's nodes were listed: from then on, another generation is another's."""

    def look(
        self, machines: Iterable[Vm], resources: Iterable[Resource] = (), now: float = 0.0
    ) -> None:
        """Remember the generations of the first listing, and of no later one. Resources that are
        listed after the nodes, and of a creation that may go on, may be newer than those."""
        if not self.looked:
            self.known |= {m.generation for m in machines if m.node.state != "gone"}
            old = (r for r in resources if not is_being_created(r.creating_until, now))
            self.known |= {r.generation for r in old}
        self.looked = True

    def is_other(self, generation: str) -> bool:
        return self.looked and bool(generation) and generation not in self.known

    def newer(
        self, machines: Iterable[Vm], resources: Iterable[Resource], now: float
    ) -> tuple[Vm | Resource, ...]:
        """The nodes of other generations, and resources of a cluster that is being created. Other
        resources of another generation were left over by a creation that failed."""
        nodes = [m for m in machines if m.node.state != "gone" and self.is_other(m.generation)]
        at_work = (r for r in resources if is_being_created(r.creating_until, now))
        return (*nodes, *(r for r in at_work if self.is_other(r.generation)))

    def of_these(
        self, machines: Sequence[Vm], resources: Sequence[Resource], now: float
    ) -> tuple[list[Vm], Sequence[Resource]]:
        """What may be deleted: no resource while there is anything newer, which may use it."""
        mine = [m for m in machines if not self.is_other(m.generation)]
        return mine, () if self.newer(machines, resources, now) else resources


def created_anew(
    cluster: str, newer: Sequence[Vm | Resource], then: str = "it is left alone"
) -> CreatedAnewError:
    """Error for a cluster of which another creation has been found."""
    owners = sorted({_described(each.owner) for each in newer} - {""})
    until = [r.creating_until for r in newer if isinstance(r, Resource) and r.creating_until]
    nodes = [each for each in newer if isinstance(each, Vm)]
    if nodes or not until:
        what = "was created anew since this command looked at it"
    else:
        end = datetime.fromtimestamp(max(until), timezone.utc)
        what = f"is being created, until {end:%H:%M} UTC at the latest"
    by = f" by {', '.join(owners)}" if owners else ""
    return CreatedAnewError(
        f"{cluster} {what}{by}: {then}: {some([str(each) for each in newer])}",
        hint=f"`cloudtrain ls --cloud` shows it; `cloudtrain down {cluster}` on the machine that "
        "created it ends it",
    )


def _described(owner: Owner) -> str:
    return " on ".join(filter(None, [owner.name, owner.machine]))
