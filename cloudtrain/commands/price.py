"""Price of a cluster, in words and against `limits.max_price`."""

from __future__ import annotations

from cloudtrain.catalog.estimate import estimate
from cloudtrain.console.prices import in_words
from cloudtrain.errors import UsageError
from cloudtrain.model import Plan
from cloudtrain.protocols import Finding


def price(plan: Plan) -> tuple[Finding, ...]:
    """One finding on a cloud, none if nothing is billed. `max_price` needs a known price."""
    found, limit = estimate(plan), plan.config.limits.max_price
    if found is None:
        return ()
    text = in_words(found, plan.config)
    if limit is None:
        return (Finding(what="price", ok=True, text=text),)
    if found.most is None:
        return (
            Finding(
                what="price",
                ok=False,
                text=f"{text}, so limits.max_price cannot be enforced",
                hint="`cloudtrain plan FILE --refresh-prices` fetches today's prices; or remove "
                "limits.max_price",
                error=UsageError,
            ),
        )
    if found.most > limit:
        return (
            Finding(
                what="price",
                ok=False,
                text=f"{text}, more than limits.max_price: {limit:g} $/hour",
                hint="use fewer or smaller machines, spot, another placement or a higher limit",
                error=UsageError,
            ),
        )
    return (Finding(what="price", ok=True, text=f"{text}; max_price is {limit:g} $/hour"),)
