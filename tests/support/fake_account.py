"""A cloud account in memory, on a clock of numbers, with the faults that clouds have."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cloudtrain.core import retry
from cloudtrain.core.errors import BusyError, CapacityError, CloudError, TransientError
from cloudtrain.core.events import ResourceRequested
from cloudtrain.core.model import ClusterConfig, MachineType, Node, Owner, Plan
from cloudtrain.core.partial_list import NotAsked, PartialList, SpotEvidence
from cloudtrain.core.protocols import Allowance, Finding, Journal, MachineFacts, Principal
from cloudtrain.providers.base import labels
from cloudtrain.providers.base.driver import LaunchRequest, Location, Resource, Tell, Vm
from cloudtrain.providers.base.timing import Timing

PLACES = (
    Location(region="east", zone="east-a"),
    Location(region="east", zone="east-b"),
    Location(region="west", zone="west-a"),
)

ME = Owner(id="0123456789ab", name="me", machine="here")


@dataclass
class Clock:
    """Time passes only where somebody sleeps."""

    time: float = 1_000_000.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def timing(self) -> Timing:
        return Timing(
            clock=retry.Clock(
                now=self.now, monotonic=self.now, sleep=self.sleep, chance=lambda: 0.5
            )
        )


@dataclass
class FakeAccount:
    """`refuses` is asked for each launch, by (place, node); what it holds is raised.

    `lag` seconds pass before a new VM is listed. `breaks_after` names nodes whose launch is done
    and answered by a broken connection. `stays` are ids that cannot be erased.
    """

    clock: Clock = field(default_factory=Clock)
    refuses: dict[tuple[str, str], CloudError] = field(default_factory=dict)
    breaks_after: set[str] = field(default_factory=set)
    dies_starting: dict[str, CloudError | None] = field(default_factory=dict)
    stays: set[str] = field(default_factory=set)
    busy: int = 0
    close: bool = False
    """Whether it has placement groups; `no_room_close` are places whose groups are full."""
    no_room_close: set[str] = field(default_factory=set)
    lag: float = 0.0
    named: bool = False
    """Whether VMs have no ids but their names, as Azure's."""
    queue: dict[str, float] = field(default_factory=dict)
    """Node → seconds until there is capacity for it. A request that waits for less time ends."""
    waits_until: dict[str, float] = field(default_factory=dict)
    unqueued: CloudError | None = None
    """Why a request that waited ended."""
    spot: dict[str, float] | CloudError = field(default_factory=dict)
    """Score of spot by place, or what asking for it raises."""
    asked_of_spot: list[tuple[str, ...]] = field(default_factory=list)
    broken: CloudError | None = None
    """What every list raises."""
    silent: set[str] = field(default_factory=set)
    """Zones that do not answer a list."""
    denied: bool = False
    """Whether those are zones that this account may not use."""
    machines_: dict[str, Vm] = field(default_factory=dict)
    listed_from: dict[str, float] = field(default_factory=dict)
    resources_: dict[str, Resource] = field(default_factory=dict)
    callers: list[str] = field(default_factory=list)
    orders: list[LaunchRequest[str]] = field(default_factory=list)
    name: str = "gcp"
    ends_by_shutdown: bool = True
    at_once: int = 128
    soonest_end: float = 60.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def principal(self) -> Principal | None:
        return Principal(id="me@example.com", name="me")

    def check(self, plan: Plan) -> tuple[Finding, ...]:
        return ()

    def dry_run(self, plan: Plan) -> tuple[Finding, ...]:
        return ()

    def machine_facts(self, plan: Plan, names: Sequence[str]) -> tuple[MachineFacts, ...]:
        return ()

    def allowances(
        self, machines: Sequence[MachineType], regions: Sequence[str]
    ) -> PartialList[Allowance]:
        return PartialList()

    def places(self, plan: Plan) -> tuple[Location, ...]:
        return PLACES

    def spot_evidence(self, plan: Plan, places: Sequence[Location]) -> tuple[SpotEvidence, ...]:
        self.asked_of_spot.append(tuple(map(str, places)))
        if isinstance(self.spot, CloudError):
            raise self.spot
        return tuple(
            SpotEvidence(place=place, score=score, text=f"{score:g}/10", source="score")
            for place, score in self.spot.items()
        )

    def latest_end(self, plan: Plan) -> float | None:
        return None

    def machines(
        self,
        cluster: str | None = None,
        place: Location | None = None,
        places: Sequence[str] = (),
    ) -> PartialList[Vm]:
        if self.broken is not None:
            raise self.broken
        with self.lock:
            found = []
            for id in [id for id, end in self.waits_until.items() if end <= self.clock.now()]:
                del self.waits_until[id]
                self.machines_.pop(id, None)
            for id, machine in self.machines_.items():
                if self.clock.now() < self.listed_from[id]:
                    continue
                if str(machine.place) in self.silent:
                    continue
                if cluster in (None, machine.cluster) and place in (None, machine.place):
                    found.append(self._aged(machine))
            return PartialList(found, self._not_asked())

    def _not_asked(self) -> list[NotAsked]:
        why = "it is not enabled" if self.denied else "it does not answer"
        return [NotAsked(place=p, why=why, denied=self.denied) for p in sorted(self.silent)]

    def _aged(self, machine: Vm) -> Vm:
        node = machine.node
        if node.name in self.dies_starting and node.state == "starting":
            gone = replace(machine, node=replace(node, state="gone"))
            gone = replace(gone, error=self.dies_starting[node.name])
            self.machines_[machine.id] = gone
            return gone
        if machine.id in self.waits_until:
            if self.clock.now() - (node.created or 0.0) < self.queue[node.name]:
                return machine
            self.waits_until.pop(machine.id)
        if node.state == "starting":
            number = machine.id.split("-")[1]
            node = replace(node, state="running", address=f"192.0.2.{number}")
            self.machines_[machine.id] = replace(machine, node=node)
        return machine

    def resources(
        self, cluster: str | None = None, places: Sequence[str] = ()
    ) -> PartialList[Resource]:
        with self.lock:
            found = [r for r in self.resources_.values() if cluster in (None, r.cluster)]
            return PartialList(found, self._not_asked())

    def create_network(self, plan: Plan, place: Location, caller: str, journal: Journal) -> str:
        cluster = plan.config.name
        self.callers.append(caller)
        for id, region in ((f"network {cluster}", ""), (f"subnet {cluster}", place.region)):
            key = f"{id} {region}"
            if key not in self.resources_:
                kind = id.split()[0]
                journal(ResourceRequested(what=kind, name=cluster))
                self.resources_[key] = Resource(
                    cluster=cluster,
                    kind=kind,
                    name=cluster,
                    id=key,
                    region=region,
                    owner=ME,
                    generation=plan.generation,
                    creating_until=(plan.creating_until or 0.0) + labels.LONGER,
                )
        return f"ground of {place}" + ("" if plan.config.network.close == "off" else ", close")

    def is_close(self, network: str) -> bool:
        return self.close and network.endswith("close")

    def launch(self, order: LaunchRequest[str]) -> Vm:
        name = order.node.name
        with self.lock:
            self.orders.append(order)
            if self.is_close(order.network) and str(order.place) in self.no_room_close:
                raise CapacityError("no room close together", scope="zone")
            refusal = self.refuses.get((str(order.place), name))
            if refusal is not None:
                raise refusal
            if self.queue.get(name, 0.0) > 0 and order.queue == 0:
                raise CapacityError("none at once", scope="zone")
            id = name if self.named else f"i-{len(self.orders)}-{name}"
            if self.queue.get(name, 0.0) > 0:
                self.waits_until[id] = self.clock.now() + order.queue
            node = Node(
                name=name,
                role=order.node.role,
                index=order.node.index,
                state="starting",
                address="",
                internal="10.0.0.1",
                placement=str(order.place),
                expires=order.expires,
                created=self.clock.now(),
                owner=ME,
                generation=order.plan.generation,
                creating_until=order.plan.creating_until,
            )
            machine = Vm(cluster=order.plan.config.name, node=node, place=order.place, id=id)
            self.machines_[id] = machine
            self.listed_from[id] = self.clock.now() + self.lag
            if name in self.breaks_after:
                raise TransientError("connection reset")
            return machine

    def refusal(self, machine: Vm) -> CloudError | None:
        return self.unqueued

    def start(self, machine: Vm, expires: float | None) -> None:
        with self.lock:
            node = replace(machine.node, state="starting", expires=expires)
            self.machines_[machine.id] = replace(machine, node=node)

    def move_ends(
        self, machines: Sequence[Vm], expires: float | None, tell: Tell | None = None
    ) -> bool:
        with self.lock:
            for machine in machines:
                node = replace(machine.node, expires=expires)
                self.machines_[machine.id] = replace(machine, node=node)
        return True

    def serial_log(self, machine: Vm) -> str:
        return ""

    def delete(self, machines: Sequence[Vm], resources: Sequence[Resource]) -> None:
        with self.lock:
            for machine in machines:
                if machine.id not in self.stays:
                    self.machines_.pop(machine.id, None)
            users = {self.machines_[id].cluster for id in self._alive()}
            if resources and (self.busy or users & {r.cluster for r in resources}):
                self.busy = max(0, self.busy - 1)
                raise BusyError("the network is in use")
            for resource in resources:
                self.resources_.pop(resource.id, None)

    def delete_from_inside(self, machines: Sequence[Vm], resources: Sequence[Resource]) -> None:
        self.delete(machines, ())

    def holds(self) -> list[str]:
        return sorted([*self._alive(), *self.resources_])

    def _alive(self) -> list[str]:
        return [id for id, m in self.machines_.items() if m.node.state != "gone"]


def cloud_plan(plan: Plan) -> Plan:
    """The same plan for a cloud."""
    config = ClusterConfig(
        name=plan.config.name,
        provider="gcp",
        strategy="custom",
        nodes={},
        placement=("east", "west"),
    )
    return replace(plan, config=config)


def told(events: Sequence[tuple[str, Mapping[str, object]]]) -> list[str]:
    """Journal entries as lines."""
    return [" ".join([kind, *map(str, facts.values())]) for kind, facts in events]


def folder_of(path: Path, name: str) -> Path:
    """A folder of its own for one identity."""
    folder = path / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder
