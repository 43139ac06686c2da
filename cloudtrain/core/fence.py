"""Checks right before a deletion that what is deleted was seen a moment ago, and that the cluster
is still this command's.

A laptop whose lid was closed, or a process that was stopped, goes on with a deletion that was
decided before. Meanwhile another machine may have taken the cluster over, or made a new one of the
same name. https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html calls it
fencing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

from cloudtrain.core import moments
from cloudtrain.core.errors import LookAgainError

Check = Callable[[], None]
_confirm: ContextVar[Check | None] = ContextVar("confirm", default=None)
_seen: ContextVar[Check | None] = ContextVar("seen", default=None)


def confirmed_by(confirm: Check) -> AbstractContextManager[None]:
    """Have `confirm` called before each round of creations and deletions inside: it raises if they
    may not go on. Also in threads of `fan_out`."""
    return _during(_confirm, confirm)


def confirm() -> None:
    """Ask whether creations and deletions may go on. Raises LeasedError."""
    check = _confirm.get(None)
    if check is not None:
        check()


def deleting_what_was_seen(before: int) -> AbstractContextManager[None]:
    """Have `refuse_stale` raise inside once this process has stood still since the listing of what
    is deleted. `before`: `moments.gaps` when that began."""

    def check() -> None:
        if moments.gaps() != before:
            raise LookAgainError("this process stood still since what it deletes was listed")

    return _during(_seen, check)


@contextmanager
def _during(where: ContextVar[Check | None], check: Check) -> Iterator[None]:
    token = where.set(check)
    try:
        yield
    finally:
        where.reset(token)


def refuse_stale() -> None:
    """Raise LookAgainError if this process stood still since it listed what it is about to delete.
    Drivers call it right before each request that deletes something."""
    check = _seen.get(None)
    if check is not None:
        check()
