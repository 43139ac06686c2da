"""What a cluster costs, in words and against `limits.max_price`."""

from __future__ import annotations

from typing import Any

from cloudtrain.catalogue.bill import Bill, bill
from cloudtrain.errors import UsageError
from cloudtrain.model import Plan
from cloudtrain.protocols import Finding


def price(plan: Plan) -> tuple[Finding, ...]:
    """One finding on a cloud, none where nothing is billed. `max_price` needs a known price."""
    found, limit = bill(plan), plan.config.limits.max_price
    if found is None:
        return ()
    text = words(found, plan)
    if limit is None:
        return (Finding(what="price", ok=True, text=text),)
    if found.most is None:
        return (
            Finding(
                what="price",
                ok=False,
                text=f"{text}, so limits.max_price cannot be held",
                hint="`cloudtrain plan FILE --refresh-prices` fetches today's prices; or leave "
                "limits.max_price out",
                error=UsageError,
            ),
        )
    if found.most > limit:
        return (
            Finding(
                what="price",
                ok=False,
                text=f"{text}, more than limits.max_price: {limit:g} $/hour",
                hint="fewer or smaller machines, spot, another placement, or a higher max_price",
                error=UsageError,
            ),
        )
    return (Finding(what="price", ok=True, text=f"{text}; max_price is {limit:g} $/hour"),)


def words(found: Bill, plan: Plan) -> str:
    """`1.60 $/hour in us-east4, at most 19.15 $ in 12h (prices of 2026-11-02, without disks, …)`"""
    lifetime = plan.config.limits.max_lifetime
    text = f"not known: {', '.join(found.unknown)}"
    if found.per_hour is not None:
        text = f"{dollars(found.per_hour)}/hour in {found.place}"
    elif found.most is not None:
        text = f"{text}; at most {dollars(found.most)}/hour, the price on demand"
    if found.most is not None and lifetime is not None:
        text += f", at most {dollars(found.most * lifetime / 3600)} in {lifetime / 3600:g}h"
    elif found.most is not None:
        text += ", without an end (limits.max_lifetime is off)"
    age = ", more than 180 days old: see `plan --refresh-prices`" if found.stale else ""
    return f"{text} (prices of {found.date.isoformat()}{age}; without {NOT_IN_IT})"


NOT_IN_IT = "disks, addresses and traffic"


def wager(plan: Plan) -> str:
    """What one is asked to agree to: `1.60 $/hour`, `at most 3.20 $/hour`, `price not known`."""
    found = bill(plan)
    if found is None or found.most is None:
        return "price not known"
    text = f"{dollars(found.most)}/hour"
    return text if found.per_hour is not None else f"at most {text}"


def dollars(amount: float) -> str:
    return f"{amount:.2f} $" if amount >= 0.1 or amount == 0 else f"{amount:.4f} $"


def price_json(plan: Plan) -> dict[str, Any]:
    """`null` is "not known". Nothing is billed where the provider rents no machine."""
    found, lifetime = bill(plan), plan.config.limits.max_lifetime
    if found is None:
        return {
            "price_per_hour": 0.0,
            "price_per_hour_at_most": 0.0,
            "price_at_most": 0.0,
            "price_place": None,
            "price_date": None,
        }
    most = found.most * lifetime / 3600 if found.most is not None and lifetime else None
    return {
        "price_per_hour": rounded(found.per_hour),
        "price_per_hour_at_most": rounded(found.most),
        "price_at_most": rounded(most),
        "price_place": found.place,
        "price_date": found.date.isoformat(),
    }


def rounded(amount: float | None) -> float | None:
    return None if amount is None else round(amount, 6)
