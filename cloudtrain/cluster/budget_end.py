"""Until when `limits.budget` pays for a cluster, with nodes that are about to be created."""

from __future__ import annotations

from collections.abc import Iterable

from cloudtrain.cluster.session import Session
from cloudtrain.core.cloud import cloud_of
from cloudtrain.core.errors import UsageError
from cloudtrain.core.model import ClusterConfig, NodePlan, Plan
from cloudtrain.money.budget import BudgetState, budget_state, latest_end
from cloudtrain.money.estimate import NodePrice, planned_price
from cloudtrain.money.node_hours import AFTER_END, MOST, charged_hours


def budget_now(session: Session) -> BudgetState | None:
    """State of the cluster's budget; None without one."""
    limit, cloud = session.config.limits.budget, cloud_of(session.config.provider)
    if limit is None or cloud is None:
        return None
    return budget_state(limit, cloud, session.records.events(), session.clock.now())


def paid_until(session: Session, plan: Plan) -> float | None:
    """Latest end of the cluster that the budget allows once the plan's nodes run, too; None without
    a budget. Raises UsageError if a price is not known.
    """
    limit, cloud = session.config.limits.budget, cloud_of(session.config.provider)
    if limit is None or cloud is None:
        return None
    end = latest_end(
        limit,
        cloud,
        charged_hours(session.records.events()),
        session.clock.now(),
        added=prices_of(session, missing(session, plan)),
        started=stopped(session, plan),
    )
    if end is None:
        raise UsageError(
            f"limits.budget of {limit:g} $ cannot be enforced: a price is not known, now or in the "
            "record of an earlier version",
            hint="`cloudtrain plan FILE` names it; `--refresh-prices` fetches today's prices",
        )
    return None if end == float("inf") else end


def missing(session: Session, plan: Plan) -> list[NodePlan]:
    """Nodes of the plan that do not exist."""
    there = {node.name for node in session.nodes if node.state != "gone"}
    return [node for node in plan.nodes if node.name not in there]


def stopped(session: Session, plan: Plan) -> list[str]:
    """Names of the plan's nodes that are stopped, and would be started again."""
    there = {node.name for node in session.nodes if node.state == "stopped"}
    return [name for name in plan.names if name in there]


def prices_of(session: Session, nodes: Iterable[NodePlan]) -> dict[str, NodePrice]:
    """Highest price of each node in the places where it may be created."""
    config = session.config
    cloud = cloud_of(config.provider)
    there = tuple(dict.fromkeys(node.placement for node in session.nodes if node.placement))
    places = there or config.placement or ((cloud.first_region,) if cloud else ())
    return {node.name: _highest(config, node, places) for node in nodes}


def _highest(config: ClusterConfig, node: NodePlan, places: tuple[str, ...]) -> NodePrice:
    prices = [planned_price(config, node, place) for place in places]
    return max(prices, key=lambda price: (price.most is None, price.most or 0.0))


def charges(session: Session, node: NodePlan) -> dict[str, float | None]:
    """Upper bounds of what the node costs, for the record of its request."""
    price = prices_of(session, [node])[node.name]
    return {MOST: price.most, AFTER_END: price.after_end}
