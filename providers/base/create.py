"""Creates the nodes of a cluster in one place in parallel; rolls back if one of them fails."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import replace
from typing import Generic, TypeVar, cast

from cloudtrain.core import moments
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import (
    CapacityError,
    CloudError,
    NodesError,
    PlaceRefusal,
    QuotaError,
    TransientError,
    text_of,
)
from cloudtrain.core.events import NodeCreated, NodeRequested, PlacementTried, RequestDenied
from cloudtrain.core.model import Identity, Market, Node, NodePlan, Plan
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.paths import some
from cloudtrain.core.protocols import Journal
from cloudtrain.core.retry import LONG_WAIT, report_wait
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.boot import user_data
from cloudtrain.providers.base.driver import CloudDriver, LaunchRequest, Location, NetworkT, Vm
from cloudtrain.providers.base.seen import SeenGenerations, created_anew
from cloudtrain.providers.base.teardown import Found, Teardown, roll_back
from cloudtrain.providers.base.timing import Timing

T = TypeVar("T")

SETTLES = 300.0
"""Seconds after all nodes run in which a creation may still be at work on them."""


@dataclass(frozen=True, kw_only=True)
class Creation(Generic[NetworkT]):
    """One `create` call across all the places that it tries. `there` maps the names of nodes that
    already existed to their VMs."""

    account: CloudDriver[NetworkT]
    timing: Timing
    caller: str
    plan: Plan
    identity: Identity
    journal: Journal
    there: Mapping[str, Vm]
    expires: float | None
    moved: bool
    """True if the end of any node in `there` was moved after the nodes were listed."""
    expected: Mapping[str, float]
    """Nodes that an earlier call may have created → time of its request (Unix)."""
    near: Sequence[str] = ()
    """Zones and regions that may hold resources of this cluster."""
    generations: SeenGenerations = field(default_factory=SeenGenerations)

    def until(self, now: float) -> Creation[NetworkT]:
        """The same creation, with labels that say until when it may go on in one place."""
        lasts = self.timing.boot + SETTLES + self._queue
        return replace(self, plan=replace(self.plan, creating_until=now + lasts))

    def fill(self, place: Location, *, later: Sequence[Location]) -> dict[str, Node]:
        """Create every node of the plan in `place`; on failure, roll back those requested here.
        `later`: the places that may be tried next. A rollback keeps resources that they can use."""
        launches, close = _Launches(), False
        if any(node.name not in self.there for node in self.plan.nodes):
            self.journal(PlacementTried(placement=str(place), region=place.region))
        try:
            network = uninterrupted(
                lambda: self.account.create_network(self.plan, place, self.caller, self.journal)
            )
            close = self.account.is_close(network)
            self._launch(place, network, launches, queue=0.0 if later else self._queue)
            self._start()
            return self._await(place, launches.created)
        except BaseException as failure:
            error = _one_refusal(failure)
            if isinstance(error, CapacityError) and close:
                error = error.copy_with(in_group=True)
            # The details of a refusal are for an administrator, in the event log.
            failures = failure.failures.values() if isinstance(failure, NodesError) else (failure,)
            details = {e.detail: e for e in failures if isinstance(e, CloudError) and e.detail}
            for detail, told in details.items():
                self.journal(RequestDenied(text=told.message, detail=detail))
            final = uninterrupted(lambda: self._roll_back(place, launches, later, error))
            if final is failure:
                raise
            raise final from failure

    def apart(self) -> Creation[NetworkT]:
        """The same creation without a placement group."""
        config = self.plan.config
        network = replace(config.network, close="off")
        return replace(self, plan=replace(self.plan, config=replace(config, network=network)))

    @property
    def _queue(self) -> float:
        """Seconds for which a request may wait for capacity in the cloud's queue. Only in the last
        place: in the others it is refused at once, and the next one is tried."""
        return self.plan.config.limits.wait or 0.0

    def _launch(
        self, place: Location, network: NetworkT, launches: _Launches, *, queue: float
    ) -> None:
        interrupted = threading.Event()

        def launch(node: NodePlan) -> None:
            try:
                self._request(node, place, network, launches, queue)
            except CapacityError as error:
                if not error.stuck or error.left_over or interrupted.is_set():
                    raise
                report_wait(f"{error.message}: it is created again", taken=LONG_WAIT)
                again = self.until(self.timing.clock.now())
                again._request(node, place, network, launches, queue)

        missing = [node for node in self.plan.nodes if node.name not in self.there]
        fan_out(
            missing,
            launch,
            name=lambda node: node.name,
            workers=self.account.at_once,
            on_interrupt=interrupted.set,
        )

    def _request(
        self, node: NodePlan, place: Location, network: NetworkT, launches: _Launches, queue: float
    ) -> None:
        host_key = self.identity.host_keys[node.name]
        words = [self.plan.config.name, node.name, str(place), host_key.public]
        order = LaunchRequest(
            plan=self.plan,
            node=node,
            place=place,
            network=network,
            user_data=self._user_data(node),
            user_data_of=self._user_data,
            public_key=self.identity.public_key,
            token=hashlib.sha256("\n".join(words).encode()).hexdigest()[:32],
            expires=self.expires,
            asked=self.expected.get(node.name),
            queue=queue,
            labels=labels.on_node(self.plan, node, self.expires),
        )
        self.journal(NodeRequested(node=node.name))
        launches.pending[node.name] = self.timing.clock.now()
        try:
            made = self.account.launch(order)
            if self.generations.is_other(made.generation):  # it has the name by now
                raise created_anew(self.plan.config.name, [made])
            launches.created[node.name] = made
            self.journal(NodeCreated(node=node.name, id=made.id, placement=str(place)))
        except CloudError as error:
            if not isinstance(error, TransientError):
                del launches.pending[node.name]  # refused: nothing of it can appear later
            raise _of_node(node.name, error) from error.__cause__

    def _start(self) -> None:
        fan_out(
            [m for m in self._planned_there() if m.node.state == "stopped"],
            lambda machine: self.account.start(machine, self.expires),
            name=lambda machine: machine.node.name,
            workers=self.account.at_once,
        )

    def _planned_there(self) -> list[Vm]:
        names = [node.name for node in self.plan.nodes]
        return [self.there[name] for name in names if name in self.there]

    def _user_data(self, node: NodePlan) -> str:
        return user_data(
            public_key=self.identity.public_key,
            host_key=self.identity.host_keys[node.name],
            expires=self.expires if self.account.ends_by_shutdown else None,
            timed=self.account.ends_by_shutdown,
            network=self.plan.config.network,
        )

    def _await(self, place: Location, made: Mapping[str, Vm]) -> dict[str, Node]:
        """Wait until all nodes run and have an address. Skips listing them if all were running when
        this call began and none has changed."""
        there = self._planned_there()
        if not made and not self.moved and all(_runs(machine.node) for machine in there):
            return {machine.node.name: machine.node for machine in there}
        awaited = {m.id: m for m in (*made.values(), *there)}
        queued = Queued(plan=self.plan, new=frozenset(made) if not there else frozenset())
        limit = self.timing.boot + (self._queue if queued.names else 0.0)
        seen: set[str] = set()
        begun = self.timing.clock.monotonic()

        def ask() -> dict[str, Node] | None:
            every = self.account.machines(self.plan.config.name, place)
            listed = {m.id: m for m in every if not self.generations.is_other(m.generation)}
            overdue = self.timing.clock.monotonic() - begun > self.timing.listing
            for id, machine in awaited.items():
                late = overdue or id in seen
                if late and id not in listed and machine.node.name in queued.names:
                    raise _of_node(machine.node.name, self._unqueued(machine))
                _refuse_lost(machine, listed.get(id), late=late)
            seen.update(listed)
            found = [listed[id] for id in awaited if id in listed]
            for machine in queued.newly_billed(found):
                name = machine.node.name
                self.journal(NodeCreated(node=name, id=machine.id, placement=str(place)))
            nodes = [machine.node for machine in found]
            queued.refuse_partial(nodes, self.timing.clock.monotonic())
            ready = {node.name: node for node in nodes if _runs(node)}
            return ready if len(ready) == len(awaited) else None

        what = f"capacity in {place}, in the cloud's queue" if queued.names else ""
        nodes = self.timing.until(ask, within=limit, what=what)
        if nodes is None:
            raise TransientError(
                f"{place}: not all nodes are running after {limit:.0f} s",
                hint="the new nodes are deleted; run `cloudtrain up` to try again",
            )
        return nodes

    def _unqueued(self, machine: Vm) -> CloudError:
        """Error that says why a request ended that waited in the cloud's queue."""
        try:
            told = self.account.refusal(machine)
        except CloudError:
            told = None
        return told or CapacityError(
            f"no capacity in {machine.place} while the request waited for it", scope="zone"
        )

    def _roll_back(
        self,
        place: Location,
        launches: _Launches,
        later: Sequence[Location],
        failure: BaseException,
    ) -> BaseException:
        """Delete the nodes that this call requested and, for a new cluster, every resource that no
        later place needs. Returns the error to raise."""
        needed: set[str] = set()
        if is_of_place(failure):
            refusal = cast("CloudError", failure)
            needed = {p.region for p in later if not refusal_covers(refusal, place, p)}
            needed |= {place.region} if can_retry_without_placement_group(refusal) else set()
        stood_still = moments.gaps() != launches.gaps
        unlisted = {} if stood_still else dict(launches.created)

        def find() -> Found:
            listed = self.account.machines(self.plan.config.name, place)
            others = {m.id for m in listed if self.generations.is_other(m.generation)}
            mine = {m.id: m for m in unlisted.values() if m.id not in others}
            mine |= {m.id: m for m in listed if self._is_new(m)}
            unlisted.clear()
            if self.there:
                return tuple(mine.values()), ()
            resources = self.account.resources(self.plan.config.name, self.near)
            now = self.timing.clock.now()
            _, free = self.generations.of_these(listed, resources, now)
            return tuple(mine.values()), [
                r
                for r in free
                if (not needed or r.region not in {"", *needed})
                and not labels.belongs_to_other_owner(r.owner, self.plan.owner)
            ]

        teardown = Teardown(self.account, self.timing, self.journal)
        made = tuple(unlisted.values())
        return roll_back(
            failure, lambda: teardown.clear(find, launches.pending, made), self.journal
        )

    def _is_new(self, machine: Vm) -> bool:
        """True if the VM is new, and not of another cluster of the same name."""
        is_others = labels.belongs_to_other_owner(machine.owner, self.plan.owner)
        is_others = is_others or self.generations.is_other(machine.generation)
        return machine.node.name not in self.there and not is_others


