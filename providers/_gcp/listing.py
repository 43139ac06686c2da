"""Lists everything of ours in one project."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from cloudtrain.errors import CloudConfigError, NotFoundError, RateError, TransientError
from cloudtrain.fan_out import ask_all
from cloudtrain.listing import Listing, NotAsked
from cloudtrain.providers._cloud import labels
from cloudtrain.providers._cloud.account import Machine, Place, Resource
from cloudtrain.providers._gcp import faults, reading
from cloudtrain.providers._gcp.api import Api, Json, not_asked
from cloudtrain.providers._gcp.bodies import RULES

T = TypeVar("T")

ZONES = 4
"""So many zones are asked themselves: the list of a zone knows a new VM before the project's."""


def machines(
    api: Api, cluster: str | None, place: Place | None, places: Sequence[str]
) -> Listing[Machine]:
    """VMs of one place, or of the whole project plus the lists of the first zones among
    `places`.
    """
    if place is not None:
        found = _items(api, f"instances in {place}", f"zones/{place.zone}/instances", cluster)
        return _read(found, cluster)
    wide = _items(api, "instances", "aggregated/instances", cluster)
    silent = {each.place for each in wide.not_asked}
    zones = [p for p in places if re.fullmatch(r"[a-z]+-[a-z]+\d+-[a-z]", p) and p not in silent]
    answers = ask_all(zones[:ZONES], lambda zone: _of_zone(api, zone, cluster), name=str)
    return _read(_joined([wide, *answers]), cluster)


def _of_zone(api: Api, zone: str, cluster: str | None) -> Listing[Json]:
    try:
        return _items(api, f"instances in {zone}", f"zones/{zone}/instances", cluster)
    except (TransientError, RateError) as error:
        return Listing((), [NotAsked(place=zone, why=error.message)])
    except (NotFoundError, CloudConfigError):
        return Listing()  # no such zone: `places` says so


def _read(items: Listing[Json], cluster: str | None) -> Listing[Machine]:
    read = [reading.machine(item) for item in items]
    found = {m.id: m for m in read if m is not None and cluster in (None, m.cluster)}
    return Listing(found.values(), items.not_asked)


def resources(api: Api, cluster: str | None) -> Listing[Resource]:
    def described(kind: str, path: str, *endings: str) -> Listing[Resource | None]:
        items = _items(api, f"{kind} list", path)
        read = (reading.described(kind, item, endings or ("",)) for item in items)
        return Listing(read, items.not_asked)

    def disks() -> Listing[Resource | None]:
        items = _items(api, "disks", "aggregated/disks", cluster)
        return Listing(map(reading.disk, items), items.not_asked)

    questions: list[Callable[[], Listing[Resource | None]]] = [
        lambda: _where_known(disks),
        lambda: described("firewall", "global/firewalls", *RULES),
        lambda: _where_known(lambda: described("placement policy", "aggregated/resourcePolicies")),
        lambda: described("subnetwork", "aggregated/subnetworks"),
        lambda: described("network", "global/networks"),
    ]
    found = _joined(ask_all(questions, lambda ask: ask(), name=lambda ask: "resources"))
    ours = (r for r in found if r is not None and cluster in (None, r.cluster))
    return Listing(ours, found.not_asked)


def _where_known(ask: Callable[[], Listing[Resource | None]]) -> Listing[Resource | None]:
    """Items of a list; none if the endpoint does not know that kind of resource."""
    try:
        return ask()
    except NotFoundError as error:
        if faults.untold(error):
            return Listing()
        raise


def _joined(answers: Sequence[Listing[T]]) -> Listing[T]:
    return Listing(
        (each for answer in answers for each in answer),
        (missed for answer in answers for missed in answer.not_asked),
    )


def _items(api: Api, what: str, path: str, cluster: str | None = None) -> Listing[Json]:
    """Items of all pages; an aggregated list has them by zone or region, under the collection's
    name.

    `cluster` only makes the answer shorter: items are matched by their labels here.
    """
    params = {"filter": f"labels.{labels.CLUSTER}={cluster}"} if cluster else {}
    if not path.startswith("aggregated/"):
        pages = api.pages(what, path, **params)
        return Listing(item for page in pages for item in page.get("items") or [])
    collection = path.rpartition("/")[2]
    found: list[Json] = []
    missed: list[NotAsked] = []
    for page in api.pages(what, path, **params):
        missed += not_asked(what, page)
        for scope, part in (page.get("items") or {}).items():
            kind, _, name = scope.partition("/")
            where = {kind.removesuffix("s"): name} if name else {}
            found += [{**item, **where} for item in part.get(collection) or ()]
    if any(not each.place for each in missed):
        raise TransientError(f"{what}: not everything could be listed: {missed[0].why}")
    return Listing(found, missed)
