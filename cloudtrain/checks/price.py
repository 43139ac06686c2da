"""Price of a cluster, in words and against `limits.max_price` and `limits.budget`."""

from __future__ import annotations

from dataclasses import replace

from cloudtrain.cluster.lifetime import least_seconds
from cloudtrain.core.errors import UsageError
from cloudtrain.core.model import Plan
from cloudtrain.core.protocols import Finding
from cloudtrain.money.estimate import Estimate, budget_seconds, estimate
from cloudtrain.money.prices import dollars, in_lines, in_words

RENEW = "`cloudtrain plan FILE --refresh-prices` fetches today's prices; or remove limits."
FEWER = "use fewer or smaller machines, spot, another placement or a "


def price(plan: Plan) -> tuple[Finding, ...]:
    """One finding on a cloud, none if nothing is billed. `max_price` and `budget` need a known
    price."""
    found, limit = estimate(plan), plan.config.limits.max_price
    if found is None:
        return ()
    text = in_words(found, plan.config)
    first, *more = in_lines(found, plan.config)
    refused = _over_budget(plan, found, text)
    if refused is not None:
        return (Finding.of("price", refused),)
    if limit is None:
        return (Finding(what="price", ok=True, text=text, lines=(first, *more)),)
    if found.most is None:
        return (Finding.of("price", _unknown(text, "max_price")),)
    if found.most > limit:
        over = f"{text}, more than limits.max_price: {limit:g} $/hour"
        finding = Finding.of("price", UsageError(over, hint=f"{FEWER}higher limit"))
        lines = (f"{first}: more than limits.max_price, {limit:g} $/hour", *more)
        return (replace(finding, lines=lines),)
    text = f"{text}; max_price is {limit:g} $/hour"
    lines = (first, *more, f"limits.max_price is {limit:g} $/hour")
    return (Finding(what="price", ok=True, text=text, lines=lines),)


def _unknown(text: str, limit: str) -> UsageError:
    return UsageError(f"{text}, so limits.{limit} cannot be enforced", hint=f"{RENEW}{limit}")


def _over_budget(plan: Plan, found: Estimate, text: str) -> UsageError | None:
    """The error if `limits.budget` cannot be enforced, or is too small to begin."""
    limits = plan.config.limits
    if limits.budget is None:
        return None
    paid = budget_seconds(found, plan.config)
    if paid is None:
        return _unknown(text, "budget")
    least = least_seconds(limits)
    if paid >= least:
        return None
    after = f", with what stays until `down` ({dollars(found.after_end or 0.0)}/hour)"
    return UsageError(
        f"limits.budget of {limits.budget:g} $ pays for {max(0.0, paid) / 60:.0f} min at "
        f"{dollars(found.most or 0.0)}/hour{after if found.after_end else ''}: less than "
        f"{least / 60:.0f} min",
        hint=f"{FEWER}larger budget",
    )
