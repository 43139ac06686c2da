"""Machines with GPUs as the clouds offer them: each machine, market and region with its price.

Offline. A machine's facts are those of `catalog.machine_type`, so what its cloud reported wins; its
prices are those of `catalog.region_prices`, so a refreshed table wins."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import date
from typing import NamedTuple

from cloudtrain import catalog
from cloudtrain.catalog import availability, table
from cloudtrain.catalog.gpus import canonical_name, gpu
from cloudtrain.catalog.table import learned_machines
from cloudtrain.core.cloud import EVERYWHERE, Cloud, cloud_of, clouds
from cloudtrain.core.model import Accelerator, MachineType, Market, NodePlan, Provisioning


class Offer(NamedTuple):
    """One machine type with its GPUs on one market of one region: there are thousands."""

    provider: str
    region: str
    """"" if no region is known to have the machine."""
    machine: str
    accelerator: Accelerator
    vcpus: int
    memory_gib: float
    market: Market
    price: float | None
    """$/hour of the machine with its GPUs, without disks, addresses and traffic; None: unknown."""
    date: date | None
    """Day of the price; None without one."""
    by_default: bool = True
    """False for shapes that are never chosen for an `accelerator` alone: highmem and small n1."""

    @property
    def spot(self) -> bool:
        return self.market == "spot"

    @property
    def price_per_gpu(self) -> float | None:
        """$/hour of one GPU with its share of the machine; None: not known."""
        return None if self.price is None else self.price / self.accelerator.count


def offers(
    kind: str | None = None,
    count: int | None = None,
    *,
    spot: bool | None = None,
    providers: Collection[str] = (),
    regions: Collection[str] = (),
) -> tuple[Offer, ...]:
    """Offers in order of price, those without a known price last, in order of that on demand.

    `kind`: under any of its names; None: all kinds. `count`: GPUs of a machine. `spot`: one market;
    None: all. `providers`, `regions`: only these; empty: all. With `regions`, machines of which no
    region is known are left out. A region counts as known for all markets if one has a price."""
    wanted = None if kind is None else canonical_name(kind)
    found: list[Offer] = []
    for cloud in clouds():
        if providers and cloud.name not in providers:
            continue
        for machine, accelerator in _machines(cloud):
            if wanted in (None, accelerator.kind) and count in (None, accelerator.count):
                found += _of_machine(cloud, machine, accelerator)
    kept = [
        offer
        for offer in found
        if spot in (None, offer.spot) and (not regions or offer.region in regions)
    ]
    return tuple(sorted(kept, key=_order))


def offered_kinds() -> set[str]:
    """Kinds of GPUs of which there is an offer."""
    machines = (accelerator for cloud in clouds() for _, accelerator in _machines(cloud))
    return {accelerator.kind for accelerator in machines}


LEAST_GIB = 2.0
"""Memory with which Ubuntu boots and its snaps, apt and SSH work."""


def plain_machines(
    provider: str, *, market: Market = "on-demand", places: Collection[str] = ()
) -> tuple[str, ...]:
    """Machine types of x86-64 without accelerators that are sold on that market, cheapest first.
    The highest price in any of the places counts; types without a known one are left out."""
    cloud, found = cloud_of(provider), {}
    for row in table.packaged(provider).rows if cloud else ():
        known = catalog.machine_type(provider, row.machine)
        if cloud is None or known is None or known.arm or known.accelerator is not None:
            continue
        if known.memory_gib >= LEAST_GIB and availability.is_sold(cloud, known.name, market=market):
            node, where = _node(known, None, market), places or (cloud.first_region,)
            costs = [catalog.highest_price(provider, node, place) for place in where]
            prices = [cost for cost in costs if cost is not None]
            if len(prices) == len(costs):
                found[known.name] = max(prices)
    return tuple(sorted(found, key=lambda name: (found[name], name)))


def _order(offer: Offer) -> tuple[bool, float, int, float, str, str]:
    """Offers of one machine at one price stay in the order of `_of_machine`."""
    return (
        offer.price is None,
        offer.price or 0.0,
        offer.accelerator.count,
        offer.vcpus,
        offer.provider,
        offer.machine,
    )


def _machines(cloud: Cloud) -> Iterator[tuple[MachineType, Accelerator]]:
    """Machine types with GPUs that NVIDIA makes, with each accelerator that they can have."""
    tables = (table.packaged(cloud.name), table.refreshed(cloud.name), learned_machines(cloud.name))
    names = {row.machine.lower(): row.machine for each in tables if each for row in each.rows}
    for name in names.values():
        known = catalog.machine_type(cloud.name, name)
        if known is None or known.arm or not availability.is_sold(cloud, name):
            continue
        for accelerator in known.attachable or (known.accelerator,):
            if accelerator is not None and gpu(accelerator.kind) is not None:
                yield known, accelerator


def _of_machine(cloud: Cloud, machine: MachineType, accelerator: Accelerator) -> Iterator[Offer]:
    sold = [
        market
        for market in cloud.markets
        if availability.is_sold(cloud, machine.name, market=market)
    ]
    prices: dict[Market, Mapping[str, tuple[float, date]]] = {
        market: catalog.region_prices(cloud.name, _node(machine, accelerator, market))
        for market in {*EVERYWHERE, *sold}
    }
    on_demand = prices["on-demand"]
    places = sorted(
        {region for known in prices.values() for region in known} or {""},
        key=lambda region: (region not in on_demand, on_demand.get(region, (0.0,))[0], region),
    )
    by_default = catalog.chosen_by_default(machine.name, machine.vcpus, accelerator)
    for market in sold:
        for region in places:
            price, day = prices[market].get(region, (None, None))
            yield Offer(
                provider=cloud.name,
                region=region,
                machine=machine.name,
                accelerator=accelerator,
                vcpus=machine.vcpus,
                memory_gib=machine.memory_gib,
                market=market,
                price=price,
                date=day,
                by_default=by_default,
            )


def _node(machine: MachineType, accelerator: Accelerator | None, market: Market) -> NodePlan:
    return NodePlan(
        name="",
        role="",
        index=0,
        port=0,
        machine=machine.name,
        accelerator=accelerator,
        provisioning=Provisioning(market=market),
    )
