"""Ways in which each cloud sells its GPU machines, and the machines that it no longer sells.

Families that a cloud's row of facts does not list are sold on demand and as spot; docs/machines.md
shows the others (tools/generate_docs.py)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date

from cloudtrain.catalog import table
from cloudtrain.core.cloud import Cloud, Family
from cloudtrain.core.model import Market


def today() -> date:
    return date.today()


def named_for_gpus(cloud: Cloud, machine: str) -> bool:
    return re.fullmatch(cloud.gpu_machines, machine, re.IGNORECASE) is not None


def family(cloud: Cloud, machine: str) -> Family | None:
    known = cloud.family_of
    if machine not in known:
        fits = (row for row in cloud.families if re.fullmatch(row.machines, machine, re.IGNORECASE))
        known[machine] = next(fits, None)
    return known[machine]


def equivalent(cloud: Cloud, row: Family) -> str:
    """`Standard_NC4as_T4_v3 (T4:1)`"""
    has = _built_in(cloud, row.instead)
    return f"{row.instead} ({has})" if has else row.instead


def unavailable_reason(
    cloud: Cloud, machine: str, *, market: Market, own_image: bool = False
) -> str | None:
    """Reason why no such machine can be rented, with an alternative; None if nothing is known
    against it."""
    row, sold = family(cloud, machine), markets_of(cloud, machine)
    other = equivalent(cloud, row) if row else ""
    instead = f"; use {other}" if other else ""
    if row and row.gone(today()):
        since = f" since {row.retired}" if row.retired else ""
        return f"{machine} is retired{since}: the cloud no longer offers it; use {other}"
    if row and row.arm:
        return f"{machine} is an ARM machine, but cloudtrain's images are x86-64{instead}"
    if row and row.unfit and not own_image:
        return f"{machine} cannot be used: {row.unfit}{instead}"
    return None if _has(sold, market) else _not_sold(cloud, sold, machine, market, other)


def _has(sold: Sequence[Market], market: Market) -> bool:
    """True if a machine with these markets can be had on that one: what is sold on demand can also
    be reserved, on each cloud that has reservations."""
    return market in sold or (market == "reservation" and "on-demand" in sold)


def markets_of(cloud: Cloud, machine: str) -> tuple[Market, ...]:
    """Ways in which a machine is sold; all that the driver knows for an unknown one with GPUs."""
    row = family(cloud, machine)
    if row is not None:
        return row.markets
    known = machine.lower() in table.packaged(cloud.name).by_name
    return cloud.markets if named_for_gpus(cloud, machine) and not known else cloud.usual_markets


def _not_sold(
    cloud: Cloud, sold: tuple[Market, ...], machine: str, market: Market, other: str
) -> str:
    text = f"{cloud.vendor} does not sell {machine} {_HOW[market]}: only {_either(sold)}"
    offered = [f"`{in_file(each)}`" for each in sold if each in cloud.markets]
    if offered:
        return f"{text}; set {_either(offered)}"
    return f"{text}, which this version does not support; use {other}"


_HOW: dict[Market, str] = {
    "on-demand": "on demand",
    "spot": "as spot",
    "flex-start": "by flex-start",
    "reservation": "by reservation",
    "capacity-block": "by capacity block",
}


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def in_file(market: Market) -> str:
    """`spot: true`, or `provisioning: {reservation: NAME}`."""
    forms = {
        "spot": "spot: true",
        "reservation": "provisioning: {reservation: NAME}",
        "capacity-block": "provisioning: {capacity_block: ID}",
    }
    return forms.get(market, f"provisioning: {market}")


def retirement_notice(cloud: Cloud, machine: str) -> str | None:
    """The vendor's announcement of this machine's retirement, if that is in the future."""
    row = family(cloud, machine)
    if row is None or row.retired is None or row.gone(today()):
        return None
    other = equivalent(cloud, row)
    return f"{cloud.vendor} retires it on {row.retired}; use {other}"


def is_sold(cloud: Cloud, machine: str, *, market: Market | None = None) -> bool:
    """True if the machine is sold on that market, or on any market if that is None."""
    row = family(cloud, machine)
    if row is not None and (row.gone(today()) or row.arm or row.unfit):
        return False
    return market is None or market in markets_of(cloud, machine)


def retired_kind(cloud: Cloud, kind: str) -> str | None:
    """Replacement of an accelerator that this cloud no longer rents."""
    rows = [row for row in cloud.families if row.kind == kind]
    gone = [row for row in rows if row.gone(today())]
    if not rows or len(gone) < len(rows):
        return None
    has = _built_in(cloud, gone[-1].instead)
    return has.partition(":")[0] if has else gone[-1].instead


def unfit_kind(cloud: Cloud, kind: str) -> str | None:
    """Reason why this cloud's machines with that accelerator cannot be used."""
    rows = [row for row in cloud.families if row.kind == kind and row.unfit]
    return f"{rows[0].unfit}; use {equivalent(cloud, rows[0])}" if rows else None


def _built_in(cloud: Cloud, machine: str) -> str:
    rows = table.packaged(cloud.name).by_name.get(machine.lower(), ())
    return next((str(row.accelerator) for row in rows if row.accelerator), "")
