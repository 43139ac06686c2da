"""Lists all our resources in one project."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from cloudtrain.core import errors
from cloudtrain.core.parallel import ask_all
from cloudtrain.core.partial_list import NotAsked, PartialList
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.answers import objects, typed
from cloudtrain.providers.base.driver import Location, Resource, Vm
from cloudtrain.providers.gcp import faults, listing, tpu_hosts
from cloudtrain.providers.gcp.client import GcpClient, Json, unreachable_places
from cloudtrain.providers.gcp.requests import RULES
from cloudtrain.providers.gcp.tpus import Tpus

T = TypeVar("T")

ZONES = 4
"""Zones that are also listed one by one: such a list shows a new VM before the project's."""


def machines(
    api: GcpClient, tpus: Tpus, cluster: str | None, place: Location | None, places: Sequence[str]
) -> PartialList[Vm]:
    """List VMs and TPU hosts of one place, or of the project and the first zones of `places`."""
    listed = partial(vms, api, cluster, place, places)
    if not tpus.may_hold(cluster):
        return listed()
    questions: list[Callable[[], PartialList[Vm]]] = [
        listed,
        lambda: _tpu_hosts(tpus, cluster, place),
    ]
    try:
        return _joined(ask_all(questions, lambda ask: ask(), name=lambda ask: "machines"))
    except errors.NodesError as error:  # one account refuses both in the same way
        raise next(iter(error.failures.values())) from None


def _tpu_hosts(tpus: Tpus, cluster: str | None, place: Location | None) -> PartialList[Vm]:
    try:
        found = tpus.listed(place.zone if place else "-")
    except (errors.TransientError, errors.RateError) as error:
        if tpus.needed:
            raise
        return PartialList((), [NotAsked(place="Cloud TPU", why=error.message)])
    hosts = (host for tpu in found for host in tpu_hosts.listed_hosts(tpu, cluster))
    return PartialList.of_read(hosts, found.not_asked)


def vms(
    api: GcpClient, cluster: str | None, place: Location | None, places: Sequence[str]
) -> PartialList[Vm]:
    if place is not None:
        found = _items(api, f"instances in {place}", f"zones/{place.zone}/instances", cluster)
        return _read(found, cluster)
    wide = _items(api, "instances", "aggregated/instances", cluster)
    silent = {each.place for each in wide.not_asked}
    zones = [p for p in places if re.fullmatch(r"[a-z]+-[a-z]+\d+-[a-z]", p) and p not in silent]
    answers = ask_all(zones[:ZONES], lambda zone: _of_zone(api, zone, cluster), name=str)
    return _read(_joined([wide, *answers]), cluster)


def _of_zone(api: GcpClient, zone: str, cluster: str | None) -> PartialList[Json]:
    try:
        return _items(api, f"instances in {zone}", f"zones/{zone}/instances", cluster)
    except (errors.TransientError, errors.RateError) as error:
        return PartialList((), [NotAsked(place=zone, why=error.message)])
    except (errors.NotFoundError, errors.CloudConfigError):
        return PartialList()  # no such zone: `places` reports that


def _read(items: PartialList[Json], cluster: str | None) -> PartialList[Vm]:
    found = PartialList.of_read(
        (listing.listed_vm(item, cluster) for item in items), items.not_asked
    )
    return PartialList({m.id: m for m in found}.values(), found.not_asked)


def resources(api: GcpClient, cluster: str | None) -> PartialList[Resource]:
    def described(kind: str, path: str, *endings: str) -> PartialList[Resource]:
        items = _items(api, f"{kind} list", path)
        read = (listing.to_resource(kind, item, endings or ("",), cluster) for item in items)
        return PartialList.of_read(read, items.not_asked)

    def disks() -> PartialList[Resource]:
        items = _items(api, "disks", "aggregated/disks", cluster)
        return PartialList.of_read(
            (listing.to_disk(item, cluster) for item in items), items.not_asked
        )

    questions: list[Callable[[], PartialList[Resource]]] = [
        lambda: _where_known(disks),
        lambda: described("firewall", "global/firewalls", *RULES),
        lambda: _where_known(lambda: described("placement policy", "aggregated/resourcePolicies")),
        lambda: described("subnetwork", "aggregated/subnetworks"),
        lambda: described("network", "global/networks"),
    ]
    return _joined(ask_all(questions, lambda ask: ask(), name=lambda ask: "resources"))


def _where_known(ask: Callable[[], PartialList[Resource]]) -> PartialList[Resource]:
    """The items of a list; empty if the endpoint does not know that kind of resource."""
    try:
        return ask()
    except errors.NotFoundError as error:
        if faults.is_unknown_question(error):
            return PartialList()
        raise


def _joined(answers: Sequence[PartialList[T]]) -> PartialList[T]:
    return PartialList(
        (each for answer in answers for each in answer),
        (missed for answer in answers for missed in answer.not_asked),
    )


def _items(api: GcpClient, what: str, path: str, cluster: str | None = None) -> PartialList[Json]:
    """The items of all pages; an aggregated list has them by zone or region. `cluster` only
    shortens the response; callers still match items by their labels."""
    params = {"filter": f"labels.{labels.CLUSTER}={cluster}"} if cluster else {}
    if not path.startswith("aggregated/"):
        pages = api.pages(what, path, **params)
        return PartialList(item for page in pages for item in objects(page, "items"))
    collection = path.rpartition("/")[2]
    found: list[Json] = []
    missed: list[NotAsked] = []
    for page in api.pages(what, path, **params):
        missed += unreachable_places(what, page)
        for scope, part in typed(page, "items", dict).items():
            kind, _, name = scope.partition("/")
            where = {kind.removesuffix("s"): name} if name else {}
            found += [{**item, **where} for item in objects(part, collection)]
    if any(not each.place for each in missed):
        raise errors.TransientError(f"{what}: the list is incomplete: {missed[0].why}")
    return PartialList(found, missed)
