"""Replaces lost nodes before the next attempt, waiting for capacity if there is none.

A spot interruption means that the zone is out of that machine type: the other nodes are kept, and
billed, until the lost one can be recreated or the wait is over, or until that has cost more than
creating them anew (`survivors`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from cloudtrain.cluster.budget_check import refusal
from cloudtrain.cluster.budget_end import budget_now
from cloudtrain.cluster.lost_nodes import TAKEN
from cloudtrain.cluster.on_demand import SpotFallback, on_demand
from cloudtrain.cluster.provision import create_nodes
from cloudtrain.cluster.session import Session
from cloudtrain.console.forwarding import BackgroundConsole
from cloudtrain.core.errors import CapacityError, CloudError, NodesError, NotFoundError, QuotaError
from cloudtrain.core.model import Plan
from cloudtrain.core.paths import some
from cloudtrain.core.retry import Clock, Retry, poll_until
from cloudtrain.core.run_record import Run
from cloudtrain.runs.survivors import (
    WHOLE_WAIT,
    Keeping,
    billed_meanwhile,
    give_back,
    surviving,
)

REQUESTS = Retry(pause=15.0, backoff=2.0, longest=300.0, at_least=1)
"""Retries of a request for a lost node, until the wait for it is over."""

QUEUED = 300.0
"""Seconds for which one request may wait in the cloud's queue, on a market that has one."""

TICK = 0.5
"""Seconds between checks for a stop request."""

NO_ROOM = (CapacityError, QuotaError)

GIVEN_UP = (
    "a lost node can only be recreated beside the others, and {} ended the wait for it: raise "
    "`limits.wait`, or set `train.spot_retries` to fall back to on demand; landed files are kept"
)
NONE_LEFT = (
    "no placement had room for all nodes, and {} ended the wait for them: raise `limits.wait`; "
    "landed files are kept, and `cloudtrain train --resume` goes on from the last checkpoint"
)


def await_nodes_gone(session: Session, names: Collection[str]) -> None:
    """Wait until these preempted nodes are gone, so that no attempt is started on them."""

    def running() -> list[str]:
        nodes = session.refreshed().nodes
        return [node.name for node in nodes if node.name in names and node.state == "running"]

    if not names or poll_until(lambda: not running() or None, TAKEN, clock=session.clock):
        return
    session.console.warn(
        f"still running {TAKEN.within:.0f} s after the notice of their preemption, and used again: "
        f"{', '.join(running()) or 'none'}"
    )


def replace_lost_nodes(
    session: Session,
    run: Run,
    *,
    stopped: Callable[[], bool] = lambda: False,
    keep: Keeping = WHOLE_WAIT,
) -> Session | None:
    """Ensure that every node of the plan runs; None if the run, or this wait, is to be stopped.

    Waits for CAPACITY and QUOTA with backoff: within `limits.wait`, the run's deadline, and the
    life of the nodes that are left. After `train.spot_retries` refusals a spot node is requested on
    demand, within `limits.max_price`. The nodes that are left are given back once they were kept
    for as long as `keep` says, and then requested again with the others. Raises the provider's last
    error.
    """
    clock = replace(session.clock, monotonic=session.clock.now)  # a sleeping laptop's time counts
    begun = clock.now()

    def ends() -> bool:
        return stopped() or session.records.stop_asked(run.id)

    until, kept = _until(session, run, begun), _kept_until(session, keep, begun)
    wait = _Wait(session=session, clock=clock, ends=ends)
    try:
        try:
            return wait.request(until, kept)
        except NO_ROOM:
            if ends() or kept is None or until.moment <= kept.moment:
                raise
        session = give_back(session, run, keep, clock.now() - begun)
        until = _until(session, run, begun)
        return wait.going_on(session).request(until)
    except NO_ROOM as error:
        if ends():
            return None
        hint = GIVEN_UP if surviving(session) else NONE_LEFT
        raise error.copy_with(hint=hint.format(until.why)) from error


