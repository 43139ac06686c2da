"""Applies a new `limits.max_lifetime` or `limits.budget`: moves the end of existing nodes, if the
cloud can.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from cloudtrain.cluster.budget_end import paid_until
from cloudtrain.cluster.session import Session
from cloudtrain.core.errors import CloudtrainError, NodeError, StepFailed, UsageError
from cloudtrain.core.events import ClusterEnd, EndMoveBegun, EndMoved, Lifetime, known_end
from cloudtrain.core.model import Node
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.protocols import RentsMachines

LEAST = 60.0
"""Minimum seconds between now and a new end."""
SAME = 60.0
"""Seconds by which two ends may differ: clouds count a lifetime from different moments."""


def new_end(session: Session, *, now: float | None = None) -> ClusterEnd | None:
    """Return the new end; None if it is unchanged.

    By `limits.max_lifetime` it counts from the creation of the cluster; `limits.budget` may bring
    it nearer. Raises UsageError for one that is in the past.
    """
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
    if (
        end.expires is not None
        and end.expires < (session.clock.now() if now is None else now) + LEAST
    ):
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
    """Ask each running node that ends itself whether its timer runs; one that says no has no
    end.
    """
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

    nodes = fan_out(session.nodes, ask, name=lambda node: node.name)
    return replace(session, nodes=tuple(nodes))


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
