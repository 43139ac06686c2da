"""Holds `limits.budget` by the nodes' lifetime: no node is created that would exceed it."""

from __future__ import annotations

from dataclasses import replace

from cloudtrain.cluster.budget_end import missing, paid_until, stopped
from cloudtrain.cluster.lifetime import SAME, moment, move_ends, record_move, settle_end
from cloudtrain.cluster.session import Session
from cloudtrain.core.cloud import cloud_of
from cloudtrain.core.errors import UsageError
from cloudtrain.core.events import ClusterEnd
from cloudtrain.core.model import Limits, Plan
from cloudtrain.training.strategies import enforced_lifetime

LEAST = 3600.0
"""Least seconds that a budget must pay for a new cluster, unless its lifetime is shorter."""
LEAST_MORE = 900.0
"""The same if only some nodes are added or replaced."""


def within_budget(session: Session, plan: Plan) -> tuple[Session, Plan]:
    """The plan of nodes to be created or started, with the latest end that the budget allows.

    If they make the cluster more expensive, the end of the others is moved nearer first, where the
    cloud can. Raises UsageError if the budget does not allow them.
    """
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
    return min(LEAST, limits.max_lifetime or LEAST)


def _allowed_end(session: Session, plan: Plan) -> float | None:
    """Latest end of the cluster with these nodes; None without a budget, or if none is new."""
    config = session.config
    limit, cloud = config.limits.budget, cloud_of(config.provider)
    if limit is None or cloud is None:
        return None
    if not missing(session, plan) and not stopped(session, plan):
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
