"""Spot nodes that are requested on demand, after `train.spot_retries` refusals."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from cloudtrain.core.model import ON_DEMAND, Plan
from cloudtrain.core.paths import some
from cloudtrain.core.protocols import Console
from cloudtrain.money.estimate import estimate
from cloudtrain.money.prices import per_hour


@dataclass
class SpotFallback:
    """Counts the refused requests of one wait. `names`: nodes to request on demand from now on,
    although the file says spot; it is decided once, and never without `train.spot_retries`.
    """

    console: Console
    over_budget: Callable[[Plan], str | None] = lambda plan: None
    """Why `limits.budget` does not allow a plan; None if it does."""
    names: frozenset[str] = frozenset()
    refusals: int = 0
    _is_decided: bool = False

    def refused(self, plan: Plan, missing: Callable[[], Collection[str]]) -> None:
        """Another request was refused. `missing` lists the names of the plan's nodes that do not
        exist; it is called only when that matters.
        """
        self.refusals += 1
        retries = plan.config.train.spot_retries
        if self._is_decided or retries is None or self.refusals < max(1, retries):
            return
        wanted = set(missing())
        spot = [node.name for node in plan.nodes if node.spot and node.name in wanted]
        if not spot:
            return
        self._is_decided = True
        dearer, limit = on_demand(plan, spot), plan.config.limits.max_price
        bill = estimate(dearer)
        what = f"{some(spot)}: refused {self.refusals} times as spot (train.spot_retries)"
        if limit is not None and bill is not None and (bill.most is None or bill.most > limit):
            self.console.warn(
                f"{what}; on demand the cluster would cost {per_hour(bill)}, limits.max_price is "
                f"{limit:g} $/hour: requesting spot again"
            )
            return
        refusal = self.over_budget(dearer)
        if refusal is not None:
            self.console.warn(f"{what}; on demand, {refusal}: requesting spot again")
            return
        cost = "" if bill is None else f": {per_hour(bill)} instead of {per_hour(estimate(plan))}"
        self.console.warn(f"{what}; requesting it on demand{cost}")
        self.names = frozenset(spot)


def on_demand(plan: Plan, names: Collection[str]) -> Plan:
    """The plan with these nodes on demand."""
    if not names:
        return plan
    nodes = tuple(
        replace(each, provisioning=ON_DEMAND) if each.spot and each.name in names else each
        for each in plan.nodes
    )
    return replace(plan, nodes=nodes)


def fallback_price(plan: Plan) -> str:
    """Text on what `train.spot_retries` may make the cluster cost; "" if nothing."""
    retries, spot = plan.config.train.spot_retries, [n.name for n in plan.nodes if n.spot]
    if retries is None or not spot:
        return ""
    bill, limit = estimate(on_demand(plan, spot)), plan.config.limits.max_price
    if bill is None or (limit is not None and (bill.most is None or bill.most > limit)):
        return ""
    return f"on demand, {per_hour(bill)}, after {max(1, retries)} refusals (train.spot_retries)"
