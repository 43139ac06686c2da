"""Lost nodes made again for the next attempt, waited for where there is no room for them now.

An interruption of a spot node *is* the zone being out of that machine: the others are kept, and
billed, until it can be had again or the wait is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from cloudtrain.catalogue.bill import bill
from cloudtrain.cluster.provision import created
from cloudtrain.cluster.session import Session
from cloudtrain.errors import CapacityError, CloudError, QuotaError
from cloudtrain.model import Node, Plan, Run
from cloudtrain.protocols import Console, Stage

FIRST_PAUSE, LONGEST_PAUSE = 15.0, 300.0
"""Seconds between two requests, doubled each time."""

TICK = 0.5

GIVEN_UP = (
    "a lost node is made again beside the others, and was asked for as long as {} lets it: a "
    "longer `limits.wait`, or `train.spot_retries` for one on demand; what has landed stays"
)

Sleep = Callable[[float], None]
Clock = Callable[[], float]


def whole_again(
    session: Session, run: Run, *, clock: Clock = time.time, sleep: Sleep = time.sleep
) -> Session | None:
    """Every node of the plan runs. None: the run is to be stopped.

    Waits for CAPACITY and QUOTA with backoff: within `limits.wait`, the run's deadline, and the
    life of the nodes that are left. After `train.spot_retries` refusals a spot node is made on
    demand, within `limits.max_price`. Raises what the provider raises at the end of all that.
    """
    until = _until(session, run, clock())
    plan, refusals = session.plan, 0
    for pause in _pauses():
        try:
            heard = session if not refusals else replace(session, console=_Muted(session.console))
            made = created(heard, plan)
            if refusals:
                session.console.say(f"{', '.join(_missing(session))}: there again")
            return replace(made, console=session.console)
        except (CapacityError, QuotaError) as error:
            refusals += 1
            plan = _on_demand(session, plan, refusals)
            left = until.moment - clock()
            if left <= 0:
                # Not more places: a repair is where the other nodes are.
                raise error.copy_with(hint=GIVEN_UP.format(until.why)) from error
            _tell(session, error, min(pause, left), until)
            if not _slept(session, run, min(pause, left), clock, sleep):
                return None
    raise AssertionError("pauses do not end")


@dataclass(frozen=True, kw_only=True)
class _Until:
    """Unix time, and the field that says so."""

    moment: float
    why: str


def _until(session: Session, run: Run, now: float) -> _Until:
    limits, train = session.config.limits, session.config.train
    ends = [_Until(moment=now + (limits.wait or 0.0), why="limits.wait")]
    if train.deadline is not None:
        ends.append(_Until(moment=run.created + train.deadline, why="train.deadline"))
    lives = [node.expires for node in session.nodes if node.expires is not None]
    if lives:
        ends.append(_Until(moment=min(lives), why="limits.max_lifetime"))
    return min(ends, key=lambda end: end.moment)


def _pauses() -> Iterator[float]:
    pause = FIRST_PAUSE
    while True:
        yield pause
        pause = min(LONGEST_PAUSE, 2 * pause)


def _tell(session: Session, error: CloudError, pause: float, until: _Until) -> None:
    """One line a round: what is missing, why, and how long that may go on."""
    first = error.message.splitlines()[0]
    last = time.strftime("%H:%M UTC", time.gmtime(until.moment))
    session.console.warn(
        f"{', '.join(_missing(session))} cannot be had again yet: {first}; "
        f"asked again in {pause:.0f} s, until {last} ({until.why})"
    )


def _missing(session: Session) -> list[str]:
    there = {node.name for node in session.nodes if _runs(node)}
    return [node.name for node in session.plan.nodes if node.name not in there]


def _runs(node: Node) -> bool:
    return node.state in ("starting", "running")


def _slept(session: Session, run: Run, pause: float, clock: Clock, sleep: Sleep) -> bool:
    """False where somebody asked meanwhile that the run be stopped."""
    limit = clock() + pause
    while (left := limit - clock()) > 0:
        if session.records.stop_asked(run.id):
            return False
        sleep(min(TICK, left))
    return not session.records.stop_asked(run.id)


def _on_demand(session: Session, plan: Plan, refusals: int) -> Plan:
    """The plan with its missing spot nodes on demand, once that is wanted, and can be paid."""
    retries = session.config.train.spot_retries
    if retries is None or refusals != retries:
        return plan
    missing = set(_missing(session))
    spot = [node.name for node in plan.nodes if node.spot and node.name in missing]
    nodes = tuple(replace(n, spot=n.spot and n.name not in spot) for n in plan.nodes)
    dearer = replace(plan, nodes=nodes)
    if not spot:
        return plan
    what = f"{', '.join(spot)}: refused {refusals} times as spot (train.spot_retries)"
    cost, limit = bill(dearer), session.config.limits.max_price
    if limit is not None and cost is not None and (cost.most is None or cost.most > limit):
        price = "not known" if cost.most is None else f"{cost.most:.2f} $/hour"
        session.console.warn(
            f"{what}; on demand the cluster's price is {price}, and limits.max_price {limit:g}: "
            "asked for as spot again"
        )
        return plan
    session.console.warn(f"{what}, now asked for on demand")
    return dearer


class _Muted:
    """A console for the rounds of a wait: each is told in one line, by who waits."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        pass

    def stage(self, title: str, total: int) -> AbstractContextManager[Stage]:
        return nullcontext(_NoStage())

    def task_output(self, task: str, data: bytes) -> None:
        self._console.task_output(task, data)


class _NoStage:
    def node(self, name: str, text: str) -> None:
        pass

    def done(self, name: str, text: str = "") -> None:
        pass
