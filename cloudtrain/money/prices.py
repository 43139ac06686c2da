"""Formats prices for users."""

from __future__ import annotations

from cloudtrain.core.model import ClusterConfig
from cloudtrain.money.estimate import Estimate, budget_seconds
from cloudtrain.training.strategies import enforced_lifetime

EXCLUDED = "traffic"


def in_words(found: Estimate, config: ClusterConfig) -> str:
    """`1.60 $/hour in us-east4, at most 19.15 $ in 12h (machines 1.52 $, disks 0.05 $, addresses
    0.03 $; prices of 2026-11-02; without traffic)`

    The second price is that until `limits.max_lifetime`, if the cloud enforces it."""
    text = f"not known: {', '.join(found.unknown)}"
    if found.per_hour is not None:
        text = f"{dollars(found.per_hour)}/hour in {found.place}"
    elif found.most is not None:
        text = f"{text}; at most {dollars(found.most)}/hour, the on-demand price"
    text += _limit(found, config)
    age = ", more than 180 days old: run `plan --refresh-prices`" if found.stale else ""
    known = f"{parts(found)}; " if found.per_hour is not None else ""
    return f"{text} ({known}prices of {found.date.isoformat()}{age}; without {EXCLUDED})"


def in_lines(found: Estimate, config: ClusterConfig) -> tuple[str, ...]:
    """The same, a line for each fact: the price, what it is made of or lacks, its age."""
    missing = f"not known: {', '.join(found.unknown)}"
    limit = _limit(found, config)
    if found.per_hour is not None:
        made_of = f"{parts(found)}, no {EXCLUDED}"
        price: tuple[str, ...] = (
            f"{dollars(found.per_hour)}/hour in {found.place}{limit}",
            made_of,
        )
    elif found.most is not None:
        price = (f"at most {dollars(found.most)}/hour (on demand){limit}", missing)
    else:
        price = (missing,)
    age = ", over 180 days old: `plan --refresh-prices`" if found.stale else ""
    return *price, f"prices of {found.date.isoformat()}{age}"


def _limit(found: Estimate, config: ClusterConfig) -> str:
    """`, at most 19.15 $ in 12h`: until the earlier of the lifetime's and the budget's end; ""
    if no price is known."""
    if found.most is None:
        return ""
    paid, lifetime, limits = budget_seconds(found, config), enforced_lifetime(config), config.limits
    if paid is not None and lifetime is not None and paid < lifetime:
        hours = max(0.0, paid / 3600)
        text = f", at most {dollars(found.most * hours)} in {hours:.3g}h"
        return f"{text}, which limits.budget of {limits.budget:g} $ pays for"
    if lifetime is not None:
        return f", at most {dollars(found.most * lifetime / 3600)} in {lifetime / 3600:g}h"
    off = limits.max_lifetime is None
    why = "limits.max_lifetime is off" if off else "nothing ends a TPU by itself"
    return f", without a limit ({why})"


def parts(found: Estimate) -> str:
    """`machines 1.52 $, disks 0.05 $, addresses 0.03 $`, as far as there are any."""
    named = {"machines": found.machines, "disks": found.disks, "addresses": found.addresses or None}
    return ", ".join(f"{name} {dollars(part)}" for name, part in named.items() if part is not None)


def per_hour(found: Estimate | None) -> str:
    """`1.60 $/hour`, `at most 3.20 $/hour` or `price not known`."""
    if found is None or found.most is None:
        return "price not known"
    text = f"{dollars(found.most)}/hour"
    return text if found.per_hour is not None else f"at most {text}"


def dollars(amount: float) -> str:
    return f"{amount:.2f} $" if amount >= 0.1 or amount == 0 else f"{amount:.4f} $"