@dataclass(kw_only=True)
class _Wait:
    """Requests for missing nodes until there is room for them. `ends`: whether to give up."""

    session: Session
    clock: Clock
    ends: Callable[[], bool]
    fallback: SpotFallback = field(init=False)
    refused: bool = False

    def __post_init__(self) -> None:
        self.fallback = SpotFallback(self.session.console, lambda plan: refusal(self.session, plan))

    def going_on(self, session: Session) -> _Wait:
        """The same wait for another number of nodes; its refusals count anew."""
        other = _Wait(session=session, clock=self.clock, ends=self.ends, refused=self.refused)
        other.fallback.names = self.fallback.names
        return other

    def request(self, until: _Until, kept: _Until | None = None) -> Session:
        """Request them until then; no longer than the others are `kept`. Raises the last error."""
        session, missing = self.session, _missing(self.session)

        def refused(error: CloudError, pause: float, _: float) -> None:
            self.refused = True
            self.fallback.refused(session.plan, lambda: missing)
            _report(session, error, pause, until, kept)

        def is_stopped(pause: float) -> bool:
            looks = Retry(pause=TICK, within=pause)
            return poll_until(lambda: self.ends() or None, looks, clock=self.clock) is not None

        last = min(filter(None, (until, kept)), key=lambda end: end.moment)
        made = replace(REQUESTS, within=last.moment - self.clock.now()).call(
            lambda: self._create(until),
            on=NO_ROOM,
            before_pause=refused,
            clock=replace(self.clock, sleep=is_stopped),
        )
        if self.refused:
            session.console.say(f"{some(missing)}: recreated")
        return replace(made, console=session.console)

    def _create(self, until: _Until) -> Session:
        session = self.session
        if self.refused:
            session = replace(session, console=_Muted(session.console))
        asked = on_demand(session.plan, self.fallback.names)
        plan = _queued_briefly(asked, until.moment - self.clock.now())
        try:
            return create_nodes(session, plan)
        except (NotFoundError, NodesError):
            if not _was_being_deleted(session):
                raise
        return create_nodes(session.refreshed(), plan)


def _was_being_deleted(session: Session) -> bool:
    """True if a node that was listed as stopped is gone.

    Google stops a preempted VM before it deletes it (documented), and so lists it as STOPPING
    (suspected): https://cloud.google.com/compute/docs/instances/spot
    """
    stopped = {node.name for node in session.nodes if node.state == "stopped"}
    return bool(stopped - {node.name for node in session.refreshed().nodes})


@dataclass(frozen=True, kw_only=True)
class _Until:
    """Deadline (Unix time) and the field that sets it."""

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
    budget = budget_now(session)
    if budget is not None and budget.stop is not None:
        ends.append(_Until(moment=budget.stop, why="limits.budget"))
    return min(ends, key=lambda end: end.moment)


def _kept_until(session: Session, keep: Keeping, begun: float) -> _Until | None:
    if keep.seconds is None:
        return None
    return _Until(moment=begun + keep.seconds, why="limits.give_back")


def _report(
    session: Session, error: CloudError, pause: float, until: _Until, kept: _Until | None
) -> None:
    """Report in one line per round what is missing, why, how long that may continue, and what is
    billed meanwhile.
    """
    billed = billed_meanwhile(session)
    if kept is not None and kept.moment < until.moment:
        billed += f", until {_hour(kept)} at most ({kept.why})"
    session.console.warn(
        f"{some(_missing(session))} cannot be recreated yet: {error.brief}; "
        f"retrying in {pause:.0f} s, until {_hour(until)} ({until.why})"
        + (f"; {billed}" if billed else "")
    )


def _hour(end: _Until) -> str:
    return time.strftime("%H:%M UTC", time.gmtime(end.moment))


def _queued_briefly(plan: Plan, left: float) -> Plan:
    """The plan with a short wait in the cloud's queue for each request (flex-start): between two
    of them a stop request is seen."""
    limits = plan.config.limits
    wait = None if limits.wait is None else max(0.0, min(limits.wait, left, QUEUED))
    return replace(plan, config=replace(plan.config, limits=replace(limits, wait=wait)))


def _missing(session: Session) -> list[str]:
    there = {node.name for node in surviving(session)}
    return [node.name for node in session.plan.nodes if node.name not in there]


class _Muted(BackgroundConsole):
    """Swallows the rounds of a wait, which are reported in one line each."""

    def warn(self, text: str) -> None:
        pass
