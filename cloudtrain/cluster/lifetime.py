"""The end of a cluster by `limits.max_lifetime` and `limits.budget`: moved where the cloud can."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from cloudtrain.core.cloud import cloud_of
from cloudtrain.core.errors import CloudtrainError, NodeError, StepFailed, UsageError
from cloudtrain.core.events import ClusterEnd, EndMoveBegun, EndMoved, Lifetime, known_end
from cloudtrain.core.model import Limits, Node, NodePlan, Plan
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.protocols import RentsMachines
from cloudtrain.money.budget import BudgetState, budget_state, latest_end
from cloudtrain.money.estimate import NodePrice, planned_price
from cloudtrain.money.node_hours import AFTER_END, MOST, charged_hours
from cloudtrain.training.strategies import enforced_lifetime

if TYPE_CHECKING:
    from cloudtrain.cluster.session import Session

LEAST = 60.0
"""Minimum seconds between now and a new end."""
SAME = 60.0
"""Seconds by which two ends may differ: clouds count a lifetime from different moments."""


def new_end(session: Session) -> ClusterEnd | None:
    """Return the new end; None if it is unchanged. By `limits.max_lifetime` it counts from the
    creation of the cluster; `limits.budget` may bring it nearer. Raises UsageError for one that is
    in the past."""
    known = known_end(session.records.events())
    limits = session.config.limits
    if known is None or not session.nodes:
        return None
    stands = known.moving or known
    if (stands.lifetime, stands.budget) == (limits.max_lifetime, limits.budget):
        return known.moving
    by_lifetime = _by_lifetime(session, known)
    end = ClusterEnd(lifetime=limits.max_lifetime, expires=by_lifetime, budget=limits.budget)
    by_budget = paid_until(session, session.plan)
    if by_budget is not None and (by_lifetime is None or by_budget < by_lifetime):
        end = replace(end, expires=by_budget)
    if end.expires is not None and end.expires < session.clock.now() + LEAST:
        name = session.config.name
        field = f"limits.max_lifetime of {words(limits.max_lifetime)}"
        if end.expires == by_budget:
            field = f"limits.budget of {limits.budget:g} $"
        raise UsageError(
            f"{field}: {name} was created at {moment(known.born)}, "
            f"so it would have ended at {moment(end.expires)}",
            hint=f"run `cloudtrain down {name}` to destroy it now",
        )
    return end


def _by_lifetime(session: Session, known: Lifetime) -> float | None:
    wanted = session.config.limits.max_lifetime
    if wanted is None:
        return None
    ends = [node.expires for node in session.nodes if node.expires is not None]
    agree = len(ends) == len(session.nodes) and max(ends) - min(ends) <= SAME
    by_lifetime = known.budget is None and session.config.limits.budget is None
    if known.moving is None and known.lifetime is not None and agree and by_lifetime:
        return min(ends) + wanted - known.lifetime
    return known.born + wanted


def record_move(session: Session, end: ClusterEnd) -> None:
    """Record the move before anything is moved, so that an interrupted move is continued."""
    session.records.journal(
        EndMoveBegun(lifetime=end.lifetime, expires=end.expires, budget=end.budget)
    )


def move_ends(session: Session, end: ClusterEnd) -> Session:
    """Move the end of every running node; skip nodes that already end then."""
    due = [node for node in session.nodes if not ends_at(node, end)]
    if not due:
        return session

    def run_line(node: Node, line: str) -> None:
        done = session.transport.ask(node, line)
        if done.exit_code != 0:
            words = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
            raise StepFailed(node.name, f"cannot move its end: exit {done.exit_code} {words}")

    names = [node.name for node in due]
    session.console.say(f"{session.config.name} now ends {at(end)}")
    session.provider.move_ends(session.config.name, names, end.expires, run_line)
    return session.refreshed()


def settle_end(session: Session, end: ClusterEnd) -> Session:
    """Move the end of the remaining nodes and complete the move."""
    session = move_ends(session, end)
    left = [node.name for node in session.nodes if not ends_at(node, end)]
    if left:
        raise CloudtrainError(
            f"the end of {', '.join(left)} was not moved: the cloud reports another one",
            hint="run `cloudtrain up` to try again",
        )
    session.records.journal(EndMoved(lifetime=end.lifetime, expires=end.expires, budget=end.budget))
    return session


def confirm_own_ends(session: Session) -> Session:
    """Ask each running node that ends itself whether its timer runs; without one it has no end."""
    provider = session.provider
    if not isinstance(provider, RentsMachines):
        return session

    def ask(node: Node) -> Node:
        line = provider.own_end(node) if node.state == "running" and not node.no_end else ""
        try:
            if not line or session.transport.ask(node, line).exit_code == 0:
                return node
        except NodeError:  # it is asked out of interest: what needs the node says why it is silent
            return node
        return replace(node, no_end="its own timer does not run, or has another end")

    return replace(session, nodes=tuple(fan_out(session.nodes, ask, name=lambda node: node.name)))


def ends_at(node: Node, end: ClusterEnd) -> bool:
    if node.expires is None or end.expires is None:
        return node.expires is end.expires
    return abs(node.expires - end.expires) <= SAME


def at(end: ClusterEnd) -> str:
    if end.expires is None:
        return "only by `cloudtrain down` (limits.max_lifetime: off)"
    return f"at {moment(end.expires)}"


def moment(unix: float) -> str:
    return datetime.fromtimestamp(unix).astimezone().strftime("%Y-%m-%d %H:%M %Z")


def words(seconds: float | None) -> str:
    """Format a duration as in a config: `2h`, or `off` for None."""
    if seconds is None:
        return "off"
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


# ── limits.budget ──────────────────────────────────────────────────────────────


def budget_now(session: Session) -> BudgetState | None:
    """State of the cluster's budget; None without one."""
    limit, cloud = session.config.limits.budget, cloud_of(session.config.provider)
    if limit is None or cloud is None:
        return None
    return budget_state(limit, cloud, session.records.events(), session.clock.now())


