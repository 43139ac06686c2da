"""Replaces lost nodes before the next attempt, waiting for capacity if there is none.

A spot interruption means that the zone is out of that machine type: the other nodes are kept, and
billed, until the lost one can be recreated or the wait is over, or until that has cost more than
creating them anew (`keeping`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from cloudtrain.artifacts.land import Pending, by_folder, land_so_far
from cloudtrain.cluster.lifetime import refusal
from cloudtrain.cluster.plan import SpotFallback, on_demand
from cloudtrain.cluster.provision import TAKEN, create_nodes, shown_journal
from cloudtrain.cluster.session import Session
from cloudtrain.console.forwarding import BackgroundConsole
from cloudtrain.console.times import duration
from cloudtrain.core import errors, events
from cloudtrain.core.cloud import is_cloud
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.model import ON_DEMAND, Node, Plan
from cloudtrain.core.paths import some
from cloudtrain.core.retry import Clock, Retry, poll_until
from cloudtrain.core.run_record import Run
from cloudtrain.money.estimate import price_of, total
from cloudtrain.money.prices import dollars
from cloudtrain.runs.limits import LIMITS
from cloudtrain.runs.tasks import (
    ask_unlanded,
    end_orphans,
    land_again,
    landing_of,
    nodes_of,
    runs_of,
)

# ── the other nodes, kept or given back ────────────────────────────────────────


AT_LEAST = 120.0
"""Seconds that surviving nodes are kept at least with `limits.give_back: auto`."""


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """Time for which the surviving nodes are kept, from the beginning of the wait."""

    seconds: float | None = None
    """None: as long as the wait lasts."""
    ready: float | None = None
    """Seconds that creating them anew would take; None if not known."""


WHOLE_WAIT = Keeping()


def keeping(session: Session) -> Keeping:
    """Time for which the nodes that are left may wait for a lost one.

    `limits.give_back: auto`: as long as it took to make them ready. From then on the wait has cost
    as much as creating them anew does, so that whatever comes, at most twice of the lesser of the
    two is paid. Without checkpoints their work would be lost, and nodes on demand with GPUs may not
    be had again: both are kept. A duration decides it for all nodes with checkpoints."""
    wanted, there = session.config.limits.give_back, surviving(session)
    checkpoints = session.config.train.checkpoints
    if wanted is None or checkpoints is None or not there or not is_cloud(session.config.provider):
        return WHOLE_WAIT
    ready = ready_time(session.records.events())
    if wanted != "auto":
        return Keeping(seconds=wanted, ready=ready)
    if ready is None or any(_is_scarce(session, node) for node in there):
        return WHOLE_WAIT
    return Keeping(seconds=max(AT_LEAST, ready), ready=ready)


def surviving(session: Session) -> tuple[Node, ...]:
    return tuple(node for node in session.nodes if node.state in ("starting", "running"))


def _is_scarce(session: Session, node: Node) -> bool:
    """On demand with GPUs, reserved, or from a queue."""
    bought = node.provisioning
    return not bought.spot and (
        bought != ON_DEMAND or session.plan.accelerator(node.name) is not None
    )


def billed_meanwhile(session: Session) -> str:
    """`billed meanwhile: mnist-chief0, 0.38 $/hour`; "" where nothing is billed by the hour."""
    if not is_cloud(session.config.provider):
        return ""
    there = surviving(session)
    if not there:
        return "nothing is billed meanwhile"
    text = _dollars(session, there, 3600.0) or "price not known"
    per_hour = "/hour" if text.endswith("$") else ""
    return f"billed meanwhile: {some([node.name for node in there])}, {text}{per_hour}"


def _dollars(session: Session, nodes: Sequence[Node], seconds: float) -> str:
    """`0.38 $` for so many seconds of these nodes, `at most 0.38 $`, or "" if nobody knows."""
    prices = [price_of(session.config, node) for node in nodes]
    price = total(each.per_hour for each in prices)
    if price is not None:
        return dollars(price * seconds / 3600)
    ceiling = total(each.most for each in prices)
    return "" if ceiling is None else f"at most {dollars(ceiling * seconds / 3600)}"


def give_back(session: Session, run: Run, keep: Keeping, waited: float) -> Session:
    """Land everything that the surviving nodes hold, delete them, and return the session without
    them; as it is, with a warning, if that fails: nodes whose files have not landed are kept.

    The tasks of the last attempt have ended. A killed call is finished by the next request for
    nodes, by `down` or by `gc`: what the journal's `exchange` names has landed."""
    there = surviving(session)
    names, spent = some([node.name for node in there]), _dollars(session, there, waited)
    anew = "" if keep.ready is None else f", making them ready took {duration(keep.ready)}"
    if keep.ready is not None and (cost := _dollars(session, there, keep.ready)):
        anew += f" ({cost})"
    set_by = session.config.limits.give_back
    field = "auto" if set_by == "auto" else duration(float(set_by or 0.0))
    session.console.warn(
        f"{names}: waiting has cost {spent or 'money'} in {duration(waited)}{anew}: landing what "
        "they hold and deleting them, so that nothing is billed while the wait goes on "
        f"(limits.give_back: {field})"
    )
    try:
        left = _landed(session.patient(), run)
        if left:
            session.console.warn(
                f"{names} kept: {len(left)} files are only there: {by_folder(left)}"
            )
            return session
        _delete(session, there)
    except errors.CloudtrainError as error:
        session.console.warn(f"{names} kept: {error.message}")
    return session.refreshed()


