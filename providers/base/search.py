"""Searches for one cluster: places that count must answer, others need not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cloudtrain.errors import NotAskedError
from cloudtrain.listing import Listing, NotAsked, Whereabouts
from cloudtrain.model import Owner
from cloudtrain.providers.base.driver import CloudDriver, Resource, Vm
from cloudtrain.providers.base.labels import belongs_to_other_owner


@dataclass(frozen=True, kw_only=True)
class ClusterSearch:
    """Search for one cluster in one account. Without known places, it may be anywhere: every
    place counts.
    """

    account: CloudDriver[Any]
    where: Whereabouts

    def machines(self) -> Listing[Vm]:
        """VMs in the places that count, and in others if that costs nothing. Raises
        NotAskedError for a silent place that counts.
        """
        found = self.account.machines(self.where.cluster, places=self.where.places)
        raise_if_not_asked(self.counting(found.not_asked))
        return found

    def counting(self, not_asked: Iterable[NotAsked]) -> list[NotAsked]:
        """Places in which the cluster may be."""
        told = [each for each in not_asked if not each.denied]
        return [each for each in told if not self.where.places or self.where.has(each.place)]

    def missed(self, not_asked: Iterable[NotAsked]) -> list[NotAsked]:
        """Silent places in which something of it may be left, whatever its placement is now."""
        if self.where.complete:
            return self.counting(not_asked)
        return [each for each in not_asked if not each.denied]


@dataclass
class DeletionSearch:
    """Repeated listing of what is to be deleted: in the places that count, then in the rest.

    Machines in the places `spared` are left alone: nobody has seen their contents.
    """

    search: ClusterSearch
    spared: Collection[str] = ()
    owner: Owner | None = None
    """Where told, what bears the labels of somebody else is left alone too."""
    not_asked: dict[str, NotAsked] = field(default_factory=dict)
    """Of the last look."""

    def near(self) -> tuple[Sequence[Vm], Sequence[Resource]]:
        account, where = self.search.account, self.search.where
        machines = account.machines(where.cluster, places=where.places)
        resources = account.resources(where.cluster, places=where.places)
        return self._seen(machines, resources)

    def rest(self) -> tuple[Sequence[Vm], Sequence[Resource]]:
        """List the other places. If the record names every place of the cluster, VMs only: they
        are what costs.
        """
        account, where = self.search.account, self.search.where
        machines = account.machines(where.cluster)
        if where.complete and where.places:
            return self._seen(machines, Listing())
        return self._seen(machines, account.resources(where.cluster))

    def _seen(
        self, machines: Listing[Vm], resources: Listing[Resource]
    ) -> tuple[Sequence[Vm], Sequence[Resource]]:
        missed = (*machines.not_asked, *resources.not_asked)
        self.not_asked = {each.place: each for each in missed}
        alone = [m for m in machines if not {m.place.zone, m.place.region} & set(self.spared)]
        if self.owner is None:
            return alone, resources
        return (
            [m for m in alone if not belongs_to_other_owner(m.owner, self.owner)],
            [r for r in resources if not belongs_to_other_owner(r.owner, self.owner)],
        )


def raise_if_not_asked(missed: Sequence[NotAsked], *, saw: str = "") -> None:
    if missed:
        raise NotAskedError(
            f"{saw}not asked: {', '.join(map(str, missed))}",
            hint="what is there may be running, and billed: run it again once it answers",
        )
