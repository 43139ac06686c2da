"""Replaces lost nodes before the next attempt, waiting for capacity if there is none.

A spot interruption means that the zone is out of that machine type: the other nodes are kept, and
billed, until the lost one can be recreated or the wait is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from cloudtrain.catalog.estimate import estimate
from cloudtrain.cluster.provision import create_nodes
from cloudtrain.cluster.session import Session
from cloudtrain.errors import CapacityError, CloudError, NodesError, NotFoundError, QuotaError
from cloudtrain.model import Node, Plan
from cloudtrain.protocols import Console, Stage
from cloudtrain.retry import Retry, poll_until
from cloudtrain.run_record import Run
from cloudtrain.wait_limits import NODE_TAKEN

REQUESTS = Retry(pause=15.0, backoff=2.0, longest=300.0, at_least=1)
"""Retries of a request for a lost node, until the wait for it is over."""

TICK = 0.5
"""Seconds between checks for a stop request."""

GIVEN_UP = (
    "a lost node can only be recreated beside the others, and {} ended the wait for it: raise "
    "`limits.wait`, or set `train.spot_retries` to fall back to on demand; landed files are kept"
)


TAKEN = Retry(pause=5.0, within=NODE_TAKEN)
"""Wait for a preempted node to disappear: it has 150 s on GCP, 120 s on AWS, 30 s on Azure."""


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
    session: Session, run: Run, *, stopped: Callable[[], bool] = lambda: False
) -> Session | None:
    """Ensure that every node of the plan runs; None if the run, or this wait, is to be stopped.

    Waits for CAPACITY and QUOTA with backoff: within `limits.wait`, the run's deadline, and the
    life of the nodes that are left. After `train.spot_retries` refusals a spot node is requested on
    demand, within `limits.max_price`. Raises the provider's last error.
    """
    clock = replace(session.clock, monotonic=session.clock.now)  # a sleeping laptop's time counts
    until = _until(session, run, clock.now())
    plan, refusals = session.plan, 0

    def ends() -> bool:
        return stopped() or session.records.stop_asked(run.id)

    def make() -> Session:
        heard = session if not refusals else replace(session, console=_Muted(session.console))
        try:
            return create_nodes(heard, plan)
        except (NotFoundError, NodesError):
            if not _was_being_deleted(session):
                raise
        return create_nodes(heard.refreshed(), plan)

    def refused(error: CloudError, pause: float, _: float) -> None:
        nonlocal plan, refusals
        refusals += 1
        plan = _on_demand(session, plan, refusals)
        _report(session, error, pause, until)

    def is_stopped(pause: float) -> bool:
        looks = Retry(pause=TICK, within=pause)
        return poll_until(lambda: ends() or None, looks, clock=clock) is not None

    try:
        made = replace(REQUESTS, within=until.moment - clock.now()).call(
            make,
            on=(CapacityError, QuotaError),
            before_pause=refused,
            clock=replace(clock, sleep=is_stopped),
        )
    except (CapacityError, QuotaError) as error:
        if ends():
            return None
        # Other zones are no way out: a replacement goes where the other nodes are.
        raise error.copy_with(hint=GIVEN_UP.format(until.why)) from error
    if refusals:
        session.console.say(f"{', '.join(_missing(session))}: recreated")
    return replace(made, console=session.console)


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
    return min(ends, key=lambda end: end.moment)


def _report(session: Session, error: CloudError, pause: float, until: _Until) -> None:
    """Report in one line per round what is missing, why, and how long that may continue."""
    first = error.message.splitlines()[0]
    last = time.strftime("%H:%M UTC", time.gmtime(until.moment))
    session.console.warn(
        f"{', '.join(_missing(session))} cannot be recreated yet: {first}; "
        f"retrying in {pause:.0f} s, until {last} ({until.why})"
    )


def _missing(session: Session) -> list[str]:
    there = {node.name for node in session.nodes if _runs(node)}
    return [node.name for node in session.plan.nodes if node.name not in there]


def _runs(node: Node) -> bool:
    return node.state in ("starting", "running")


def _on_demand(session: Session, plan: Plan, refusals: int) -> Plan:
    """The plan with its missing spot nodes on demand, once that is due and affordable."""
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
    cost, limit = estimate(dearer), session.config.limits.max_price
    if limit is not None and cost is not None and (cost.most is None or cost.most > limit):
        price = "unknown" if cost.most is None else f"{cost.most:.2f} $/hour"
        session.console.warn(
            f"{what}; on demand the cluster's price would be {price}, limits.max_price is "
            f"{limit:g}: requesting spot again"
        )
        return plan
    session.console.warn(f"{what}; requesting it on demand")
    return dearer


class _Muted:
    """A console that swallows the rounds of a wait, which are reported in one line each."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        pass

    def stage(self, title: str, total: int) -> AbstractContextManager[Stage]:
        return nullcontext(NoStage())

    def task_output(self, task: str, data: bytes) -> None:
        self._console.task_output(task, data)


class NoStage:
    """Shows no progress."""

    def node(self, name: str, text: str) -> None:
        pass

    def done(self, name: str, text: str = "") -> None:
        pass