@dataclass(frozen=True, kw_only=True)
class _Launches:
    """Launch requests sent to one place."""

    pending: dict[str, float] = field(default_factory=dict)
    """Node name → Unix time of its request; refused requests are not included."""
    created: dict[str, Vm] = field(default_factory=dict)
    gaps: int = field(default_factory=moments.gaps)
    """Before the first: if this process stood still since, only what is listed is its own."""


def _runs(node: Node) -> bool:
    return node.state == "running" and bool(node.address)


def can_retry_without_placement_group(error: CloudError) -> bool:
    """True if the place is to be retried without the placement group, which was full there."""
    is_full = isinstance(error, CapacityError) and error.in_group and error.scope != "account"
    return is_full and not error.left_over


def lacks_room(error: BaseException) -> bool:
    return isinstance(error, CapacityError | QuotaError)


def goes_on(error: BaseException) -> bool:
    """True if the next place is tried after this error: all but what the whole account is refused,
    of which a lack of room may be unknown in another place. `check` and `check --deep` go by the
    same rule. None is tried while nodes of this one may still be billed."""
    return is_of_place(error) and not getattr(error, "left_over", False)


def is_of_place(error: BaseException) -> bool:
    """True if another place may not answer so."""
    return isinstance(error, CloudError) and (lacks_room(error) or error.scope != "account")


