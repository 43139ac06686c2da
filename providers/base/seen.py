"""Creations of a cluster on which a command works: those that it saw first, and its own; and the
search for what they have made."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timezone
from typing import Any

from cloudtrain.core import moments
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import CreatedAnewError, NotAskedError
from cloudtrain.core.model import Owner, is_being_created
from cloudtrain.core.partial_list import NotAsked, PartialList, Whereabouts
from cloudtrain.core.paths import some
from cloudtrain.providers.base.driver import CloudDriver, Resource, Vm
from cloudtrain.providers.base.labels import belongs_to_other_owner


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
        """Resources that may be deleted: none while there is anything newer, which may use it."""
        mine = [m for m in machines if not self.is_other(m.generation)]
        return mine, () if self.newer(machines, resources, now) else resources


def created_anew(cluster: str, newer: Sequence[Vm | Resource]) -> CreatedAnewError:
    """Error for a cluster of which another creation has been found."""
    whose = {(each.owner.name, each.owner.machine) for each in newer}
    owners = sorted({" on ".join(filter(None, words)) for words in whose} - {""})
    until = [r.creating_until for r in newer if isinstance(r, Resource) and r.creating_until]
    nodes = [each for each in newer if isinstance(each, Vm)]
    if nodes or not until:
        what = "was created anew since this command looked at it"
    else:
        end = datetime.fromtimestamp(max(until), timezone.utc)
        what = f"is being created, until {end:%H:%M} UTC at the latest"
    by = f" by {', '.join(owners)}" if owners else ""
    return CreatedAnewError(
        f"{cluster} {what}{by}: it is left alone: {some([str(each) for each in newer])}",
        hint=f"`cloudtrain ls --cloud` shows it; `cloudtrain down {cluster}` on the machine that "
        "created it ends it",
    )


# ── Search for one cluster. Places that may contain the cluster must answer; others need not ──


@dataclass(frozen=True, kw_only=True)
class ClusterSearch:
    """Search for a cluster in one account. Without known places, every place must answer."""

    account: CloudDriver[Any]
    where: Whereabouts

    def machines(self) -> PartialList[Vm]:
        """List the VMs in the cluster's places, and in other places if that needs no extra request.
        Raises NotAskedError if one of the cluster's places does not answer."""
        found = self.account.machines(self.where.cluster, places=self.where.places)
        raise_if_not_asked(self.counting(found.not_asked))
        return found

    def counting(self, not_asked: Iterable[NotAsked]) -> list[NotAsked]:
        """The places of `not_asked` that may contain the cluster."""
        unknown = filter(self.where.leaves_unknown, not_asked)
        return [each for each in unknown if not self.where.places or self.where.has(each.place)]

    def missed(self, not_asked: Iterable[NotAsked]) -> list[NotAsked]:
        """The places of `not_asked` that may hold leftovers, also outside the placement."""
        if self.where.complete:
            return self.counting(not_asked)
        return list(filter(self.where.leaves_unknown, not_asked))


@dataclass
class DeletionSearch:
    """List the resources to delete, repeatedly: first in the cluster's places, then everywhere
    else.

    Machines in the places `spared` are not deleted, because it is unknown what they hold."""

    search: ClusterSearch
    spared: Collection[str] = ()
    owner: Owner | None = None
    """If given, resources with another owner's labels are not deleted either."""
    generations: SeenGenerations = field(default_factory=SeenGenerations)
    now: Callable[[], float] = moments.now
    not_asked: dict[str, NotAsked] = field(default_factory=dict)
    """Places that were missing from the last listing, and what was foreign or denied in any."""
    newer: tuple[Vm | Resource, ...] = ()
    """What was created anew, and is not deleted."""

    def near(self) -> tuple[Sequence[Vm], Sequence[Resource]]:
        account, where = self.search.account, self.search.where
        machines = account.machines(where.cluster, places=where.places)
        resources = account.resources(where.cluster, places=where.places)
        return self._seen(machines, resources)

    def rest(self) -> tuple[Sequence[Vm], Sequence[Resource]]:
        """List everywhere; if the record names every place, only VMs: they alone are billed."""
        account, where = self.search.account, self.search.where
        machines = account.machines(where.cluster)
        if where.complete and where.places:
            return self._seen(machines, PartialList())
        return self._seen(machines, account.resources(where.cluster))

    def _seen(
        self, machines: PartialList[Vm], resources: PartialList[Resource]
    ) -> tuple[Sequence[Vm], Sequence[Resource]]:
        lasting = [each for each in self.not_asked.values() if not each.silent]
        missed = (*lasting, *machines.not_asked, *resources.not_asked)
        self.not_asked = {each.place: each for each in missed}
        alone = [m for m in machines if not {m.place.zone, m.place.region} & set(self.spared)]
        now = self.now()
        self.generations.look(machines, resources, now)
        self.newer = self.newer or self.generations.newer(machines, resources, now)
        mine, shared = self.generations.of_these(alone, resources, now)
        shared = () if self.newer else shared
        if self.owner is None:
            return mine, shared
        return (
            [m for m in mine if not belongs_to_other_owner(m.owner, self.owner)],
            [r for r in shared if not belongs_to_other_owner(r.owner, self.owner)],
        )


def raise_if_not_asked(missed: Sequence[NotAsked], *, saw: str = "") -> None:
    if missed:
        raise NotAskedError(
            f"{saw}not checked: {', '.join(map(str, missed))}",
            hint="nodes there may be running and billed: "
            "run the command again once the cloud answers",
        )
