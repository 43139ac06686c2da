"""Machines of the clouds, their accelerators and prices; offline and dated.

A machine's facts are those that its cloud reported to `check` or `up`, else the packaged table's.
Prices come from a newer table if `--refresh-prices` wrote one. An unknown price is None, never 0.
Prices are
$/hour of the machine with its accelerators; `node_parts` has those of disks and addresses. Sources:
docs/machines.md."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date

from cloudtrain.catalog import availability, table, tpus
from cloudtrain.catalog.gpus import canonical_name
from cloudtrain.catalog.table import learned_row
from cloudtrain.core.cloud import Cloud, cloud_of, clouds, is_cloud
from cloudtrain.core.model import ON_DEMAND, Accelerator, MachineType, Market, NodeGroup, NodePlan

PREPAID: frozenset[Market] = frozenset({"capacity-block"})
"""Markets whose machines are paid in advance, in one sum that no table has: an hour adds nothing to
the bill. https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-pricing-billing.html
"""
VCPUS_PER_GPU = 4
"""Minimum for machines chosen by us, to keep the GPU busy: as AWS's and Azure's smallest T4 has."""


def machine_type(provider: str, name: str) -> MachineType | None:
    """Look a machine type up in what its cloud reported, in the packaged table, and in a refreshed
    table. None if all lack it; it may still exist."""
    listed, told = listed_machine(provider, name), learned_row(provider, name)
    if told is None:
        return listed
    return MachineType(
        provider=provider,
        name=listed.name if listed else told.machine,
        vcpus=told.vcpus,
        memory_gib=told.memory_gib,
        accelerator=told.accelerator,
        attachable=listed.attachable if listed and told.accelerator is None else (),
        arm=told.arm,
        scratch_gb=told.scratch_gb,
    )


def listed_machine(provider: str, name: str) -> MachineType | None:
    """Look a machine type up in the packaged and in a refreshed table. Google's `-nolssd` machines
    differ only by having no local disks."""
    if not is_cloud(provider):
        return None
    known = table.packaged(provider).by_name
    rows = known.get(name.lower()) or known.get(name.lower().removesuffix("-nolssd"), ())
    if not rows:
        newer = table.refreshed(provider)
        rows = newer.by_name.get(name.lower(), ()) if newer else ()
    if not rows:
        return None
    plain = any(row.accelerator is None for row in rows)
    kinds = dict.fromkeys(row.accelerator for row in rows if row.accelerator is not None)
    return MachineType(
        provider=provider,
        name=rows[0].machine,
        vcpus=rows[0].vcpus,
        memory_gib=rows[0].memory_gib,
        accelerator=None if plain else next(iter(kinds), None),
        attachable=tuple(kinds) if plain else (),
    )


def is_unknown_machine(provider: str, name: str) -> bool:
    """True if the cloud has to be queried for this machine type. Not for types that take attached
    accelerators: the config names those."""
    cloud = cloud_of(provider)
    if cloud is None or takes_accelerators(cloud, name) or tpus.tpu_type(provider, name):
        return False
    return machine_type(provider, name) is None


def takes_accelerators(cloud: Cloud, machine: str) -> bool:
    """True if accelerators are attached to this machine type instead of built in."""
    return bool(cloud.attaches) and machine.startswith(cloud.attaches)


def cheapest(
    provider: str,
    accelerator: Accelerator,
    *,
    market: Market = "on-demand",
    regions: Sequence[str] = (),
) -> MachineType | None:
    """The cheapest machine with these accelerators, by the packaged table.

    Prices are those of the first region that has one; without any price, the smallest machine is
    taken. None if no machine has these accelerators. Machines that are not sold on that market, or
    no longer, are the last choice."""
    cloud = cloud_of(provider)
    if cloud is None:
        return None
    wanted = replace(accelerator, kind=canonical_name(accelerator.kind))
    all_rows = [
        row
        for row in table.packaged(provider).rows
        if row.accelerator == wanted
        and not row.spot
        and chosen_by_default(row.machine, row.vcpus, row.accelerator)
        and has_accelerator(provider, row.machine, wanted)
    ]
    if not all_rows:
        return None
    on_sale = [row for row in all_rows if availability.is_sold(cloud, row.machine)]
    rows = [row for row in on_sale if availability.is_sold(cloud, row.machine, market=market)]
    rows = rows or on_sale or all_rows
    best = min(rows, key=lambda row: (row.vcpus, row.memory_gib)).machine
    for region in [*regions, cloud.first_region]:
        prices = _comparable(provider, rows, region, spot=market == "spot")
        if prices:
            best = min(prices, key=lambda machine: prices[machine])
            break
    found = machine_type(provider, best)
    return replace(found, accelerator=wanted, attachable=()) if found else None


def has_accelerator(provider: str, machine: str, wanted: Accelerator) -> bool:
    """True if this machine type has these accelerators, or they can be attached to it."""
    known = machine_type(provider, machine)
    return known is not None and (known.accelerator == wanted or wanted in known.attachable)


def chosen_by_default(machine: str, vcpus: int, accelerator: Accelerator | None) -> bool:
    """Exclude highmem n1 and the smallest n1: they are for configs that name them."""
    if not machine.startswith("n1-"):
        return True
    count = accelerator.count if accelerator else 0
    return machine.startswith("n1-standard") and vcpus >= VCPUS_PER_GPU * count


def _comparable(
    provider: str, rows: Sequence[table.MachineRow], region: str, *, spot: bool
) -> dict[str, float]:
    """Prices by machine; those of the spot market only if all of them are known."""
    if spot:
        others = [table.packaged(provider).row(r.machine, r.accelerator, spot=True) for r in rows]
        prices = {r.machine: r.prices[region] for r in others if r and region in r.prices}
        if len(prices) == len(rows):
            return prices
    return {row.machine: row.prices[region] for row in rows if region in row.prices}


def resolve_group(provider: str, group: NodeGroup, regions: Sequence[str]) -> NodeGroup:
    """Fill in the group's machine and accelerator on a cloud; elsewhere return it unchanged. For
    `make_plan` alone: others take a node's machine from the plan. A group that `unavailable_reason`
    objects to is returned unchanged."""
    cloud = cloud_of(provider)
    if cloud is None:
        return group
    accelerator, machine = accelerator_of(provider, group), group.machine
    if machine is None and accelerator is not None:
        market = group.provisioning.market
        chosen = cheapest(provider, accelerator, market=market, regions=regions)
        machine = chosen.name if chosen else None
    elif machine is None:
        machine = cloud.default_machine
    return replace(group, machine=machine, accelerator=accelerator)


def accelerator_of(provider: str, group: NodeGroup) -> Accelerator | None:
    """Accelerators of each node of a group: those that it names, else those of its machine."""
    if group.accelerator is not None and is_cloud(provider):
        return replace(group.accelerator, kind=canonical_name(group.accelerator.kind))
    known = machine_type(provider, group.machine) if group.machine else None
    return known.accelerator if known and group.accelerator is None else group.accelerator


# ── prices ───────────────────────────────────────────────────────────────────

PRICED: tuple[Market, ...] = ("on-demand", "spot")
"""Markets whose prices the tables have."""


def price(provider: str, node: NodePlan, place: str) -> float | None:
    """$/hour of this node in a zone or region, on its market. None if not known."""
    return price_and_date(provider, node, place)[0]


def highest_price(provider: str, node: NodePlan, place: str) -> float | None:
    """Upper bound in $/hour: without a known price on its market, the on-demand price. No cloud
    bills a spot machine above that unless the request names a price of its own, and Google sells
    flex-start at a discount. A reservation is billed with or without nodes, up to that price."""
    known = price(provider, node, place)
    dearer = replace(node, provisioning=ON_DEMAND)
    return price(provider, dearer, place) if known is None else known


def price_and_date(provider: str, node: NodePlan, place: str) -> tuple[float | None, date | None]:
    """The price, and the date of the table that has it."""
    market = node.provisioning.market
    if node.machine is not None and is_cloud(provider) and market in PREPAID:
        return 0.0, as_of(provider)
    if node.machine is None or not is_cloud(provider) or market not in PRICED:
        return None, None
    region = region_of(provider, place)
    if tpus.tpu_type(provider, node.machine):
        cost = tpus.host_price(provider, node.machine, region, spot=node.spot)
        return cost, tpus.as_of(provider, node.machine) if cost is not None else None
    return region_prices(provider, node).get(region, (None, None))


def region_prices(provider: str, node: NodePlan) -> dict[str, tuple[float, date]]:
    """$/hour of this node on its market by region, each with its date, the newest; without the
    regions in which it is not known. Not for TPUs."""
    found: dict[str, tuple[float, date]] = {}
    if node.provisioning.market not in PRICED:
        return found
    for each in (table.packaged(provider), table.refreshed(provider)):
        row = _price_row(each, provider, node) if each else None
        if each is not None and row is not None:
            for region, cost in row.prices.items():
                day = row.dates.get(region, each.date)
                if region not in found or found[region][1] <= day:
                    found[region] = (cost, day)
    return found


def _price_row(prices: table.Table, provider: str, node: NodePlan) -> table.MachineRow | None:
    """The row of a node's machine. A cloud bills the type: its accelerators, where they are built
    in, are part of it whatever a table says of them."""
    machine, cloud = node.machine or "", cloud_of(provider)
    row = prices.row(machine, node.accelerator, spot=node.spot)
    if row is not None or cloud is None or takes_accelerators(cloud, machine):
        return row
    told = learned_row(provider, machine)
    if told is None or told.accelerator != node.accelerator:
        return None
    rows = prices.by_name.get(machine.lower(), ())
    return next((row for row in rows if row.spot == node.spot), None)


def as_of(provider: str) -> date:
    """Date of the newest table on this machine."""
    return (table.refreshed(provider) or table.packaged(provider)).date


def region_of(provider: str, place: str) -> str:
    """Region of a zone: `us-east4-c` → `us-east4`, `us-east-1a` → `us-east-1`, Azure's `eastus-1` →
    `eastus`."""
    cloud = cloud_of(provider)
    return cloud.region_of(place) if cloud else place


# ── what is not sold ─────────────────────────────────────────────────────────


def unavailable_reason(provider: str, node: NodePlan, *, own_image: bool = False) -> str | None:
    """Reason why the cloud sells no such node, with an alternative; None if nothing is known
    against it.

    Unknown machines pass, as the cloud has more than the table and refuses by itself. Exception: a
    name that suggests GPUs without an `accelerator`; the node would be set up without them.
    `own_image`: the config names an image, which may have what the cloud's own images lack."""
    cloud = cloud_of(provider)
    return next(_problems(cloud, node, own_image), None) if cloud else None


