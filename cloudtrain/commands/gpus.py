"""`cloudtrain gpus`: which machines have a GPU, where, and at what price; offline."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, timedelta

from cloudtrain.catalog import as_of, availability, region_of
from cloudtrain.catalog.gpus import GPUS, NEWEST, Gpu, canonical_name, fit
from cloudtrain.catalog.offers import Offer, offered_kinds, offers
from cloudtrain.catalog.region_names import similarity
from cloudtrain.core.cloud import EVERYWHERE, clouds
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import UsageError
from cloudtrain.core.model import MARKETS, Accelerator, Market
from cloudtrain.money.estimate import STALE_AFTER


@dataclass(frozen=True, kw_only=True)
class Place:
    """A machine in one region; None for a market on which it is not sold."""

    region: str
    """"" if no region is known to have the machine."""
    on_demand: Offer | None
    spot: Offer | None
    others: tuple[Market, ...] = ()
    """Other markets on which it is sold, at prices that are not known."""


@dataclass(frozen=True, kw_only=True)
class GpuMachine:
    provider: str
    name: str
    accelerator: Accelerator
    vcpus: int
    memory_gib: float
    by_default: bool
    """False for shapes that are never chosen for an `accelerator` alone."""
    places: tuple[Place, ...]
    """The cheapest first, on demand (with `spot`: as spot); unknown prices last."""


@dataclass(frozen=True, kw_only=True)
class GpuKind:
    gpu: Gpu
    counts: tuple[int, ...]
    """Numbers of GPUs that some machine has."""
    providers: tuple[str, ...]
    on_demand: Offer | None
    """The cheapest; None if no price is known."""
    spot: Offer | None
    no_tensorflow: bool
    """True if no released TensorFlow is known to run on it."""


@dataclass(frozen=True, kw_only=True)
class GpuReport:
    kinds: tuple[GpuKind, ...]
    """Oldest generation first."""
    machines: tuple[GpuMachine, ...]
    """Of the chosen kind, in order of price; empty without one."""
    dates: Mapping[str, date]
    """Day of the newest table of each provider of which a price is known. What that table lacks has
    the packaged table's price, and its day."""

    @property
    def age(self) -> timedelta | None:
        """Age of the oldest of these tables; None without prices."""
        return availability.today() - min(self.dates.values()) if self.dates else None

    @property
    def stale(self) -> bool:
        return self.age is not None and self.age > STALE_AFTER

    def older(
        self, prices: Iterable[tuple[str, Iterable[Offer | None]]]
    ) -> dict[date, dict[str, None]]:
        """Names with an older price than their cloud's table, which lacks them; by day."""
        older: dict[date, dict[str, None]] = {}
        for name, found in prices:
            for offer in found:
                if offer and offer.date and offer.date < self.dates[offer.provider]:
                    older.setdefault(offer.date, {})[name] = None
        return older


def gpus(
    kind: str | None = None,
    count: int | None = None,
    *,
    spot: bool = False,
    provider: str | None = None,
    regions: Sequence[str] = (),
) -> GpuReport:
    """Return the kinds of GPUs, and the machines with those of `kind`; offline. `count`: GPUs of a
    machine. `spot`: only machines sold as spot, in order of that price. `regions` may name zones.
    Raises UsageError for a kind, count or region that no offer has."""
    everything = offers(
        kind,
        providers=() if provider is None else (provider,),
        regions={region_of(cloud.name, place) for place in regions for cloud in clouds()},
    )
    found = [offer for offer in everything if offer.spot or not spot]
    wanted = None if kind is None else canonical_name(kind)
    chosen = [offer for offer in found if count in (None, offer.accelerator.count)]
    if not found:
        raise _no_offer(wanted, provider, regions, spot=spot)
    if not chosen:
        counts = sorted({offer.accelerator.count for offer in found})
        have = ", ".join(f"{wanted}:{each}" for each in counts)
        raise UsageError(f"no machine has {wanted}:{count}; available: {have}")
    sold = {_of(offer) for offer in chosen}
    shown = [offer for offer in everything if _of(offer) in sold]
    priced = {offer.provider for offer in shown if offer.price is not None}
    dates = {name: as_of(name) for name in sorted(priced)}
    machines = () if wanted is None else _machines(chosen, shown, spot=spot)
    return GpuReport(kinds=_kinds(shown), machines=machines, dates=dates)


