"""Nodes that their cloud took while something was done on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cloudtrain.cluster.session import Session
from cloudtrain.core.errors import (
    CapacityError,
    CloudtrainError,
    NodeError,
    NodesError,
    NodeUnreachable,
)
from cloudtrain.core.paths import some
from cloudtrain.core.retry import NODE_TAKEN, Retry, poll_until

TAKEN = Retry(pause=5.0, within=NODE_TAKEN)
"""Wait for a preempted node to disappear: it has 150 s on GCP, 120 s on AWS, 30 s on Azure."""


def lost_nodes(session: Session, error: CloudtrainError) -> tuple[str, ...]:
    """Nodes that did not answer, by this error, and that their cloud has no more.

    A spot node may be listed for a while after its last answer: it is waited for. None if the cloud
    does not answer.
    """
    silent = _unreachable(error)

    def gone() -> tuple[str, ...] | None:
        try:
            there = {node.name for node in session.refreshed().nodes if node.state != "gone"}
        except CloudtrainError:
            return None
        return tuple(sorted(silent - there)) or None

    found = gone() if silent else None
    spot = [node.name for node in session.nodes if node.spot and node.name in silent]
    if found is None and spot:
        why = f"whether the cloud has taken {some(spot)}"
        found = poll_until(gone, TAKEN, waits_for=why, clock=session.clock)
    return found or ()


def _unreachable(error: BaseException | None) -> set[str]:
    """Names of nodes that did not answer, by an error and its causes."""
    found: set[str] = set()
    while error is not None:
        failures = error.failures.values() if isinstance(error, NodesError) else (error,)
        found |= {each.node for each in failures if isinstance(each, NodeUnreachable)}
        error = error.__cause__
    return found


@contextmanager
def lost_as_no_capacity(session: Session) -> Iterator[None]:
    """Raise CapacityError if nodes were lost in the block, before a run began on them, and nothing
    else went wrong: they are created again like nodes for which there was no room.
    """
    try:
        yield
    except (NodeError, NodesError) as error:
        failed = {error.node} if isinstance(error, NodeError) else set(error.failures)
        lost = lost_nodes(session, error)
        if not failed <= set(lost):
            raise
        raise CapacityError(
            f"{some(lost)}: the cloud took it while it was set up: {error.message}",
            hint="run the command again; `--wait 1h` does so by itself",
        ) from error
