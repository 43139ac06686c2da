"""Tries what lands or deletes again while a store or a cloud is away, and says what that costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from cloudtrain.core.errors import (
    BusyError,
    CloudtrainError,
    NodesError,
    NotLanded,
    RateError,
    StoreAway,
    StoreError,
    TransientError,
)
from cloudtrain.core.events import DownFailed
from cloudtrain.core.model import Plan
from cloudtrain.core.protocols import Console
from cloudtrain.core.retry import CLOCK, OUTAGE, Clock, Retry
from cloudtrain.money.estimate import estimate
from cloudtrain.money.prices import dollars
from cloudtrain.state import Records

TRIES = Retry(pause=10.0, backoff=1.5, longest=120.0, within=OUTAGE, at_least=1)

EVERY = 60.0
"""Seconds between two lines about the same wait."""

T = TypeVar("T")


def passes(error: BaseException | None) -> bool:
    """True for an error that is over once a store or a cloud answers again.

    What only a user can mend never passes: a bucket that does not exist, credentials, a file that
    cannot be read, what is more than `artifacts.limit`; nor does a node that does not answer.
    """
    if isinstance(error, NodesError):
        return all(map(passes, error.failures.values()))
    if isinstance(error, StoreAway | TransientError | RateError | BusyError):
        return True
    if not isinstance(error, NotLanded | StoreError):
        return False
    return passes(error.__cause__)


def retry_outage(
    work: Callable[[], T],
    records: Records,
    plan: Callable[[], Plan],
    console: Console,
    *,
    clock: Clock = CLOCK,
    tries: Retry = TRIES,
) -> T:
    """The result of `work`, tried again while its errors are such as pass by themselves, for
    `OUTAGE` seconds. Raises its last error.
    """
    end, said = clock.now() + tries.within, -EVERY

    def wait(error: CloudtrainError, pause: float, taken: float) -> None:
        nonlocal said
        records.journal(DownFailed(why=error.message, again=clock.now() + pause))
        if taken - said < EVERY:
            return
        said = taken
        cost = hourly(plan)
        console.warn(
            f"{error.message}\ntrying again in {pause:.0f} s, until "
            f"{time.strftime('%H:%M UTC', time.gmtime(end))}"
            + (f"; the nodes cost {cost} meanwhile" if cost else "")
        )

    return tries.call(
        work,
        on=CloudtrainError,
        unless=lambda error: not passes(error),
        before_pause=wait,
        clock=clock,
    )


def hourly(plan: Callable[[], Plan]) -> str:
    """`at most 1.20 $/hour`, "" if that is not known, or nothing is rented."""
    try:
        found = estimate(plan())
    except CloudtrainError:  # it can no longer be planned
        return ""
    price = None if found is None else found.most
    return "" if price is None else f"at most {dollars(price)}/hour"