def _problems(cloud: Cloud, node: NodePlan, own_image: bool) -> Iterator[str]:
    provider, machine = cloud.name, node.machine
    if machine:
        market = node.provisioning.market
        why = availability.unavailable_reason(cloud, machine, market=market, own_image=own_image)
        yield from [why] if why else []
    known = machine_type(provider, machine) if machine else None
    if known is not None and known.arm:
        yield f"{known.name} is an ARM machine, but cloudtrain's images are x86-64"
    if node.accelerator is None:
        if machine and known is None and availability.named_for_gpus(cloud, machine):
            yield f"{machine} seems to have GPUs, but this version does not know which: {NAME_IT}"
        return
    if machine and known is None:
        takes = takes_accelerators(cloud, machine) or availability.named_for_gpus(cloud, machine)
        if cloud.attaches and not takes:
            take = f"on {cloud.title}, only {cloud.attaches.rstrip('-')} machines take one"
            yield f"no accelerator can be attached to {machine}: {take}"
        return
    wanted = replace(node.accelerator, kind=canonical_name(node.accelerator.kind))
    if known is not None and (known.accelerator == wanted or wanted in known.attachable):
        return
    offered = accelerators(provider)
    if machine is not None and known is not None and known.accelerator is not None:
        yield from _mismatch(provider, machine, wanted)
    elif wanted.kind not in {each.kind for each in offered}:
        yield _unknown_kind(cloud, wanted.kind)
    elif wanted not in offered:
        counts = sorted(each.count for each in offered if each.kind == wanted.kind)
        have = ", ".join(f"{wanted.kind}:{count}" for count in counts)
        yield f"no machine of {provider} has {wanted}; available: {have}"
    elif machine is not None:
        yield from _mismatch(provider, machine, wanted)


