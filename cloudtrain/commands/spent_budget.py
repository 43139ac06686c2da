"""Takes a cluster down whose `limits.budget` is spent, at the end of a command that used it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cloudtrain.cluster.session import Handle
from cloudtrain.commands.down import destroy_at_last
from cloudtrain.core.errors import CloudtrainError, NodesError, NotLanded, StoreError
from cloudtrain.core.protocols import Console
from cloudtrain.core.retry import CLOCK, Clock
from cloudtrain.runs.budget import recorded_budget
from cloudtrain.state import Records


@contextmanager
def down_when_spent(handle: Handle, console: Console, *, clock: Clock = CLOCK) -> Iterator[None]:
    """After the block, however it ended, take the cluster down if its budget is spent.

    The holder of the cluster's lock calls it. Nodes whose artifacts could not be landed are kept
    until their lifetime ends. A second error never replaces the first.
    """
    try:
        yield
    except (NotLanded, StoreError):
        raise
    except CloudtrainError as error:
        try:
            _go_down(handle, console, clock)
        except CloudtrainError as second:
            raise NodesError({"run": error, "down": second}) from error
        raise
    _go_down(handle, console, clock)


def is_spent(records: Records, clock: Clock = CLOCK) -> bool:
    """True once the rest of the budget pays for landing and going down alone."""
    now = clock.now()
    found = recorded_budget(records, now)
    return found is not None and found.is_spent(now)


def _go_down(handle: Handle, console: Console, clock: Clock) -> None:
    now = clock.now()
    found = recorded_budget(handle.records, now)
    if found is not None and found.is_spent(now):
        console.warn(f"limits.budget: {found} are spent: taking {handle.config.name} down")
        destroy_at_last(handle, console=console, clock=clock)
