"""Formats prices for users."""

from __future__ import annotations

from cloudtrain.catalog.estimate import Estimate
from cloudtrain.model import ClusterConfig
from cloudtrain.strategies import enforced_lifetime

EXCLUDED = "disks, addresses and traffic"


def in_words(found: Estimate, config: ClusterConfig) -> str:
    """`1.60 $/hour in us-east4, at most 19.15 $ in 12h (prices of 2026-11-02, without disks, …)`

    The second price is that until `limits.max_lifetime`, if the cloud enforces it.
    """
    lifetime = enforced_lifetime(config)
    text = f"not known: {', '.join(found.unknown)}"
    if found.per_hour is not None:
        text = f"{dollars(found.per_hour)}/hour in {found.place}"
    elif found.most is not None:
        text = f"{text}; at most {dollars(found.most)}/hour, the on-demand price"
    if found.most is not None and lifetime is not None:
        text += f", at most {dollars(found.most * lifetime / 3600)} in {lifetime / 3600:g}h"
    elif found.most is not None:
        off = config.limits.max_lifetime is None
        why = "limits.max_lifetime is off" if off else "nothing ends a TPU by itself"
        text += f", without a limit ({why})"
    age = ", more than 180 days old: run `plan --refresh-prices`" if found.stale else ""
    return f"{text} (prices of {found.date.isoformat()}{age}; without {EXCLUDED})"


def per_hour(found: Estimate | None) -> str:
    """`1.60 $/hour`, `at most 3.20 $/hour` or `price not known`."""
    if found is None or found.most is None:
        return "price not known"
    text = f"{dollars(found.most)}/hour"
    return text if found.per_hour is not None else f"at most {text}"


def dollars(amount: float) -> str:
    return f"{amount:.2f} $" if amount >= 0.1 or amount == 0 else f"{amount:.4f} $"