NAME_IT = "add `accelerator: KIND:COUNT`; `cloudtrain check` and `up` query the cloud"


def accelerators(provider: str) -> tuple[Accelerator, ...]:
    """Accelerators that this cloud sells today on some machine, by the packaged table."""
    cloud = cloud_of(provider)
    if cloud is None:
        return ()
    rows = [row for row in table.packaged(provider).rows if row.accelerator is not None]
    return tuple(
        dict.fromkeys(
            row.accelerator
            for row in rows
            if row.accelerator is not None and availability.is_sold(cloud, row.machine)
        )
    )


def _unknown_kind(cloud: Cloud, kind: str) -> str:
    provider = cloud.name
    kinds = sorted({each.kind for each in accelerators(provider)})
    gone = availability.retired_kind(cloud, kind)
    if gone:
        return f"{kind} is retired: use {gone}"
    unfit = availability.unfit_kind(cloud, kind)
    if unfit:
        return f"{kind} on {provider} cannot be used: {unfit}"
    others = [
        other.name
        for other in clouds()
        if other is not cloud and kind in {each.kind for each in accelerators(other.name)}
    ]
    text = f"{provider} has no accelerator {kind}; it has {', '.join(kinds)}"
    if others:
        return f"{text}; {kind} is on {' and '.join(others)}"
    near = difflib.get_close_matches(kind, kinds, n=1, cutoff=0.5)
    return f"{text}; did you mean {near[0]}?" if near else text