def _landed(session: Session, run: Run) -> tuple[Pending, ...]:
    """Land what these nodes hold of any run; returns what is only on them after that."""
    end_orphans(session)
    left = ask_unlanded(session)
    for run_id in runs_of(left):
        if run_id == run.id:  # its manifest stays open: the run goes on
            land_so_far(landing_of(session), run, nodes_of(session, run))
        else:
            land_again(session, run_id, left)
    return ask_unlanded(session) if left else ()


def _delete(session: Session, there: Sequence[Node]) -> None:
    """Delete the whole cluster, network resources included: the next one may be elsewhere."""
    names = tuple(node.name for node in session.nodes)
    session.records.journal(events.RemovalBegun(nodes=names, whole=True))
    late = events.pending_nodes(session.records.events())
    with session.console.stage(f"delete on {session.provider.name}", len(there)) as stage:
        journal = shown_journal(session, stage)
        session.provider.destroy(session.config.name, journal, late)
        for node in there:
            stage.done(node.name, "gone")


# ── time to make a cluster ready ───────────────────────────────────────────────


def ready_time(lines: Iterable[events.Line]) -> float | None:
    """Seconds from nothing to running tasks: the longest `up` of this cluster (later ones have
    little to do), and the shortest start of an attempt (others waited). None if not known."""
    ups: list[float] = []
    starts: list[float] = []
    up = start = None
    for event in filter(None, map(events.from_line, lines)):
        now = event.time
        if now is None:
            continue
        if isinstance(event, events.ClusterGone):
            ups, starts, up, start = [], [], None, None
        elif isinstance(event, events.UpBegun):
            up = now
        elif isinstance(event, events.UpCompleted | events.AttemptBegun) and up is not None:
            ups, up = [*ups, now - up], None
        elif isinstance(event, events.AttemptStarted) and start is not None:
            starts, start = [*starts, now - start], None
        if isinstance(event, events.AttemptBegun):
            start = now
    return max(ups) + min(starts, default=0.0) if ups else None


REQUESTS = Retry(pause=15.0, backoff=2.0, longest=300.0, at_least=1)
"""Retries of a request for a lost node, until the wait for it is over."""

QUEUED = 300.0
"""Seconds for which one request may wait in the cloud's queue, on a market that has one."""

TICK = 0.5
"""Seconds between checks for a stop request."""

NO_ROOM = (errors.CapacityError, errors.QuotaError)

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
    error."""
    clock = replace(session.clock, monotonic=session.clock.now)  # a sleeping laptop's time counts
    begun = clock.now()

    def ends() -> bool:
        return stopped() or session.records.stop_asked(run.id)

    until, kept = _until(session, run, begun), None
    if keep.seconds is not None:
        kept = _Until(moment=begun + keep.seconds, why="limits.give_back")
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
        session, there = self.session, {node.name for node in surviving(self.session)}
        missing = [node.name for node in session.plan.nodes if node.name not in there]

        def refused(error: errors.CloudError, pause: float, _: float) -> None:
            self.refused = True
            self.fallback.refused(session.plan, lambda: missing)
            billed = billed_meanwhile(session)
            if kept is not None and kept.moment < until.moment:
                billed += f", until {_hour(kept)} at most ({kept.why})"
            session.console.warn(
                f"{some(missing)} cannot be recreated yet: {error.brief}; "
                f"retrying in {pause:.0f} s, until {_hour(until)} ({until.why})"
                + (f"; {billed}" if billed else "")
            )

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
        except (errors.NotFoundError, errors.NodesError):
            if not _was_being_deleted(session):
                raise
        return create_nodes(session.refreshed(), plan)


def _was_being_deleted(session: Session) -> bool:
    """True if a node that was listed as stopped is gone. Google stops a preempted VM before it
    deletes it (documented), and so lists it as STOPPING (suspected):
    https://cloud.google.com/compute/docs/instances/spot"""
    stopped = {node.name for node in session.nodes if node.state == "stopped"}
    return bool(stopped - {node.name for node in session.refreshed().nodes})


@dataclass(frozen=True, kw_only=True)
class _Until:
    """Deadline (Unix time) and the field that sets it."""

    moment: float
    why: str


def _until(session: Session, run: Run, now: float) -> _Until:
    ends = [_Until(moment=now + (session.config.limits.wait or 0.0), why="limits.wait")]
    for limit in LIMITS.values():
        if (end := limit.end(session, run)) is not None:
            moment = limit.wait_end(session) if limit.wait_end else end.at
            ends.append(_Until(moment=moment, why=limit.field))
    return min(ends, key=lambda end: end.moment)


def _hour(end: _Until) -> str:
    return time.strftime("%H:%M UTC", time.gmtime(end.moment))


def _queued_briefly(plan: Plan, left: float) -> Plan:
    """The plan with a short wait in the cloud's queue: between two, stop requests are seen."""
    limits = plan.config.limits
    wait = None if limits.wait is None else max(0.0, min(limits.wait, left, QUEUED))
    return replace(plan, config=replace(plan.config, limits=replace(limits, wait=wait)))


class _Muted(BackgroundConsole):
    """Swallows the rounds of a wait, which are reported in one line each."""

    def warn(self, text: str) -> None:
        pass