def kind_names() -> list[str]:
    """Names of the kinds that some cloud offers, oldest generation first."""
    names = offered_kinds()
    return [row.kind for row in GPUS if row.kind in names]


def _kinds(found: Collection[Offer]) -> tuple[GpuKind, ...]:
    newest = ".".join(map(str, NEWEST))
    kinds, by_kind = [], dict[str, list[Offer]]()
    for offer in found:
        by_kind.setdefault(offer.accelerator.kind, []).append(offer)
    for row in GPUS:
        if own := by_kind.get(row.kind):
            priced = [offer for offer in own if offer.price is not None and offer.by_default]
            kinds.append(
                GpuKind(
                    gpu=row,
                    counts=tuple(sorted({offer.accelerator.count for offer in own})),
                    providers=tuple(dict.fromkeys(sorted(offer.provider for offer in own))),
                    on_demand=next(
                        (offer for offer in priced if offer.market == "on-demand"), None
                    ),
                    spot=next((offer for offer in priced if offer.spot), None),
                    no_tensorflow=fit(row.kind, newest) == "none",
                )
            )
    return tuple(kinds)


def _machines(
    chosen: Collection[Offer], everything: Iterable[Offer], *, spot: bool
) -> tuple[GpuMachine, ...]:
    """Machines and their regions in the order of the offers on the market that counts; those of a
    machine that is not sold there in the order of its other offers."""
    markets = {(*_of(offer), offer.region, offer.market): offer for offer in everything}
    counts: Market = "spot" if spot else "on-demand"
    preferred = {_of(offer) for offer in chosen if offer.market == counts}
    places: dict[tuple[str, str, Accelerator], dict[str, Offer]] = {}
    for offer in chosen:
        if offer.market == counts or _of(offer) not in preferred:
            places.setdefault(_of(offer), {}).setdefault(offer.region, offer)
    machines = []
    for (provider, name, accelerator), by_region in places.items():
        first = next(iter(by_region.values()))
        machines.append(
            GpuMachine(
                provider=provider,
                name=name,
                accelerator=accelerator,
                vcpus=first.vcpus,
                memory_gib=first.memory_gib,
                by_default=first.by_default,
                places=tuple(
                    Place(
                        region=region,
                        on_demand=markets.get((*_of(first), region, "on-demand")),
                        spot=markets.get((*_of(first), region, "spot")),
                        others=tuple(
                            market
                            for market in MARKETS
                            if market not in EVERYWHERE and (*_of(first), region, market) in markets
                        ),
                    )
                    for region in by_region
                ),
            )
        )
    return tuple(machines)


def _of(offer: Offer) -> tuple[str, str, Accelerator]:
    return (offer.provider, offer.machine, offer.accelerator)


def _no_offer(
    kind: str | None, provider: str | None, regions: Sequence[str], *, spot: bool
) -> UsageError:
    """Error for a kind that no cloud has, or none of those that were asked for."""
    if kind is not None and kind not in kind_names():
        return UsageError(_unknown_kind(kind))
    words = ["no machine", f"of {provider}" if provider else "", "sold as spot" if spot else ""]
    words += [f"in {' or '.join(regions)}" if regions else "", "is known to have"]
    known = {offer.region for offer in offers(kind)} - {""}
    near = [each for name in regions if name not in known for each in _nearest(name, known)]
    flags = ["--provider" if provider else "", "--spot" if spot else ""]
    flags += ["--region" if regions else ""]
    hint = f"did you mean {', '.join(near)}?" if near else None
    return UsageError(
        " ".join(filter(None, [*words, kind or "a GPU"])),
        hint=hint or f"omit {' or '.join(filter(None, flags))}",
    )


def _nearest(region: str, known: Collection[str]) -> list[str]:
    near = difflib.get_close_matches(region, known, n=3)
    return sorted(near, key=lambda name: similarity(name, region))[-1:]


def _unknown_kind(kind: str) -> str:
    for cloud in clouds():
        if instead := availability.retired_kind(cloud, kind):
            return f"{kind} is retired: use {instead}"
        if unfit := availability.unfit_kind(cloud, kind):
            return f"{kind} on {cloud.name} cannot be used: {unfit}"
    names = kind_names()
    text = f"no cloud has a GPU {kind}"
    near = difflib.get_close_matches(kind, names, n=1, cutoff=0.5)
    return f"{text}; did you mean {near[0]}?" if near else f"{text}; kinds: {', '.join(names)}"