def _mismatch(provider: str, name: str, wanted: Accelerator) -> Iterator[str]:
    known, fitting = machine_type(provider, name), cheapest(provider, wanted)
    assert known is not None
    instead = f"; {fitting.name} has {wanted}" if fitting else ""
    if known.accelerator is not None:
        yield f"{known.name} has {known.accelerator}, not {wanted}{instead}"
    elif known.attachable:
        same = ", ".join(str(each) for each in known.attachable if each.kind == wanted.kind)
        takes = f"it takes {same}" if same else f"it takes no {wanted.kind}"
        yield f"{wanted} cannot be attached to {known.name}: {takes}{instead}"
    else:
        yield f"{known.name} has no accelerator{instead}"


def note(provider: str, node: NodePlan) -> str | None:
    """One line on a machine whose retirement the vendor has announced, or whose name is probably
    misspelt."""
    cloud, machine = cloud_of(provider), node.machine
    if cloud is None or machine is None:
        return None
    text = availability.retirement_notice(cloud, machine) or _name_note(provider, machine)
    return f"{machine}: {text}" if text else None


def _name_note(provider: str, machine: str) -> str | None:
    """No error: the table need not know every machine of a cloud, which `check` asks. Sizes that it
    lacks (n1-standard-64) are no spelling mistakes."""
    known = table.packaged(provider).by_name
    if machine_type(provider, machine) or tpus.tpu_type(provider, machine):
        return None
    for other in (cloud.name for cloud in clouds() if cloud.name != provider):
        if machine.lower() in table.packaged(other).by_name:
            return f"this is a machine of {other}, not of {provider}"
    near = difflib.get_close_matches(machine.lower(), known, n=1, cutoff=0.85)
    if not near or re.sub(r"\d+", "", near[0]) == re.sub(r"\d+", "", machine.lower()):
        return None
    return f"not in the table of {provider}'s machines: did you mean {known[near[0]][0].machine}?"