def refusal_covers(error: CloudError, refused: Location, place: Location) -> bool:
    """True if the refusal received in `refused` applies to `place` too."""
    return error.scope == "account" or (error.scope == "region" and refused.region == place.region)


def of_all(refusals: Sequence[CloudError]) -> type[CloudError]:
    """The class of the error that lists these: a lack of room, which may end, or the first's."""
    if all(isinstance(e, QuotaError) for e in refusals):
        return QuotaError
    return CapacityError if any(map(lacks_room, refusals)) else type(refusals[0])


def uninterrupted(work: Callable[[], T]) -> T:
    """Run `work` in its own thread. Ctrl-C takes effect at its end; a third one, immediately. The
    cloud executes a call that Ctrl-C cuts off, perhaps after the rollback's listing."""
    result: Future[T] = Future()

    def fulfil() -> None:
        if not result.set_running_or_notify_cancel():
            return
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller
            result.set_exception(error)

    worker = threading.Thread(target=copy_context().run, args=(fulfil,))
    interrupts = 0
    try:
        worker.start()
    except KeyboardInterrupt:  # `start` waits for the thread, which may be working already
        if result.cancel():
            raise
        interrupts = 1
    while not result.done():
        try:  # an interrupted Thread.join takes the thread for ended: bpo-45274
            result.exception()
        except KeyboardInterrupt:
            interrupts += 1
            if interrupts == 3:
                raise
    if interrupts:
        raise KeyboardInterrupt
    return result.result()


