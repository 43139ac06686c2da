"""Everything of ours that one project holds, asked now."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cloudtrain.errors import NotFoundError
from cloudtrain.fan_out import fan_out
from cloudtrain.providers._cloud import labels
from cloudtrain.providers._cloud.account import Machine, Place, Resource
from cloudtrain.providers._gcp import faults, reading
from cloudtrain.providers._gcp.api import Api, Json
from cloudtrain.providers._gcp.bodies import RULES


def machines(api: Api, cluster: str | None, place: Place | None) -> tuple[Machine, ...]:
    path = f"zones/{place.zone}/instances" if place else "aggregated/instances"
    what = f"instances in {place}" if place else "instances"
    items = _items(api, what, path, **_labelled(cluster))
    found = [m for m in map(reading.machine, items) if m is not None]
    return tuple(m for m in found if cluster is None or m.cluster == cluster)


def resources(api: Api, cluster: str | None) -> tuple[Resource, ...]:
    def described(kind: str, path: str, *endings: str) -> list[Resource | None]:
        items = _items(api, f"{kind} list", path)
        return [reading.described(kind, item, endings or ("",)) for item in items]

    def disks() -> list[Resource | None]:
        items = _items(api, "disks", "aggregated/disks", **_labelled(cluster))
        return [reading.disk(item) for item in items]

    questions: list[Callable[[], list[Resource | None]]] = [
        lambda: _where_known(disks),
        lambda: described("firewall", "global/firewalls", *RULES),
        lambda: _where_known(lambda: described("placement policy", "aggregated/resourcePolicies")),
        lambda: described("subnetwork", "aggregated/subnetworks"),
        lambda: described("network", "global/networks"),
    ]
    answers = fan_out(questions, lambda ask: ask(), name=lambda ask: "resources")
    found = [resource for answer in answers for resource in answer if resource is not None]
    return tuple(r for r in found if cluster is None or r.cluster == cluster)


def _where_known(ask: Callable[[], list[Resource | None]]) -> list[Resource | None]:
    """An endpoint that does not know a kind of thing holds none of it."""
    try:
        return ask()
    except NotFoundError as error:
        if faults.untold(error):
            return []
        raise


def _labelled(cluster: str | None) -> dict[str, str]:
    """Only what makes the answer shorter: what comes is read by its labels here."""
    return {"filter": f"labels.{labels.CLUSTER}={cluster}"} if cluster else {}


def _items(api: Api, what: str, path: str, **params: str) -> Iterator[Json]:
    """Of all pages; an aggregated list has them by zone or region, under the collection's name."""
    collection = path.rpartition("/")[2]
    for page in api.pages(what, path, **params):
        items = page.get("items") or []
        if isinstance(items, dict):
            items = [item for part in items.values() for item in part.get(collection) or ()]
        yield from items
