"""Formats prices for users."""

from __future__ import annotations

from cloudtrain.catalog.estimate import Estimate

EXCLUDED = "disks, addresses and traffic"


def in_words(found: Estimate, lifetime: float | None) -> str:
    """`1.60 $/hour in us-east4, at most 19.15 $ in 12h (prices of 2026-11-02, without disks, …)`

    `lifetime` (seconds) is `limits.max_lifetime`.
    """
    text = f"not known: {', '.join(found.unknown)}"
    if found.per_hour is not None:
        text = f"{dollars(found.per_hour)}/hour in {found.place}"
    elif found.most is not None:
        text = f"{text}; at most {dollars(found.most)}/hour, the on-demand price"
    if found.most is not None and lifetime is not None:
        text += f", at most {dollars(found.most * lifetime / 3600)} in {lifetime / 3600:g}h"
    elif found.most is not None:
        text += ", without a limit (limits.max_lifetime is off)"
    age = ", more than 180 days old: run `plan --refresh-prices`" if found.stale else ""
    return f"{text} (prices of {found.date.isoformat()}{age}; without {EXCLUDED})"


def dollars(amount: float) -> str:
    return f"{amount:.2f} $" if amount >= 0.1 or amount == 0 else f"{amount:.4f} $"