def _refuse_lost(asked: Vm, now: Vm | None, *, late: bool) -> None:
    if now is not None and (now.error is not None or now.node.state == "gone"):
        error = now.error or TransientError("the cloud stopped the VM during its start")
        raise _of_node(asked.node.name, error)
    if now is None and late:
        text = "the cloud accepted the request but does not list the node"
        raise TransientError(text, what=asked.node.name)


def _of_node(name: str, error: CloudError) -> CloudError:
    """A copy of the error that is about this node, with what else it is about in its text."""
    return error.copy_with(what=name, text=text_of(name, error))


def _one_refusal(failure: BaseException) -> BaseException:
    """Merge the failures of several nodes into one if they are the same, as those of all hosts of a
    TPU are, which one request creates; and those after which the next place is tried, with the
    widest scope."""
    if not isinstance(failure, NodesError):
        return failure
    errors = list(failure.failures.values())
    texts = {text_of(name, error) for name, error in failure.failures.items()}
    if all(is_of_place(error) for error in errors):  # the rollback of the place comes next
        refusals = cast("list[CloudError]", errors)
        widest = max(refusals, key=lambda e: ("zone", "region", "account").index(e.scope))
        made = of_all(refusals)("", hint=widest.hint, scope=widest.scope, code=widest.code)
        if len(texts) == 1:
            made = made.copy_with(what=some(list(failure.failures)), text=texts.pop())
        else:
            each = tuple(
                PlaceRefusal(place=name, error=_of_node(name, e).copy_with(what=""))
                for name, e in zip(failure.failures, refusals, strict=True)
            )
            made = made.copy_with(text=str(failure), refusals=each)
        if isinstance(made, CapacityError):
            made.elsewhere = tuple(z for e in refusals for z in getattr(e, "elsewhere", ()))
        return made
    first = errors[0]
    if len(texts) == len(set(map(type, errors))) == 1 and isinstance(first, CloudError):
        return first.copy_with(what=some(list(failure.failures)), text=texts.pop())
    return failure


# ── Nodes that wait for capacity in the cloud's queue while others of a creation run ──────────


QUEUED: frozenset[Market] = frozenset({"flex-start"})
"""Markets on which a request may wait for capacity in the cloud's queue; it is not billed then."""

PARTIAL = 600.0
"""Seconds for which new nodes are kept, and billed, while others of them still wait in the queue.

Each request waits by itself: Google creates several VMs at once through resize requests of a
managed instance group only, whose VMs have one user data, and so one host key, together:
https://docs.cloud.google.com/compute/docs/instance-groups/about-resize-requests-mig"""


@dataclass(kw_only=True)
class Queued:
    """Nodes of one creation that the cloud may let wait for capacity."""

    plan: Plan
    new: frozenset[str]
    """Nodes that were requested together; none if nodes of the cluster were there before, which
    are billed anyway."""
    begun: set[str] = field(default_factory=set)
    """Nodes that were seen to run, whose costs began then."""
    billed: float | None = None
    """When the first of the new nodes was seen to run."""

    @property
    def names(self) -> frozenset[str]:
        nodes = self.plan.nodes
        return frozenset(node.name for node in nodes if node.provisioning.market in QUEUED)

    def newly_billed(self, machines: Sequence[Vm]) -> list[Vm]:
        """The machines that waited and run now: journaled again, as what waits costs nothing."""
        nodes = {m.node.name: m for m in machines if m.node.state == "running"}
        new = [nodes[name] for name in sorted(self.names & nodes.keys() - self.begun)]
        self.begun.update(machine.node.name for machine in new)
        return new

    def refuse_partial(self, nodes: Sequence[Node], now: float) -> None:
        """Raise CapacityError if some new nodes were billed for too long while others wait."""
        running = sorted(n.name for n in nodes if n.name in self.new and n.state == "running")
        waiting = sorted(n.name for n in nodes if n.name in self.names and n.state == "starting")
        if not running or not waiting:
            return
        self.billed = now if self.billed is None else self.billed
        if now - self.billed < PARTIAL:
            return
        raise CapacityError(
            f"{some(waiting)}: no capacity {PARTIAL / 60:.0f} min after {some(running)} began to "
            "run, which would be billed until all of them do",
            scope="zone",
            hint="all new nodes are deleted; `cloudtrain up --wait 6h` requests them again",
        )