def paid_until(session: Session, plan: Plan) -> float | None:
    """Latest end of the cluster that the budget allows once the plan's nodes run, too; None without
    a budget. Raises UsageError if a price is not known."""
    limit, cloud = session.config.limits.budget, cloud_of(session.config.provider)
    if limit is None or cloud is None:
        return None
    end = latest_end(
        limit,
        cloud,
        charged_hours(session.records.events()),
        session.clock.now(),
        added=prices_of(session, missing_nodes(session, plan)),
        started=stopped_nodes(session, plan),
    )
    if end is None:
        raise UsageError(
            f"limits.budget of {limit:g} $ cannot be enforced: a price is not known, now or in the "
            "record of an earlier version",
            hint="`cloudtrain plan FILE` names it; `--refresh-prices` fetches today's prices",
        )
    return None if end == float("inf") else end


def missing_nodes(session: Session, plan: Plan) -> list[NodePlan]:
    """Nodes of the plan that do not exist."""
    there = {node.name for node in session.nodes if node.state != "gone"}
    return [node for node in plan.nodes if node.name not in there]


def stopped_nodes(session: Session, plan: Plan) -> list[str]:
    """Names of the plan's nodes that are stopped, and would be started again."""
    there = {node.name for node in session.nodes if node.state == "stopped"}
    return [name for name in plan.names if name in there]


def prices_of(session: Session, nodes: Iterable[NodePlan]) -> dict[str, NodePrice]:
    """Highest price of each node in the places where it may be created."""
    config = session.config
    cloud = cloud_of(config.provider)
    there = tuple(dict.fromkeys(node.placement for node in session.nodes if node.placement))
    places = there or config.placement or ((cloud.first_region,) if cloud else ())
    found = {}
    for node in nodes:
        prices = [planned_price(config, node, place) for place in places]
        found[node.name] = max(prices, key=lambda each: (each.most is None, each.most or 0.0))
    return found


def charges(session: Session, node: NodePlan) -> dict[str, float | None]:
    """Upper bounds of what the node costs, for the record of its request."""
    price = prices_of(session, [node])[node.name]
    return {MOST: price.most, AFTER_END: price.after_end}


# ── limits.budget held by the lifetime ─────────────────────────────────────────


LEAST_PAID = 3600.0
"""Least seconds that a budget must pay for a new cluster, unless its lifetime is shorter."""
LEAST_MORE = 900.0
"""The same if only some nodes are added or replaced."""


def within_budget(session: Session, plan: Plan) -> tuple[Session, Plan]:
    """The plan of nodes to be created or started, with the latest end that the budget allows. If
    they make the cluster more expensive, the end of the others is moved nearer first, where the
    cloud can. Raises UsageError if the budget does not allow them."""
    end = _allowed_end(session, plan)
    if end is None or enforced_lifetime(session.config) is None:
        return session, plan
    ends = _ends(session)
    if ends and max(ends) > end + SAME:
        limits = session.config.limits
        moved = ClusterEnd(lifetime=limits.max_lifetime, expires=end, budget=limits.budget)
        record_move(session, moved)
        session = settle_end(move_ends(session, moved), moved)
    elif ends:
        end = max(end, *ends)  # the new ones end with the others
    return session, replace(plan, latest_end=end)


def refuse_unpaid(session: Session, plan: Plan) -> None:
    """Raise UsageError if the budget does not allow the nodes that are to be created or started."""
    _allowed_end(session, plan)


def refusal(session: Session, plan: Plan) -> str | None:
    """Reason for which the budget does not allow these nodes; None if it does."""
    try:
        _allowed_end(session, plan)
    except UsageError as error:
        return error.message
    return None


def least_seconds(limits: Limits) -> float:
    """Least seconds that a budget must pay for a new cluster."""
    return min(LEAST_PAID, limits.max_lifetime or LEAST_PAID)


def _allowed_end(session: Session, plan: Plan) -> float | None:
    """Latest end of the cluster with these nodes; None without a budget, or if none is new."""
    config = session.config
    limit, cloud = config.limits.budget, cloud_of(config.provider)
    if limit is None or cloud is None:
        return None
    if not missing_nodes(session, plan) and not stopped_nodes(session, plan):
        return None
    end, now = paid_until(session, plan), session.clock.now()
    if end is None:
        return None
    least = least_seconds(config.limits)
    if session.nodes:
        least = max(LEAST_MORE, cloud.soonest_end + SAME)
    if end < now + least:
        raise UsageError(
            f"limits.budget of {limit:g} $: what is left of it pays for these nodes for "
            f"{max(0.0, end - now) / 60:.0f} min, less than {least / 60:.0f} min",
            hint=f"raise limits.budget, or run `cloudtrain down {config.name}`",
        )
    ends = _ends(session)
    if cloud.fixed_end and ends and max(ends) > end + SAME:
        raise UsageError(
            f"limits.budget of {limit:g} $: with these nodes it would be spent at {moment(end)}, "
            f"before the existing nodes end at {moment(max(ends))} ({cloud.fixed_end})",
            hint="raise limits.budget, or run `cloudtrain down` and `cloudtrain up`",
        )
    return end


def _ends(session: Session) -> list[float]:
    """Expiries of the nodes that run; infinite for one without."""
    now = session.clock.now()
    ends = [
        float("inf") if node.expires is None else node.expires
        for node in session.nodes
        if node.state in ("starting", "running")
    ]
    return [end for end in ends if end > now]
